"""Messages that are received over HTTP, and settled by token: times, nodes, and clients that vanish."""

import base64
import sys

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.lifecycle import Back
from qmq.config import DestinationPolicy, DestinationSettings
from qmq.errors import Refused
from qmq.protocols.http.gateway.bodies import ACKS_MAX
from qmq.protocols.http.gateway.pulls import AckRequest
from qmq.protocols.http.pull_session import PullSession
from qmq.sessions import pull_consumer
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, eventually, subscribe
from tests.node.stuck_rig import StuckRig
from tests.protocols.http.rig import WebClient, batch, dial, dial_node, web_rig
from tests.support.depths import depths

Q = "/v1/queues/q"


async def fill(client: WebClient, *bodies: str) -> None:
    assert (await client.post(f"{Q}/messages", batch(*bodies))).status == 201


def pull_sessions(rig: Rig) -> list[int]:
    """Sessions of receives."""
    return [id for id, session in rig.alive.sessions.items() if session.encoder.protocol == "HTTP pull"]


async def test_a_received_message_is_gone_when_it_is_acknowledged(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await fill(client, "1", "2", "3")

        first, second = await client.receive("q", 2)
        assert [first["body"], second["body"]] == ["1", "2"]
        assert (first["redelivered"], first["delivery_count"]) == (False, 1)
        assert first["destination"] == "/queue/q"
        assert await client.settle(first["ack_token"], second["ack_token"]) == ["acknowledged"] * 2

        assert depths(rig.alive)["/queue/q"] == 1
        assert await client.settle(first["ack_token"]) == ["expired"]


async def test_a_response_that_cannot_be_written_takes_no_message(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    async with web_rig().run() as rig:
        client = await dial(rig)
        await fill(client, "1")

        refused = await client.post(f"{Q}/receive", {"max": 1}, accept="avro/binary")

        assert refused.code == "not-supported"
        (message,) = await client.receive("q", wait=0)
        assert (message["body"], message["delivery_count"]) == ("1", 1)


async def test_a_response_has_no_more_messages_than_fit_into_its_bytes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_consumer, "TAKEN_BYTES_MAX", 10)
    async with web_rig().run() as rig:
        client = await dial(rig)
        await fill(client, "a" * 6, "b" * 4, "c", "d" * 11, "e")

        got = [await client.receive("q", 9, wait=0) for _ in range(4)]

        assert [[one["body"][0] for one in part] for part in got] == [["a", "b"], ["c"], ["d"], ["e"]]
        assert {one["delivery_count"] for part in got for one in part} == {1}


async def test_an_empty_queue_gives_an_empty_list_after_the_wait(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        began = trio.current_time()

        assert await client.receive("q", 1, wait=20) == []
        assert 20 <= trio.current_time() - began < 21
        assert await client.receive("q", 1, wait=0) == []
        assert trio.current_time() - began < 22


async def test_a_waiting_receive_gets_a_message_when_it_comes(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, sender = await dial(rig), await dial(rig)
        assert await sender.receive("q", wait=0) == []
        await client.write(client.bytes_of("POST", f"{Q}/receive", b'{"max": 5, "wait_seconds": 30}'))
        await trio.sleep(5)
        began = trio.current_time()
        await fill(sender, "x")

        (message,) = (await client.response()).rows

        assert message["body"] == "x"
        assert trio.current_time() - began < 1


async def test_one_receive_gets_all_that_it_asks_for_from_a_stored_backlog(autojump_clock: MockClock) -> None:
    rig = web_rig(limits={"queue_messages_in_memory_max": 1000})
    async with rig.run():
        client = await dial(rig)
        for at in range(0, 5000, 1000):
            await fill(client, *map(str, range(at, at + 1000)))
    async with rig.run():
        client = await dial(rig)

        bodies: list[str] = []
        while found := await client.receive("q", 1000, wait=1):
            bodies += [one["body"] for one in found]
            assert set(await client.settle(*[one["ack_token"] for one in found])) == {"acknowledged"}

        assert bodies == list(map(str, range(5000)))


async def test_a_client_that_vanishes_during_a_receive_gets_nothing_counted(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, other = await dial(rig), await dial(rig)
        await client.write(client.bytes_of("POST", f"{Q}/receive", b'{"max": 5, "wait_seconds": 60}'))
        await eventually(lambda: bool(pull_sessions(rig)))
        client.pipe.close()
        await eventually(lambda: not pull_sessions(rig))

        await fill(other, "x")
        (message,) = await other.receive("q")

        assert (message["redelivered"], message["delivery_count"]) == (False, 1)


async def test_messages_that_come_as_the_client_vanishes_are_requeued_as_unseen(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, other = await dial(rig), await dial(rig)
        await client.write(client.bytes_of("POST", f"{Q}/receive", b'{"max": 5, "wait_seconds": 60}'))
        await eventually(lambda: bool(pull_sessions(rig)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill, other, "x")
            client.pipe.close()

        (message,) = await other.receive("q", wait=10)

        assert (message["redelivered"], message["delivery_count"]) == (False, 1)


async def test_a_message_whose_commit_is_later_than_the_receive_is_requeued(autojump_clock: MockClock) -> None:
    async with StuckRig("a", "b").run() as rig:
        client, other, sender = [await dial_node(rig, "a") for _ in range(3)]
        await client.write(client.bytes_of("POST", f"{Q}/receive", b'{"wait_seconds": 1}'))
        await sender.receive("none", wait=0.5)
        rig.stick("a")
        await sender.write(sender.bytes_of("POST", f"{Q}/messages", b"x"))
        assert (await client.response()).rows == []

        rig.free.set()
        (message,) = await other.receive("q", wait=5)

        assert (message["body"], message["delivery_count"]) == ("x", 1)


async def test_a_message_that_is_not_settled_in_time_is_delivered_again(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, other = await dial(rig), await dial(rig)
        await fill(client, "x")
        (first,) = await client.receive("q", ack_timeout_seconds=10)

        assert await other.receive("q", wait=8) == []
        (again,) = await other.receive("q", wait=8)

        assert (again["redelivered"], again["delivery_count"]) == (True, 2)
        assert await client.settle(first["ack_token"]) == ["expired"]
        assert await other.settle(again["ack_token"]) == ["acknowledged"]


async def test_extend_begins_the_time_again(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, other = await dial(rig), await dial(rig)
        await fill(other, "x")
        (message,) = await client.receive("q", ack_timeout_seconds=10)
        for _ in range(4):
            await trio.sleep(8)
            assert await client.settle(message["ack_token"], action="extend") == ["extended"]

        assert await other.receive("q", wait=7) == []
        assert await client.settle(message["ack_token"]) == ["acknowledged"]
        assert depths(rig.alive)["/queue/q"] == 0


async def test_a_token_outlives_its_connection(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await fill(client, "1", "2")
        messages = await client.receive("q", 2, ack_timeout_seconds=60)
        client.pipe.close()
        await eventually(lambda: len(rig.alive.sessions) == 1)
        await trio.sleep(20)
        other = await dial(rig)

        assert await other.settle(messages[0]["ack_token"]) == ["acknowledged"]
        assert await other.settle(messages[1]["ack_token"], action="nack") == ["requeued"]
        (again,) = await other.receive("q")
        assert (again["body"], again["delivery_count"]) == ("2", 2)
        # The session of the first connection has nothing left.
        await eventually(lambda: len(pull_sessions(rig)) == 1)


async def test_a_nack_without_requeue_makes_a_dead_letter(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await fill(client, "x")
        (message,) = await client.receive("q")

        assert await client.settle(message["ack_token"], action="nack", requeue=False) == ["rejected"]

        letters = {name: depth for name, depth in depths(rig.alive).items() if depth}
        assert len(letters) == 1 and "/queue/q" not in letters


async def test_a_token_of_another_client_counts_for_nothing(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await fill(client, "x")
        (message,) = await client.receive("q")
        token = message["ack_token"]

        assert await client.settle("", "x", token + "A", token[:-3], "\u20ac", "a" * 10_000) == ["expired"] * 6
        assert await client.settle(token) == ["acknowledged"]


async def test_many_receives_and_acks_at_the_same_time_lose_and_repeat_nothing(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        bodies: list[str] = []

        async def consume(number: int) -> None:
            client = await dial(rig)
            while found := await client.receive("q", 1 + number % 7, wait=2):
                bodies.extend(one["body"] for one in found)
                results = await client.settle(*[one["ack_token"] for one in found])
                assert set(results) == {"acknowledged"}

        sender = await dial(rig)
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(consume, number)
            for at in range(0, 300, 20):
                await fill(sender, *map(str, range(at, at + 20)))

        assert sorted(bodies, key=int) == list(map(str, range(300)))
        assert depths(rig.alive)["/queue/q"] == 0


async def test_tokens_are_settled_at_another_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        here, there = await dial_node(rig, "a"), await dial_node(rig, "b")
        await fill(here, *map(str, range(ACKS_MAX)))
        messages = await here.receive("q", ACKS_MAX)
        tokens = [one["ack_token"] for one in messages]
        assert len(tokens) == ACKS_MAX

        assert await there.settle(tokens[0], action="extend") == ["extended"]
        assert set(await there.settle(*tokens)) == {"acknowledged"}
        assert await here.settle(tokens[0]) == ["expired"]


async def test_the_token_of_a_dead_node_says_so_and_that_of_its_next_life_is_expired(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as rig:
        here, there = await dial_node(rig, "a"), await dial_node(rig, "b")
        await fill(here, "x")
        (message,) = await here.receive("q")
        await rig.kill("a")

        assert await there.settle(message["ack_token"]) == ["unreachable"]

        await rig.start("a")
        await rig.until_linked()
        assert await there.settle(message["ack_token"]) == ["expired"]


async def test_a_node_that_is_no_member_has_no_deliveries(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        here = await dial_node(rig, "a")
        await fill(here, "x")
        (message,) = await here.receive("q")
        token = message["ack_token"]
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        other = base64.urlsafe_b64encode(text.replace("a/", "z/", 1).encode()).decode().rstrip("=")

        assert await here.settle(other) == ["expired"]


async def test_an_ack_waits_for_its_commit(autojump_clock: MockClock) -> None:
    async with StuckRig("a", "b").run() as rig:
        client = await dial_node(rig, "a")
        await fill(client, "x")
        (message,) = await client.receive("q")
        rig.stick("a")
        await client.write(
            client.bytes_of("POST", "/v1/acks", b'{"acks":[{"ack_token":"%b"}]}' % message["ack_token"].encode())
        )

        with trio.move_on_after(1):
            raise AssertionError(await client.response())
        rig.free.set()
        assert (await client.response()).results == ["acknowledged"]


async def test_an_ack_whose_client_leaves_before_its_commit_waits_for_no_receipt(autojump_clock: MockClock) -> None:
    async with StuckRig("a", "b").run() as rig:
        client = await dial_node(rig, "a")
        await fill(client, "x")
        await client.receive("q")
        (tag,) = rig.nodes["a"].broker.queues.deliveries
        (session,) = rig.nodes["a"].protocols.of("http").shared.pulls._sessions.values()
        assert isinstance(session, PullSession)
        rig.stick("a")

        with trio.move_on_after(1):
            await session.settle([(tag, AckRequest("", None, "ack", requeue=False))])

        assert session._encoder.receipts_due == set()
        rig.free.set()


async def test_receives_that_are_over_are_looked_for_in_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def reap(session: PullSession) -> None:
        seen.append("reaped")
        rig.alive.spawn(other)

    async def other() -> None:
        seen.append("other")

    async with web_rig().run() as rig:
        clients = [await dial(rig) for _ in range(10)]
        await fill(clients[0], *map(str, range(10)))
        for client in clients:
            await client.receive("q")
        monkeypatch.setattr(PullSession, "reap", reap)

        await eventually(lambda: len(seen) == 20)

    assert seen[:10].count("reaped") < 10


async def test_an_ack_of_a_message_that_is_taken_back_meanwhile_fails_alone(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await fill(client, "1", "2")
        first, second = await client.receive("q", 2)
        (pull,) = pull_sessions(rig)
        slot = rig.alive.engine.path.slot
        queues = rig.alive.broker.queues

        async def take_back_first(session: int = 0, *, asks: bool = False) -> None:
            """While the request waits for its turn, the time of the first message is over."""
            await slot(session, asks=asks)
            if session == pull:
                out = Outcome(now_us=rig.alive.environment.now_us())
                late = [one for one in queues.deliveries.values() if one.message.body == b"1"]
                queues.redelivery.give_back(late, Back.TIMED_OUT, out)
                rig.alive.engine.path.submit(out)

        rig.alive.engine.path.slot = take_back_first  # type: ignore[method-assign]
        results = await client.settle(first["ack_token"], second["ack_token"])
        rig.alive.engine.path.slot = slot  # type: ignore[method-assign]

        assert results == ["expired", "acknowledged"]


async def test_a_message_that_is_acknowledged_twice_in_one_request_is_so_once(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await fill(client, "1", "2")
        first, second = await client.receive("q", 2)

        assert await client.settle(first["ack_token"], second["ack_token"], first["ack_token"]) == [
            "acknowledged",
            "acknowledged",
            "expired",
        ]


async def test_an_ack_of_a_session_that_ends_meanwhile_is_expired(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, other = await dial(rig), await dial(rig)
        await fill(client, "1", "2")
        (first,) = await client.receive("q")
        (second,) = await other.receive("q")
        one, two = pull_sessions(rig)
        slot = rig.alive.engine.path.slot

        async def end_the_other(session: int = 0, *, asks: bool = False) -> None:
            """While the first session waits for its turn, the second one is kicked, and has left."""
            await slot(session, asks=asks)
            if session == one and two in rig.alive.sessions:
                kicked = rig.alive.sessions[two]
                kicked.evict(Refused("kicked", "in the test"))
                await kicked.closed.wait()

        rig.alive.engine.path.slot = end_the_other  # type: ignore[method-assign]
        results = await client.settle(first["ack_token"], second["ack_token"])
        rig.alive.engine.path.slot = slot  # type: ignore[method-assign]

        assert results == ["acknowledged", "expired"]


async def test_a_refused_receive_says_nothing_about_acks_under_way(autojump_clock: MockClock) -> None:
    async with StuckRig("a", "b").run() as rig:
        client, other = await dial_node(rig, "a"), await dial_node(rig, "a")
        await fill(client, "x")
        (message,) = await client.receive("q")
        rig.stick("a")
        body = b'{"acks":[{"ack_token":"%b"}]}' % message["ack_token"].encode()
        await other.write(other.bytes_of("POST", "/v1/acks", body))
        await trio.sleep(1)

        assert (await client.post("/v1/queues/q/receive", {"selector": "a ="})).status == 400
        rig.free.set()
        assert (await other.response()).results == ["acknowledged"]


async def test_too_few_copies_of_one_request_end_nothing_else(autojump_clock: MockClock) -> None:
    """Where the mesh refuses that, the error comes late. Other messages stay in flight, and the connection open."""
    async with StuckRig("a", "b", "c", mesh={"receipt_short": "refuse"}).run() as rig:
        client, other = await dial_node(rig, "a"), await dial_node(rig, "a")
        await fill(client, "1", "2", "3")
        first, second, _ = await client.receive("q", 3)
        rig.stick("b", "c")

        sent = await client.send(Q, b"x")
        results = await other.settle(first["ack_token"]), await other.settle(second["ack_token"])

        assert (sent.status, sent.code) == (503, "too-few-copies")
        assert results == (["unreachable"], ["unreachable"])
        assert await other.settle(first["ack_token"]) == ["expired"]
        assert [one["body"] for one in await client.receive("q", 9, wait=1)] == ["x"]


async def test_a_kick_requeues_and_the_connection_may_receive_again(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, other = await dial(rig), await dial(rig)
        await fill(client, "x")
        (message,) = await client.receive("q")
        (pull,) = pull_sessions(rig)

        kicked = await other.post(f"/v1/control/kick/a/{pull}")

        assert kicked.status == 200, kicked.body
        assert await other.settle(message["ack_token"]) == ["expired"]
        (again,) = await client.receive("q")
        assert again["body"] == "x"


async def test_a_receive_that_is_kicked_says_so(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, other = await dial(rig), await dial(rig)
        await client.write(client.bytes_of("POST", f"{Q}/receive", b'{"max": 5, "wait_seconds": 60}'))
        await eventually(lambda: bool(pull_sessions(rig)))

        assert (await other.post(f"/v1/control/kick/a/{pull_sessions(rig)[0]}")).status == 200
        response = await client.response()

        assert (response.status, response.code) == (403, "kicked")


async def test_pipelined_requests_are_answered_in_order_also_behind_a_receive(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await client.write(
            client.bytes_of("POST", f"{Q}/receive", b'{"wait_seconds": 3}')
            + client.bytes_of("GET", "/v1/control/status")
            + client.bytes_of("POST", f"{Q}/messages", b"x")
            + client.bytes_of("GET", "/nothing")
            + client.bytes_of("POST", f"{Q}/receive", b"{}")
        )

        found = [await client.response() for _ in range(5)]

        assert [one.status for one in found] == [200, 200, 201, 404, 200]
        assert found[0].rows == []
        assert [row["body"] for row in found[4].rows] == ["x"]


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'{"max": 0}',
        b'{"max": 1001}',
        b'{"max": true}',
        b'{"max": 1.5}',
        b'{"wait_seconds": -1}',
        b'{"wait_seconds": 61}',
        b'{"wait_seconds": NaN}',
        b'{"ack_timeout_seconds": 0.5}',
        b'{"ack_timeout_seconds": Infinity}',
        b'{"selector": 5}',
        b'{"count": 5}',
        b'{"selector": "a ="}',
        b'{"selector": "a = \'\\ud800\'"}',
        b"[" * 50_000,
    ],
)
async def test_a_receive_that_makes_no_sense_is_refused(autojump_clock: MockClock, body: bytes) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)

        response = await client.post(f"{Q}/receive", body)

        assert response.status == 400, response.body
        assert (await client.post(f"{Q}/receive", b"")).rows == []


async def test_a_receive_with_a_selector_gets_what_matches(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await client.send(Q, b"red", qmq_header_colour="red")
        await client.send(Q, b"blue", qmq_header_colour="blue")

        assert [one["body"] for one in await client.receive("q", 5, selector="colour = 'blue'")] == ["blue"]


async def test_a_stomp_consumer_takes_what_a_receive_leaves(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, stomp = await dial(rig), await rig.connect()
        await fill(client, "1", "2", "3")
        assert len(await client.receive("q", 1)) == 1

        await stomp.send(subscribe("/queue/q"))

        assert await stomp.messages(2) == [b"2", b"3"]


async def test_bodies_that_are_not_text_are_in_base64(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client, stomp = await dial(rig), await rig.connect()
        await stomp.send(b"SEND\ndestination:/queue/q\ncontent-length:2\nreceipt:r\ncontent-type:image/x\n\n\xff\x00")
        await stomp.receipt()

        (message,) = await client.receive("q")

        assert (message["body_base64"], message["content_type"]) == ("/wA=", "image/x")
        assert "body" not in message


async def test_the_session_of_a_connection_ends_when_its_messages_time_out(autojump_clock: MockClock) -> None:
    policy = DestinationSettings(policies=(DestinationPolicy(pattern="/queue/*", delivery_limit=1),))
    async with web_rig(destinations=policy).run() as rig:
        client = await dial(rig)
        await fill(client, "x")
        assert len(await client.receive("q", ack_timeout_seconds=10)) == 1
        client.pipe.close()
        await trio.sleep(5)
        assert len(pull_sessions(rig)) == 1

        await trio.sleep(20)

        assert pull_sessions(rig) == []
        assert rig.alive.sessions == {}
