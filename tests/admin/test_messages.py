"""Peek, get and trace: messages that an operator looks at, and what has become of one."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.inspection import messages
from qmq.admin.inspection.message_search import JournalTrace
from qmq.config import DestinationPolicy, DestinationSettings
from qmq.errors import Refused
from qmq.model.dots import Dot
from qmq.replication.protocol.frames import PeerRequest
from qmq.storage.store import Store
from tests.admin.test_bulk_jobs import DEAD, OTHER, Q, contents, fill, refusal, until_alike
from tests.admin.test_connections import ask
from tests.node.mesh_rig import MeshRig, isolate
from tests.node.rig import Client, Rig, eventually, send, subscribe


def brief(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["node"], row["body"], row["state"]) for row in rows]


def kinds(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [(event["event"], event["node"]) for event in facts["events"]]


async def id_of(client: Client, queue: str = Q) -> str:
    """The message-id of the first message."""
    found: str = (await ask(client, f"peek{queue}"))["rows"][0]["message_id"]
    return found


async def test_a_peek_shows_headers_and_bodies_of_all_nodes_and_consumes_nothing(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")
        await fill(client, "a1", colour="red")
        await fill(await mesh.connect("b"), "b1", "b2")
        await until_alike(mesh)

        facts = await ask(client, "peek/queue/q")

        assert brief(facts["rows"]) == [("a", "a1", "waiting"), ("b", "b1", "waiting"), ("b", "b2", "waiting")]
        assert facts["rows"][0]["headers"]["colour"] == "red"
        two, three = [await ask(client, "peek/queue/q", count=count) for count in ("2", "3")]
        assert (len(two["rows"]), two["more"], three["more"]) == (2, True, False)
        assert await contents(client) == ["a1", "b1", "b2"]


async def test_a_peek_says_what_is_in_flight_and_what_is_delayed(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, worker = await rig.connect(), await rig.connect()
        await worker.send(subscribe(Q, ack="client-individual", prefetch_count="1"))
        await fill(client, "1", "2")
        await fill(client, "later", delay="60000")
        await worker.messages(1)

        facts = await ask(client, "peek/queue/q")

        assert [(row["body"], row["state"]) for row in facts["rows"]] == [
            ("1", "in-flight"),
            ("2", "waiting"),
            ("later", "delayed"),
        ]


async def test_settled_messages_are_not_in_a_peek(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1", "2")
        await ask(client, "purge/queue/q", count="1")

        assert [row["body"] for row in (await ask(client, "peek/queue/q"))["rows"]] == ["2"]


async def test_fanouts_and_retained_messages_can_be_looked_at(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1", "2", "3", queue="/fanout/f")
        await client.send(send("/topic/t", "last", "r", retain="set"))
        await client.receipt()

        assert [row["body"] for row in (await ask(client, "peek/fanout/f", count="2"))["rows"]] == ["1", "2"]
        assert [row["body"] for row in (await ask(client, "peek/topic/t"))["rows"]] == ["last"]
        assert (await ask(client, "peek/topic/none"))["rows"] == []


async def test_a_body_that_is_no_text_is_in_base64(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(b"SEND\ndestination:/queue/q\nreceipt:r\n\n\xff\xfe")
        await client.receipt()

        (row,) = (await ask(client, "peek/queue/q"))["rows"]

        assert (row["body_base64"], row["body_bytes"]) == ("//4=", 2)
        assert "body" not in row


async def test_a_message_is_found_by_its_id_on_any_node_and_after_it_is_settled(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")
        await fill(client, "1")
        await fill(client, "kept", queue="/fanout/f")
        await until_alike(mesh)
        name, kept = await id_of(client), await id_of(client, "/fanout/f")
        other = await mesh.connect("b")

        facts = await ask(other, f"get/{name}")
        assert (facts["message_id"], facts["destination"]) == (name, Q)
        assert brief(facts["rows"]) == [("a", "1", "waiting")]
        assert brief((await ask(other, f"get/{kept}"))["rows"]) == [("a", "kept", "kept")]
        await ask(client, "purge/queue/q")
        await until_alike(mesh)
        assert brief((await ask(other, f"get/{name}"))["rows"]) == [("a", "1", "settled")]


@pytest.mark.parametrize(
    ("message_id", "code"), [("nonsense", "bad-message-id"), ("a-00000000000000ff-7", "unknown-message")]
)
async def test_an_id_of_no_message_is_refused(autojump_clock: MockClock, message_id: str, code: str) -> None:
    rig = Rig()
    async with rig.run():
        assert await refusal(await rig.connect(), f"get/{message_id}") == code


async def test_a_trace_follows_a_message_from_its_acceptance_to_its_consumer(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client, worker = await mesh.connect("a"), await mesh.connect("b")
        await fill(client, "1")
        await until_alike(mesh)
        name = await id_of(client)
        await worker.send(subscribe(Q, ack="client-individual"))
        message = await worker.next("MESSAGE")

        there = await ask(client, f"trace/{name}")
        await worker.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:a\n\n")
        while await worker.receipt() != "a":
            pass
        await until_alike(mesh)
        done = await ask(await mesh.connect("c"), f"trace/{name}")

        assert kinds(there) == [("accepted", "a")]
        assert there["events"][0]["destination"] == Q
        assert (there["unsettled"], there["copies"], there["unknown"]) == (True, ["a", "b", "c"], [])
        assert there["in_flight"] == [{"connection": "b/1", "user": "", "address": "10.0.0.1"}]
        assert kinds(done) == [("accepted", "a"), ("settled", "b")]
        assert done["events"][1]["by"] == [{"connection": "b/1", "user": "", "address": "10.0.0.1"}]
        assert (done["unsettled"], done["in_flight"]) == (False, [])


async def test_a_trace_says_why_a_message_is_a_dead_letter_and_where_it_was_moved(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1")
        name = await id_of(client)
        await client.send(subscribe(Q, ack="client-individual"))
        message = await client.next("MESSAGE")
        await client.send(f"NACK\nid:{message.head.headers['ack']}\nrequeue:false\nreceipt:n\n\n")
        while await client.receipt() != "n":
            pass

        facts = await ask(client, f"trace/{name}")
        letter = await id_of(client, DEAD)
        await ask(client, "move/queue/dead-letters", to=OTHER)
        moved = await ask(client, f"trace/{letter}")

        assert kinds(facts) == [("accepted", "a"), ("dead-lettered", "a")]
        assert (facts["events"][1]["destination"], facts["events"][1]["as"]) == (DEAD, letter)
        assert facts["events"][1]["reason"] == "rejected"
        assert kinds(moved) == [("accepted", "a"), ("moved", "a")]
        assert moved["events"][0]["from"] == name


async def test_a_trace_names_all_dead_letters_that_an_exchange_made_of_a_message(autojump_clock: MockClock) -> None:
    to_all = DestinationPolicy(pattern=Q, dead_letter="/exchange/amq.fanout")
    rig = Rig(destinations=DestinationSettings(policies=(to_all,)))
    async with rig.run():
        client = await rig.connect()
        for queue in (OTHER, DEAD):
            await ask(client, f"bind{queue}", source="/exchange/amq.fanout")
        await fill(client, "1")
        name = await id_of(client)
        await client.send(subscribe(Q, ack="client-individual"))
        message = await client.next("MESSAGE")
        await client.send(f"NACK\nid:{message.head.headers['ack']}\nrequeue:false\nreceipt:n\n\n")
        while await client.receipt() != "n":
            pass

        facts = await ask(client, f"trace/{name}")
        letters = [await id_of(client, queue) for queue in (DEAD, OTHER)]

        assert kinds(facts) == [("accepted", "a"), ("dead-lettered", "a"), ("dead-lettered", "a")]
        said = [(one["destination"], one["as"], one["reason"]) for one in facts["events"][1:]]
        assert said == [(DEAD, letters[0], "rejected"), (OTHER, letters[1], "rejected")]


async def test_a_trace_names_the_nodes_that_do_not_answer(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("a")
        await fill(client, "1")
        name = await id_of(client)
        await until_alike(mesh)
        isolate(mesh, "c")
        await eventually(lambda: mesh.link("a", "c") != "caught-up")

        facts = await ask(client, f"trace/{name}")

        assert (facts["copies"], facts["nodes_missing"]) == (["a", "b"], ["c"])
        assert any("c" in text for text in facts["unknown"])


async def test_a_trace_of_an_unknown_message_says_so(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        facts = await ask(await rig.connect(), "trace/a-00000000000000ff-7")

        assert (facts["events"], facts["messages"]) == ([], 0)
        assert facts["unknown"] == ["everything: no node that answered knows this message-id"]


# What only other nodes have


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> list[Store]:
    """Stores whose journals do not reach back to any message."""
    found: list[Store] = []
    real = messages.search_journal

    def search(store: Store, dot: Dot) -> JournalTrace:
        return JournalTrace() if store in found else real(store, dot)

    monkeypatch.setattr(messages, "search_journal", search)
    return found


async def settled_message(mesh: MeshRig) -> str:
    client = await mesh.connect("a")
    await client.send(send(Q, "\u00fc", "r", colour="red"))
    await client.receipt()
    name = await id_of(client)
    await client.send(subscribe(Q))
    await client.messages(1)
    await eventually(lambda: not mesh.nodes["a"].broker.queues.deliveries)
    await until_alike(mesh)
    return name


async def test_get_and_trace_ask_the_other_nodes_for_what_this_one_has_forgotten(
    autojump_clock: MockClock, forgetful: list[Store]
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        name = await settled_message(mesh)
        forgetful += [mesh.nodes["b"].store, mesh.nodes["c"].store]
        client = await mesh.connect("b")

        got = await ask(client, f"get/{name}")
        (row,) = got["rows"]
        assert (row["body"], row["body_bytes"], row["state"], row["headers"]["colour"]) == ("ü", 2, "settled", "red")
        traced = await ask(client, f"trace/{name}")
        assert kinds(traced) == [("accepted", "a"), ("settled", "a")]
        assert (traced["unknown"], traced["destination"], traced["messages"]) == ([], Q, 1)
        assert traced["events"][1]["by"] == [{"connection": "a/1", "user": "", "address": "10.0.0.1"}]
        assert all("record" not in event for event in traced["events"])

        forgetful.append(mesh.nodes["a"].store)
        assert await refusal(client, f"get/{name}") == "unknown-message"
        nothing = await ask(await mesh.connect("b"), f"trace/{name}")
        assert nothing["unknown"] == ["everything: it is forgotten"]


async def test_an_event_that_two_journals_have_is_in_a_trace_once(
    autojump_clock: MockClock, forgetful: list[Store]
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        name = await settled_message(mesh)
        forgetful.append(mesh.nodes["b"].store)

        assert kinds(await ask(await mesh.connect("b"), f"trace/{name}")) == [("accepted", "a"), ("settled", "a")]


async def test_a_trace_names_the_clients_that_returned_and_acknowledged_a_message(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, first, second = await rig.connect(), await rig.connect("10.0.0.2"), await rig.connect("10.0.0.3")
        await fill(client, "1")
        name = await id_of(client)
        await first.send(subscribe(Q, ack="client-individual"))
        message = await first.next("MESSAGE")
        await first.send(f"NACK\nid:{message.head.headers['ack']}\n\n", "DISCONNECT\n\n")
        await eventually(lambda: not rig.alive.broker.queues.deliveries)
        await second.send(subscribe(Q, ack="client-individual"))
        message = await second.next("MESSAGE")
        await second.send(f"ACK\nid:{message.head.headers['ack']}\n\n", "DISCONNECT\n\n")
        await second.until_closed()

        events = (await ask(client, f"trace/{name}"))["events"]

        assert [(event["event"], [by["address"] for by in event.get("by", [])]) for event in events] == [
            ("accepted", []),
            ("failed", ["10.0.0.2"]),
            ("settled", ["10.0.0.3"]),
        ]


async def in_pages(client: Client, destination: str, count: int) -> list[dict[str, Any]]:
    """All rows, page by page; each page but the last says that more follow."""
    rows: list[dict[str, Any]] = []
    while True:
        facts = await ask(client, f"peek{destination}", count=str(count), offset=str(len(rows)))
        assert (facts["offset"], facts["messages"]) == (len(rows), len(facts["rows"]))
        rows += facts["rows"]
        if not facts["more"]:
            return rows


@pytest.mark.parametrize("count", [1, 2, 3, 100])
async def test_pages_of_a_peek_have_each_message_once(autojump_clock: MockClock, count: int) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("c")
        for name in "ab":
            sender = await mesh.connect(name)
            await fill(sender, *(f"{name}{number}" for number in range(3)))
            await fill(sender, f"{name} urgent", priority="9")
            await fill(sender, f"{name} later", delay="60000")
            await fill(sender, *(f"{name} memory {number}" for number in range(3)), persistent="false")
        await until_alike(mesh)

        rows = await in_pages(client, Q, count)

        assert [row["body"] for row in rows] == [
            *(f"{name} memory {number}" for name in "ab" for number in range(3)),
            *(f"{name} urgent" for name in "ab"),
            *(f"{name}{last}" for name in "ab" for last in ("0", "1", "2", " later")),
        ]


async def test_memory_only_messages_are_looked_through_in_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "LOOKED_AT_ONCE", 10)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    rig = Rig()
    async with rig.run():
        await fill(await rig.connect(), *(str(number) for number in range(55)), persistent="false")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            found = await rig.alive.admin.messages.memory_rows(Q, 2, 50)
            seen = turns
            nursery.cancel_scope.cancel()

    assert [row["body"] for row in found.rows] == ["50", "51"]
    assert (found.more, found.held) == (True, 55)
    assert seen >= 4


async def test_a_page_of_memory_only_messages_has_no_gap_where_a_node_sends_only_some(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("a")
        for name in ("b", "c"):
            sender = await mesh.connect(name)
            large = [f"{name}{number}" + "x" * (60 << 10) for number in range(6)]
            await sender.send(*(send(Q, body, "r", persistent="false") for body in large))
            for _ in large:
                await sender.receipt()
        await until_alike(mesh)

        first = await ask(client, f"peek{Q}", count="100")
        rows = await in_pages(client, Q, 100)

        assert (first["more"], {row["node"] for row in first["rows"]}) == (True, {"b"})
        assert [row["body"][:2] for row in rows] == [f"{name}{number}" for name in "bc" for number in range(6)]


async def test_pages_of_a_fanout_go_on_behind_what_was_shown(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, *"12345", queue="/fanout/f")
        await client.send(send("/topic/t", "last", "r", retain="set"))
        await client.receipt()

        assert [row["body"] for row in await in_pages(client, "/fanout/f", 2)] == list("12345")
        assert (await ask(client, "peek/fanout/f", offset="9"))["rows"] == []
        assert (await ask(client, "peek/topic/t", offset="1"))["rows"] == []


@pytest.mark.parametrize("offset", ["-1", "many", "1" + "0" * 13])
async def test_an_offset_that_is_no_number_is_refused(autojump_clock: MockClock, offset: str) -> None:
    rig = Rig()
    async with rig.run():
        assert await refusal(await rig.connect(), "peek/queue/q", offset=offset) == "bad-offset"


async def test_a_peek_shows_memory_only_messages_of_all_nodes_first(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("a")
        await fill(client, "durable")
        for name in ("a", "b"):
            sender, large = await mesh.connect(name), "x" * (messages.PEER_BODY_BYTES + 1)
            await sender.send(send(Q, f"memory {name}", persistent="false"), send(Q, large, "r", persistent="false"))
            await sender.receipt()
        await until_alike(mesh)

        facts = await ask(client, f"peek{Q}")

        assert [(row["node"], row.get("body", "")[:8], row["body_bytes"] > 100) for row in facts["rows"]] == [
            ("a", "memory a", False),
            ("a", "xxxxxxxx", True),
            ("b", "memory b", False),
            ("b", "", True),
            ("a", "durable", False),
        ]
        two = await ask(client, f"peek{Q}", count="2")
        assert (two["messages"], two["more"]) == (2, True)
        isolate(mesh, "b")
        await eventually(lambda: mesh.link("a", "b") != "caught-up")
        assert (await ask(client, f"peek{Q}"))["nodes_missing"] == ["b"]


async def test_a_node_that_misses_one_of_two_questions_about_a_page_is_missing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")
        for name in "ab":
            sender = await mesh.connect(name)
            await sender.send(*[send(Q, f"{name}{number}", "r", persistent="false") for number in range(3)])
            for _ in range(3):
                await sender.receipt()
        rpc = mesh.nodes["b"].peer_rpc
        answer, is_first = rpc._answer, True

        async def answer_later(request: PeerRequest) -> bytes:
            nonlocal is_first
            if is_first and messages.MEMORY_ONLY.encode() in request.body:
                is_first = False
                raise Refused("any", "this question gets no answer")
            return await answer(request)

        monkeypatch.setattr(rpc, "_answer", answer_later)

        facts = await ask(client, f"peek{Q}", offset="1")

        assert [row["body"] for row in facts["rows"]] == ["a1", "a2"]
        assert facts["nodes_missing"] == ["b"]
