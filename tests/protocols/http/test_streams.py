"""Streams of events: where they begin and continue, what a slow reader costs, and how they end."""

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.config import PermissionSettings, User
from qmq.protocols.http.dialogue import HEARTBEAT_SECONDS
from qmq.protocols.http.gateway.events import SHARED_MESSAGES_MAX
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually, send, subscribe
from tests.protocols.http.rig import WebClient, batch, dial, dial_node, web_rig
from tests.support.defined import redefine

PASSWORD_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
ANN = User(name="ann", password_hash=PASSWORD_HASH)
F = "/v1/fanouts/f"
T = "/v1/topics/t"


async def publish(client: WebClient, *bodies: str, path: str = F) -> None:
    assert (await client.post(f"{path}/messages", batch(*bodies))).status == 201


# Contents


@pytest.mark.parametrize("path", [F, T])
async def test_a_stream_has_what_is_sent_from_now_on(autojump_clock: MockClock, path: str) -> None:
    async with web_rig().run() as rig:
        sender, stream = await dial(rig), await dial(rig)
        await publish(sender, "before", path=path)
        await stream.follow(f"{path}/events")
        await publish(sender, "1", "2", path=path)
        await sender.send(path, b"\xff\n", qmq_header_colour="red")

        assert await stream.events(2) == ["1", "2"]
        event = await stream.event()
        assert event.facts["body_base64"] == "/wo="
        assert event.facts["headers"] == {"colour": "red"}
        assert event.facts["destination"] == path.replace("/v1/fanouts", "/fanout").replace("/v1/topics", "/topic")
        assert bool(event.id) == (path == F)


