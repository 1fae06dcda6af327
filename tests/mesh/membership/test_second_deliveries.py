"""Messages that may have been in flight before a restart or takeover are marked as `redelivered`, and no others."""

import pytest
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import MAYBE_SEEN, SEEN, Envelope, Message
from qmq.broker.queues.paging import pager
from qmq.broker.queues.state.priority_level import is_spare
from qmq.model.dots import Origin
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Client, Rig, eventually, send, subscribe

JOBS = "/queue/jobs"
MARKED = {"redelivered": "true", "delivery-count": "1"}


async def publish(client: Client, count: int, destination: str = JOBS, **headers: str) -> None:
    for number in range(count):
        await client.send(send(destination, str(number), f"r{number}", **headers))
        await client.receipt()


async def taken(client: Client, count: int, destination: str = JOBS) -> list[tuple[bytes, dict[str, str]]]:
    """What a subscription with a credit of `count` gets, and how it is marked; nothing is acknowledged."""
    await client.send(subscribe(destination, ack="client-individual", prefetch_count=str(count)))
    frames = [await client.next("MESSAGE") for _ in range(count)]
    return [
        (frame.body, {name: value for name, value in frame.head.headers.items() if name in MARKED}) for frame in frames
    ]


async def replicated(rig: MeshRig) -> None:
    nodes = list(rig.nodes.values())
    await eventually(
        lambda: all(node.engine.path.durable_vector() == nodes[0].engine.path.durable_vector() for node in nodes)
    )


