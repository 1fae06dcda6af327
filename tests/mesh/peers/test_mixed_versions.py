"""A node of a later version in a mesh, over real links: what it knows and the others do not passes unharmed.

The later version names one feature more, has one header and two fields more in each frame, and writes records of a
kind that no node here knows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.config import DestinationPolicy, DestinationSettings
from qmq.model.dots import Dot, Origin
from qmq.node.node import Node
from qmq.replication.protocol import frame_table, handshake
from qmq.storage.format.batch import batch_records, verify_batch
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually, send, subscribe
from tests.storage.test_version_1 import FILES
from tests.support.conditions import reported

FUTURE_KIND = 250
VARYING = frozenset({"/mesh/lend"})
"""Frames whose last fields are there only when they say something: what a later version adds comes behind them."""


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The nodes that are of a later version."""
    nodes: set[str] = set()
    describe, fields_of = handshake._self_description, frame_table._fields

    def self_description(mine: handshake.PeerIdentity) -> list[tuple[str, str]]:
        named = dict(describe(mine))
        if mine.origin.node in nodes:
            named["features"] += ",telepathy"
            named["mood"] = "hopeful"
        return list(named.items())

    def longer(frame: Any) -> tuple[str, list[object]]:
        destination, fields = fields_of(frame)
        is_longer = nodes and destination not in VARYING
        return destination, [*fields, "news", {"of": "tomorrow"}] if is_longer else fields

    monkeypatch.setattr(handshake, "_self_description", self_description)
    monkeypatch.setattr(frame_table, "_fields", longer)
    yield nodes


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The nodes that are of an earlier version: they name no features."""
    nodes: set[str] = set()
    describe = handshake._self_description

    def self_description(mine: handshake.PeerIdentity) -> list[tuple[str, str]]:
        named = dict(describe(mine))
        if mine.origin.node in nodes:
            named["features"] = ""
        return list(named.items())

    monkeypatch.setattr(handshake, "_self_description", self_description)
    yield nodes


def batches_of(node: Node, origin: Origin) -> list[bytes]:
    """What the node's journal holds of one origin, byte for byte."""
    journal = node.store.journal
    found: list[bytes] = []
    position = journal.start
    while read := journal.read(position, 1 << 20):
        found += [data for _, head, data in read if head.origin == origin]
        position = read[-1][0] + read[-1][1].size
    return found


def write_unknown(node: Node, body: bytes) -> None:
    """A record of a kind that this version does not know, in the midst of known ones."""
    out = Outcome(now_us=node.environment.now_us())
    node.broker.note_fact(FUTURE_KIND, body, node.environment.now_us(), out)
    node.engine.path.submit(out)


def trouble(mesh: MeshRig) -> list[tuple[str, str]]:
    """Conditions and events that say that nodes do not understand each other."""
    quiet = {"new-disk", "definitions-behind"}
    return [
        (name, one["message"])
        for name, node in mesh.nodes.items()
        for one in reported(node)
        if one["code"] not in quiet
    ]


async def exchange(mesh: MeshRig, step: str = "once") -> None:
    """A queue message and a fanout message from every node to every other one, under names of this step."""
    for name in mesh.nodes:
        sender = await mesh.connect(name)
        for other in mesh.nodes:
            receiver = await mesh.connect(other)
            queue, fanout = f"/queue/{step}.{name}.{other}", f"/fanout/{step}.{name}.{other}"
            await receiver.send(subscribe(queue), subscribe(fanout, id="1"))
            await sender.send(send(queue, "job", "r1"), send(fanout, "news", "r2"))
            assert sorted(await receiver.messages(2)) == [b"job", b"news"]


@pytest.mark.parametrize("names", ["b", "ac"])
async def test_nodes_of_a_later_version_work_with_those_of_this_one(
    names: str, later: set[str], autojump_clock: MockClock
) -> None:
    later.update(names)
    async with MeshRig("a", "b", "c").run() as mesh:
        await exchange(mesh)

        assert trouble(mesh) == []


def versions_of(node: Node, origin: Origin) -> list[int]:
    """Of the node's batches of one origin that hold a message to a fanout, and no definition."""
    return [
        verify_batch(data).version
        for data in batches_of(node, origin)
        if any(getattr(record, "destination", "").startswith("/fanout/") for record in batch_records(data))
    ]


async def test_a_shared_body_is_written_once_as_soon_as_every_member_reads_that(
    earlier: set[str], autojump_clock: MockClock
) -> None:
    children = DestinationPolicy(pattern="/fanout/f", children=("/queue/x", "/queue/y"))
    mesh = MeshRig("a", "b", "c", destinations=DestinationSettings(policies=(children,)))
    earlier.add("c")
    async with mesh.run():

        async def publish(receipt: str) -> None:
            sender = await mesh.connect("a")
            await sender.send(send("/fanout/f", receipt * 100, receipt))
            await sender.receipt()

        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await publish("1")
        assert versions_of(a, a.origin) == [1]

        # A member that is away may come back as it was.
        await mesh.stop("c")
        await publish("2")
        assert versions_of(a, a.origin) == [1, 1]

        earlier.clear()
        await mesh.start("c")
        await mesh.until_linked()
        await publish("3")
        assert versions_of(a, a.origin) == [1, 1, 2]

        # It has said so in this life of a.
        await mesh.stop("c")
        await publish("4")
        assert versions_of(a, a.origin) == [1, 1, 2, 2]

        c = await mesh.start("c")
        last = a.engine.path.durable_vector()[a.origin]
        await eventually(
            lambda: c.engine.path.durable_vector().get(a.origin) == b.engine.path.durable_vector().get(a.origin) == last
        )
        assert batches_of(c, a.origin) == batches_of(b, a.origin) == batches_of(a, a.origin)

        earlier.add("c")
        await mesh.stop("c")
        await mesh.start("c")
        await mesh.until_linked()
        await publish("5")
        assert versions_of(a, a.origin) == [1, 1, 2, 2, 1]
        assert trouble(mesh) == []


