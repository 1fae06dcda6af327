"""Nodes of neighbouring versions in one mesh, over real links: what one knows and another does not passes unharmed.

The twin of an earlier node names only the features of that version, uses no others, and takes a frame that it does not
know for an error. The twin of a later one names a feature more, lengthens every frame, and writes records that nobody
here has heard of.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.dots import Dot, Origin
from qmq.errors import MeshError
from qmq.replication.protocol import frames, handshake
from qmq.replication.protocol.conversation import Conversation
from qmq.server.node import Node
from tests.server.mesh_rig import MeshRig
from tests.server.rig import eventually, send, subscribe
from tests.storage.test_version_1 import FILES

FUTURE_KIND = 250
FIRST_FRAMES = frozenset(
    "/mesh/" + name
    for name in (
        "ack held interest credit settled returned welcome journal gap hole topics lend forgotten retained replies "
        "question answer"
    ).split()
)
"""What the first version of links knew."""

VARYING = frozenset({"/mesh/lend"})
"""Frames whose last fields are there only when they say something: what a later version adds comes behind them."""


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Node → `old` or `future`; those that are not in it are of this version."""
    of: dict[str, str] = {}
    describe, check, decode, fields_of = (
        handshake._self_description,
        handshake._check_partner,
        Conversation._decode,
        frames._fields,
    )

    def self_description(mine: handshake.PeerIdentity) -> list[tuple[str, str]]:
        named = dict(describe(mine))
        if of.get(mine.origin.node) == "old":
            named["features"] = "asking,retained"
        elif of.get(mine.origin.node) == "future":
            named["features"] += ",telepathy"
            named["mood"] = "hopeful"
        return list(named.items())

    def check_partner(headers: dict[str, str], mine: handshake.PeerIdentity) -> handshake.Partner:
        partner = check(headers, mine)
        if of.get(mine.origin.node) == "old":
            return replace(partner, features=partner.features & {"asking", "retained"})
        return partner

    def strict_decode(conversation: Conversation, destination: str, frame: Any) -> Any:
        node = conversation._handshake._identity.origin.node
        if of.get(node) == "old" and destination not in FIRST_FRAMES:
            raise MeshError("bad-frame", f"{destination} means nothing to an old node")
        return decode(conversation, destination, frame)

    def longer(frame: Any) -> tuple[str, list[object]]:
        destination, fields = fields_of(frame)
        is_longer = "future" in of.values() and destination not in VARYING
        return destination, [*fields, "news", {"of": "tomorrow"}] if is_longer else fields

    monkeypatch.setattr(handshake, "_self_description", self_description)
    monkeypatch.setattr(handshake, "_check_partner", check_partner)
    monkeypatch.setattr(Conversation, "_decode", strict_decode)
    monkeypatch.setattr(frames, "_fields", longer)
    yield of


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
    node.submit(out)


def trouble(mesh: MeshRig) -> list[tuple[str, str]]:
    """Alarms that say that nodes do not understand each other."""
    quiet = {"new-disk"}
    return [
        (name, alarm["message"])
        for name, node in mesh.nodes.items()
        for alarm in node.alarms.list()
        if alarm["code"] not in quiet
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


@pytest.mark.parametrize(
    "kinds", [("old", "", ""), ("old", "old", ""), ("", "future", ""), ("old", "", "future"), ("old", "old", "future")]
)
async def test_nodes_of_neighbouring_versions_work_together(
    kinds: tuple[str, ...], versions: dict[str, str], autojump_clock: MockClock
) -> None:
    versions.update({name: kind for name, kind in zip("abc", kinds, strict=True) if kind})
    async with MeshRig("a", "b", "c").run() as mesh:
        await exchange(mesh)

        assert trouble(mesh) == []


@pytest.mark.parametrize("between", ["", "old"])
async def test_records_of_unknown_kinds_are_relayed_byte_for_byte(
    between: str, versions: dict[str, str], autojump_clock: MockClock
) -> None:
    versions.update({"a": "future", "c": "old"} | ({"b": between} if between else {}))
    async with MeshRig("a", "b", "c").run() as mesh:
        mesh.cut("a", "c")
        a, b, c = (mesh.nodes[name] for name in "abc")
        sender = await mesh.connect("a")
        await sender.send(send("/fanout/log", "before", "r1", from_tomorrow="yes"))
        await sender.receipt()

        write_unknown(a, msgpack.packb({"what": "nobody knows"}))
        await sender.send(send("/fanout/log", "after", "r2"))
        await sender.receipt()
        last = a.durable_vector()[a.origin]
        await eventually(lambda: c.durable_vector().get(a.origin) == last)

        assert batches_of(c, a.origin) == batches_of(b, a.origin) == batches_of(a, a.origin)
        assert any(bytes([FUTURE_KIND]) in data for data in batches_of(c, a.origin))
        reader = await mesh.connect("c")
        await reader.send(subscribe("/fanout/log"))
        assert await reader.messages(2) == [b"before", b"after"]
        assert trouble(mesh) == []


async def test_an_unknown_record_outlives_a_checkpoint_and_a_restart_of_who_relays_it(
    versions: dict[str, str], autojump_clock: MockClock
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await mesh.stop("c")
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        write_unknown(a, b"from a later version")
        last = a.broker.next_sequence - 1
        await eventually(lambda: b.durable_vector().get(a.origin) == last)
        await b.checkpoints.checkpoint()
        await mesh.stop("a")
        await mesh.stop("b")

        b = await mesh.start("b")
        c = await mesh.start("c")

        await eventually(lambda: c.durable_vector().get(a.origin) == last)
        assert batches_of(c, a.origin) == batches_of(b, a.origin)


async def test_one_node_after_the_other_is_upgraded_and_goes_back(
    versions: dict[str, str], autojump_clock: MockClock
) -> None:
    versions.update(dict.fromkeys("abc", "old"))
    async with MeshRig("a", "b", "c").run() as mesh:
        for step in ("", "old"):
            for name in "abc":
                await mesh.stop(name)
                versions[name] = step
                await mesh.start(name)
                await mesh.until_linked()
                await exchange(mesh, f"{step or 'new'}-{name}")

        assert trouble(mesh) == []
        assert all(node.membership.may_vote for node in mesh.nodes.values())


async def test_a_directory_of_version_1_joins_a_mesh_and_gives_all_it_has_unchanged(autojump_clock: MockClock) -> None:
    mesh = MeshRig("a", "b", "c")
    for path in (Path(FILES) / "journal").iterdir():
        mesh.disks["a"].put(f"journal/{path.name}", path.read_bytes())
    async with mesh.run():
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        old = Origin("a", 0xA1)
        await eventually(lambda: b.durable_vector().get(old) == 7)

        assert batches_of(b, old) == batches_of(a, old)
        worker = await mesh.connect("b")
        await worker.send(subscribe("/queue/q", ack="client-individual"))
        ids = [(await worker.next("MESSAGE")).head.headers["message-id"] for _ in range(2)]
        assert set(ids) <= {str(Dot(old, number)) for number in range(1, 8)}