async def test_what_a_killed_owner_had_handed_out_is_marked_when_it_comes_again(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await publish(await rig.connect("a"), 2)
        assert await taken(await rig.connect("a"), 2) == [(b"0", {}), (b"1", {})]
        await replicated(rig)
        await rig.kill("a")
        await rig.start("a")

        assert await taken(await rig.connect("a"), 2) == [(b"0", MARKED), (b"1", MARKED)]


async def test_the_mark_goes_with_a_message_to_a_consumer_of_another_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await publish(await rig.connect("a"), 1)
        assert await taken(await rig.connect("a"), 1) == [(b"0", {})]
        await replicated(rig)
        await rig.kill("a")
        await rig.start("a")
        await rig.until_linked()

        assert await taken(await rig.connect("c"), 1) == [(b"0", MARKED)]


async def test_what_a_silent_owner_may_have_handed_out_is_marked_by_the_node_that_takes_over(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await publish(await rig.connect("a"), 2)
        assert await taken(await rig.connect("a"), 2) == [(b"0", {}), (b"1", {})]
        await replicated(rig)
        isolate(rig, "a")

        assert await taken(await rig.connect("b"), 2) == [(b"0", MARKED), (b"1", MARKED)]


async def test_what_another_node_handed_out_while_the_owner_was_away_in_order_is_marked(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await publish(await rig.connect("a"), 1)
        await replicated(rig)
        await rig.stop("a")
        assert [body for body, _ in await taken(await rig.connect("b"), 1)] == [b"0"]
        await rig.kill("b")
        await rig.start("a")

        assert await taken(await rig.connect("c"), 1) == [(b"0", MARKED)]


async def test_what_another_node_handed_out_while_the_owner_was_cut_off_is_marked(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await publish(await rig.connect("a"), 1)
        await replicated(rig)
        isolate(rig, "a")
        assert [body for body, _ in await taken(await rig.connect("b"), 1)] == [b"0"]
        await rig.kill("b")
        rejoin(rig, "a")

        assert await taken(await rig.connect("c"), 1) == [(b"0", MARKED)]


async def test_what_lies_behind_the_first_page_was_with_no_consumer_and_is_not_marked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pager, "PAGE_MESSAGES", 3)
    async with MeshRig("a", "b", "c").run() as rig:
        await publish(await rig.connect("a"), 7)
        await replicated(rig)
        await rig.kill("a")
        await rig.start("a")
        found = await taken(await rig.connect("a"), 7)

        assert [body for body, _ in found] == [b"%d" % number for number in range(7)]
        assert [mark for _, mark in found] == [MARKED] * 3 + [{}] * 4


async def test_what_was_handed_out_first_of_its_exact_number_is_marked_behind_later_messages_of_lower_ones(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pager, "PAGE_MESSAGES", 3)
    async with MeshRig("a", "b", "c").run() as rig:
        sender = await rig.connect("a")
        await publish(sender, 1, priority="6", beanstalk_priority="100")
        assert await taken(await rig.connect("a"), 1) == [(b"0", {})]
        await publish(sender, 5, priority="6", beanstalk_priority="20")
        await replicated(rig)
        await rig.kill("a")
        await rig.start("a")
        found = await taken(await rig.connect("a"), 6)

        assert [body for body, _ in found] == [b"0", b"1", b"2", b"3", b"4", b"0"]
        assert [mark for _, mark in found] == [MARKED] * 3 + [{}] * 2 + [MARKED]


async def test_nothing_is_marked_that_was_accepted_since_the_start(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        await publish(await rig.connect(), 1, "/queue/old")
    async with rig.run():
        client = await rig.connect()
        await publish(client, 5)
        await rig.alive.engine.checkpoints.checkpoint()
        queues = rig.alive.broker.queues
        assert queues.paging.evict(queues.by_name[JOBS]) == 5

        assert [mark for _, mark in await taken(client, 5)] == [{}] * 5
    async with MeshRig("a", "b", "c").run() as mesh:
        await publish(await mesh.connect("a"), 2)
        await mesh.nodes["a"].engine.checkpoints.checkpoint()

        assert [mark for _, mark in await taken(await mesh.connect("b"), 2)] == [{}] * 2


async def test_what_no_consumer_had_seen_at_an_orderly_end_is_not_marked(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        await publish(await rig.connect(), 2)
    async with rig.run():
        client = await rig.connect()
        assert await taken(client, 2) == [(b"0", {}), (b"1", {})]
        await client.send("DISCONNECT\nreceipt:bye\n\n")
        await client.until_closed()
    async with rig.run():
        assert await taken(await rig.connect(), 2) == [(b"0", MARKED), (b"1", MARKED)]


async def test_a_life_without_consumers_does_not_take_the_mark_from_what_an_earlier_one_handed_out(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        await publish(await rig.connect(), 2)
        client = await rig.connect()
        assert await taken(client, 2) == [(b"0", {}), (b"1", {})]
        await client.send("DISCONNECT\nreceipt:bye\n\n")
        await client.until_closed()
    async with rig.run():
        pass
    async with rig.run():
        assert await taken(await rig.connect(), 2) == [(b"0", MARKED), (b"1", MARKED)]


async def test_what_a_peer_had_from_an_earlier_term_and_has_no_more_is_marked(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        a = rig.nodes["a"]
        worker = await rig.connect("b")
        await worker.send(subscribe(JOBS, ack="client-individual"))
        await publish(await rig.connect("a"), 1)
        assert (await worker.next("MESSAGE")).body == b"0"
        rig.cut("a", "b")
        sync = a.mesh_parts.takeover.sync
        sync.renew("a")
        await rig.kill("b")

        # The next life of it has nothing, and says so before a link is caught up.
        out = Outcome(now_us=a.environment.now_us())
        sync.peer_holds("b", "a", 2, [], out)
        a.engine.path.submit(out)

        assert await taken(await rig.connect("c"), 1) == [(b"0", MARKED)]


def test_what_may_have_been_seen_leaves_memory_as_other_messages_do() -> None:
    origin = Origin("a", 1)
    spare = {}
    for attempts in (0, MAYBE_SEEN, SEEN, 1):
        message = Message(Envelope(JOBS, DestinationKind.QUEUE, b"", True), b"x", origin, 1, 0)
        message.attempts = attempts
        spare[attempts] = is_spare(message, {origin: 1}, False)

    assert spare == {0: True, MAYBE_SEEN: True, SEEN: False, 1: False}