async def test_a_member_that_a_node_has_not_met_in_this_life_may_be_of_an_earlier_version(
    autojump_clock: MockClock,
) -> None:
    children = DestinationPolicy(pattern="/fanout/f", children=("/queue/x", "/queue/y"))
    mesh = MeshRig("a", "b", "c", destinations=DestinationSettings(policies=(children,)))
    async with mesh.run():
        await mesh.stop("c")
        await mesh.stop("a")
        a = await mesh.start("a")
        await eventually(lambda: a.mesh.linked() == {"b"})

        for receipt, versions in (("1", [1]), ("2", [1, 2])):
            sender = await mesh.connect("a")
            await sender.send(send("/fanout/f", receipt * 100, receipt))
            await sender.receipt()
            assert versions_of(a, a.origin) == versions
            if receipt == "1":
                await mesh.start("c")
                await mesh.until_linked()


async def test_copies_with_one_body_outlive_a_restart_and_reach_consumers_of_each_queue(
    autojump_clock: MockClock,
) -> None:
    children = DestinationPolicy(pattern="/fanout/f", children=("/queue/x", "/queue/y", "/queue/z"))
    mesh = MeshRig("a", "b", destinations=DestinationSettings(policies=(children,)))
    async with mesh.run():
        sender = await mesh.connect("a")
        for number in range(5):
            await sender.send(send("/fanout/f", str(number) * 100, f"r{number}"))
        assert [await sender.receipt() for _ in range(5)]
        first = await mesh.connect("b")
        await first.send(subscribe("/queue/x", id="x"))
        bodies = [str(number).encode() * 100 for number in range(5)]
        assert await first.messages(5) == bodies
        a = mesh.nodes["a"]
        assert set(versions_of(a, a.origin)) == {2}
        await a.engine.checkpoints.checkpoint()
        await sender.send(send("/fanout/f", "5" * 100, "r5"))
        await sender.receipt()
        assert await first.messages(1) == [b"5" * 100]

        await mesh.stop("a")
        await mesh.start("a")
        await mesh.until_linked()

        reader = await mesh.connect("b")
        await reader.send(subscribe("/queue/y", id="y"))
        assert sorted(await reader.messages(6)) == [*bodies, b"5" * 100]
        local = await mesh.connect("a")
        await local.send(subscribe("/queue/z", id="z"))
        assert sorted(await local.messages(6)) == [*bodies, b"5" * 100]


async def test_records_of_unknown_kinds_are_relayed_byte_for_byte(later: set[str], autojump_clock: MockClock) -> None:
    later.add("a")
    async with MeshRig("a", "b", "c").run() as mesh:
        mesh.cut("a", "c")
        a, b, c = (mesh.nodes[name] for name in "abc")
        sender = await mesh.connect("a")
        await sender.send(send("/fanout/log", "before", "r1", from_tomorrow="yes"))
        await sender.receipt()

        write_unknown(a, msgpack.packb({"what": "nobody knows"}))
        await sender.send(send("/fanout/log", "after", "r2"))
        await sender.receipt()
        last = a.engine.path.durable_vector()[a.origin]
        await eventually(lambda: c.engine.path.durable_vector().get(a.origin) == last)

        assert batches_of(c, a.origin) == batches_of(b, a.origin) == batches_of(a, a.origin)
        assert any(bytes([FUTURE_KIND]) in data for data in batches_of(c, a.origin))
        reader = await mesh.connect("c")
        await reader.send(subscribe("/fanout/log"))
        assert await reader.messages(2) == [b"before", b"after"]
        assert trouble(mesh) == []


async def test_an_unknown_record_outlives_a_checkpoint_and_a_restart_of_its_relay(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await mesh.stop("c")
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        write_unknown(a, b"from a later version")
        last = a.broker.next_sequence - 1
        await eventually(lambda: b.engine.path.durable_vector().get(a.origin) == last)
        await b.engine.checkpoints.checkpoint()
        await mesh.stop("a")
        await mesh.stop("b")

        b = await mesh.start("b")
        c = await mesh.start("c")

        await eventually(lambda: c.engine.path.durable_vector().get(a.origin) == last)
        assert batches_of(c, a.origin) == batches_of(b, a.origin)


async def test_one_node_after_the_other_is_upgraded_and_goes_back(later: set[str], autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        for change in (later.add, later.discard):
            for name in "abc":
                await mesh.stop(name)
                change(name)
                await mesh.start(name)
                await mesh.until_linked()
                await exchange(mesh, f"{change.__name__}-{name}")

        assert trouble(mesh) == []
        assert all(node.membership.may_vote for node in mesh.nodes.values())


async def test_a_directory_of_version_1_joins_a_mesh_and_gives_all_it_has_unchanged(autojump_clock: MockClock) -> None:
    mesh = MeshRig("a", "b", "c")
    for path in (Path(FILES) / "journal").iterdir():
        mesh.disks["a"].put(f"journal/{path.name}", path.read_bytes())
    async with mesh.run():
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        old = Origin("a", 0xA1)
        await eventually(lambda: b.engine.path.durable_vector().get(old) == 7)

        assert batches_of(b, old) == batches_of(a, old)
        worker = await mesh.connect("b")
        await worker.send(subscribe("/queue/q", ack="client-individual"))
        ids = [(await worker.next("MESSAGE")).head.headers["message-id"] for _ in range(2)]
        assert set(ids) <= {str(Dot(old, number)) for number in range(1, 8)}