async def test_a_stream_of_a_fanout_may_begin_with_its_first_message(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        sender, stream = await dial(rig), await dial(rig)
        await publish(sender, "1", "2")

        await stream.follow(f"{F}/events?from=first")
        await publish(sender, "3")

        assert await stream.events(3) == ["1", "2", "3"]


async def test_topic_patterns_and_selectors(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        sender, stream = await dial(rig), await dial(rig)
        await stream.follow("/v1/topics/a.*/events?selector=n%3E1")
        for n in range(4):
            await sender.send(f"/v1/topics/a.{n % 2}", str(n).encode(), qmq_header_n=str(n))
        await sender.send("/v1/topics/b.1", b"other", qmq_header_n="5")
        await sender.send("/v1/topics/a.1", b"last", qmq_header_n="5")

        assert await stream.events(3) == ["2", "3", "last"]


async def test_retained_values_come_first_and_are_marked(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        sender, stream = await dial(rig), await dial(rig)
        assert (await sender.send(T, b"kept", qmq_retain="set")).status == 201

        await stream.follow(f"{T}/events")
        await publish(sender, "live", path=T)
        kept, live = await stream.event(), await stream.event()

        assert (kept.facts["body"], kept.facts["retained"]) == ("kept", True)
        assert live.facts["body"] == "live" and "retained" not in live.facts


async def test_a_body_that_looks_like_an_event_is_only_data(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        sender, stream = await dial(rig), await dial(rig)
        await stream.follow(f"{F}/events")
        body = '\n\nid: x\ndata: {"evil": 1}\r\r\u2028\n\n'
        await publish(sender, body)

        event = await stream.event()

        assert event.facts["body"] == body
        assert event.id != "x"


async def test_streams_share_the_data_of_events_and_forget_it(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        sender, streams = await dial(rig), [await dial(rig) for _ in range(5)]
        for stream in streams:
            await stream.follow(f"{F}/events")
        for at in range(0, 3 * SHARED_MESSAGES_MAX, 512):
            await publish(sender, *map(str, range(at, at + 512)))

        for stream in streams:
            assert await stream.events(3 * SHARED_MESSAGES_MAX) == list(map(str, range(3 * SHARED_MESSAGES_MAX)))
        assert len(rig.alive.protocols.of("http").shared.event_data._known) <= SHARED_MESSAGES_MAX


# Resuming


async def test_a_stream_resumes_exactly_once_on_another_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        senders = [await dial_node(rig, name) for name in "abc"]
        for sender in senders:
            await publish(sender, "before")
        await trio.sleep(1)
        first = await (await dial_node(rig, "a")).follow(f"{F}/events")
        sent = []
        for n in range(30):
            await publish(senders[n % 3], f"{n}", f"{n}+")
            sent += [f"{n}", f"{n}+"]
        got = await first.events(25)
        first.pipe.close()

        second = await (await dial_node(rig, "b")).follow(f"{F}/events", last_event_id=first.last_id)
        got += await second.events(20)
        third = await (await dial_node(rig, "c")).follow(f"{F}/events?after={second.last_id}")
        got += await third.events(15)

        assert sorted(got) == sorted(sent)
        await publish(senders[0], "more")
        assert await third.events(1) == ["more"]


async def test_a_new_life_of_the_node_continues_a_stream(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        sender, stream = await dial(rig), await dial(rig)
        await stream.follow(f"{F}/events")
        await publish(sender, "1", "2", "3")
        assert await stream.events(2) == ["1", "2"]
        last_id = stream.last_id
        stream.pipe.close()
    async with rig.run():
        sender, stream = await dial(rig), await dial(rig)
        await publish(sender, "4")

        await stream.follow(f"{F}/events", last_event_id=last_id)

        assert await stream.events(2) == ["3", "4"]


async def test_a_stream_that_began_with_next_and_has_got_nothing_can_only_begin_again(
    autojump_clock: MockClock,
) -> None:
    """It has no id yet unless the node sends one: what is sent in between must not be lost."""
    async with web_rig().run() as rig:
        sender, stream = await dial(rig), await dial(rig)
        await publish(sender, "before")
        await stream.follow(f"{F}/events")
        with trio.move_on_after(HEARTBEAT_SECONDS + 1):
            await stream.event(100)
        last_id = stream.last_id
        stream.pipe.close()
        await publish(sender, "meanwhile")
        again = await (await dial(rig)).follow(f"{F}/events", last_event_id=last_id)

        assert await again.events(1) == ["meanwhile"]


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?from=last", {}),
        ("?begin=first", {}),
        ("", {"last_event_id": "nonsense"}),
        ("?after=x%3Dy", {}),
        ("?selector=a%20%3D", {}),
        ("?overflow=never", {}),
        ("?buffer_messages=many", {}),
    ],
)
async def test_a_stream_that_makes_no_sense_is_refused_and_the_connection_goes_on(
    autojump_clock: MockClock, query: str, headers: dict[str, str]
) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)

        response = await client.get(f"{F}/events{query}", **headers)

        assert response.status == 400, response.body
        assert (await client.get("/v1/topics/t/events?from=first")).code == "bad-query"
        assert (await client.send(F, b"x")).status == 201
        await client.follow(f"{F}/events?from=first")
        assert await client.events(1) == ["x"]


# Slow readers


@pytest.mark.parametrize("overflow", ["drop-oldest", "disconnect"])
async def test_a_slow_reader_costs_its_bound_and_disturbs_no_other(autojump_clock: MockClock, overflow: str) -> None:
    async with web_rig().run() as rig:
        sender, slow, fast = await dial(rig), await dial(rig, "10.0.0.2"), await dial(rig)
        await slow.follow(f"{T}/events?overflow={overflow}&buffer_messages=10")
        await fast.follow(f"{T}/events")
        (session,) = [one for one in rig.alive.sessions.values() if one.peer_address == "10.0.0.2"]
        for n in range(100):
            await publish(sender, f"{n} {'x' * 10_000}", path=T)
            assert (await fast.event()).facts["body"].startswith(f"{n} ")
            assert session.held_bytes < 500_000

        numbers: list[int] = []
        while not numbers or numbers[-1] != 99:
            event = await slow.event()
            if event.kind == "error":
                break
            numbers.append(int(event.facts["body"].split()[0]))
        assert numbers == sorted(set(numbers)) and len(numbers) < 90
        if overflow == "disconnect":
            assert event.facts["code"] == "slow-consumer"
            await slow.until_closed()
        else:
            assert numbers[-10:] == list(range(90, 100))


async def test_a_reader_without_a_declared_buffer_ends_at_the_bound_of_its_outbox(autojump_clock: MockClock) -> None:
    async with web_rig(limits={"outbox_bytes_max": 400_000, "body_bytes_max": 20_000}).run() as rig:
        sender, slow = await dial(rig), await dial(rig)
        await slow.follow(f"{T}/events")
        for _ in range(100):
            await publish(sender, "x" * 10_000, path=T)

        kinds = []
        while "error" not in kinds:
            kinds.append((await slow.event()).kind)

        assert len(kinds) < 60
        await slow.until_closed()


async def test_a_slow_reader_of_a_fanout_reads_the_log_and_gets_everything_once(autojump_clock: MockClock) -> None:
    async with web_rig(limits={"subscriber_buffer_bytes_default": 100_000}).run() as rig:
        sender, slow = await dial(rig), await dial(rig, "10.0.0.2")
        await slow.follow(f"{F}/events")
        (session,) = [one for one in rig.alive.sessions.values() if one.peer_address == "10.0.0.2"]
        for n in range(500):
            await publish(sender, f"{n} {'x' * 10_000}")
            assert session.held_bytes < 2_000_000

        bodies = await slow.events(500)

        assert [int(body.split()[0]) for body in bodies] == list(range(500))


# Ends


async def test_a_silent_stream_has_heartbeats_and_stays(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        stream = await dial(rig)
        await stream.follow(f"{T}/events")
        await trio.sleep(600)

        assert (await stream.pipe.receive_some(65536)).count(b":\n\n") >= 600 / HEARTBEAT_SECONDS - 1
        await publish(await dial(rig), "x", path=T)
        assert await stream.events(1) == ["x"]


async def test_a_stream_ends_when_its_permission_is_taken_away(autojump_clock: MockClock) -> None:
    rows = (PermissionSettings(user="ann", allow=("send", "subscribe"), destinations=("/fanout/f",)),)
    async with web_rig(users=(ANN,), permissions=rows).run() as rig:
        stream, refused = await dial(rig, user="ann"), await dial(rig, user="ann")
        await stream.follow(f"{F}/events")
        began = trio.current_time()

        await redefine(rig.alive, permissions=())
        event = await stream.event(1)

        assert (event.kind, event.facts["code"]) == ("error", "not-allowed")
        assert trio.current_time() - began < 1
        await stream.until_closed()
        assert (await refused.get(f"{F}/events")).status == 403


async def test_a_kicked_stream_says_so(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        stream, other = await dial(rig, "10.0.0.2"), await dial(rig)
        await stream.follow(f"{F}/events")

        assert (await other.post("/v1/control/kick?address=10.0.0.2", b"")).status == 200

        event = await stream.event()
        assert (event.kind, event.facts["code"]) == ("error", "kicked")
        await stream.until_closed()


async def test_a_client_that_leaves_its_stream_leaves_nothing(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        stream = await dial(rig)
        await stream.follow(f"{F}/events")
        stream.pipe.close()

        await eventually(lambda: not rig.alive.sessions)

        assert rig.alive.broker.subscriptions.fanouts.get("/fanout/f", {}) == {}


async def test_a_stream_takes_no_further_request(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        stream, sender = await dial(rig), await dial(rig)
        await stream.follow(f"{F}/events")
        await stream.write(stream.bytes_of("POST", f"{F}/messages", b"x") * 2000)
        await publish(sender, "real")

        assert await stream.events(1) == ["real"]
        stomp = await rig.connect()
        await stomp.send(subscribe("/fanout/f", start_at="first"), send("/fanout/f", "end"))
        assert await stomp.messages(2) == [b"real", b"end"]
