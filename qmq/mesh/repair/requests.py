"""What a node that repairs itself asks of one peer: range snapshots, settles, durable subscriptions, dead incarnations.

Requests and responses are bounded and self-contained, so a link that ends costs one request. A response that is
malformed counts as none. `RepairResponder` responds from the stores of this node, one request at a time.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Annotated, Any, ClassVar, Final

import msgspec
import trio
from msgspec import Meta, Struct

from qmq.broker.broker import Broker
from qmq.broker.messages.destination import DestinationKind
from qmq.engine.parts import EngineParts
from qmq.errors import CorruptLog, Refused
from qmq.mesh.peers.calls import Count, Node, PeerCall, R, Text, Whole, check_incarnation
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.cursors import Move, Name
from qmq.model.dots import Dot, Origin
from qmq.replication.protocol.frames import PeerRequest
from qmq.replication.protocol.values import check_move, name_of, number, octets, origin_of, text
from qmq.storage.catalog.incarnations import Seal, Seals, pack_seals, unpack_seals
from qmq.storage.format.cursor_record import pack_move, unpack_move
from qmq.storage.format.failure_records import ATTEMPTS_MAX, pack_attempts, unpack_attempts
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.record import unpack_record
from qmq.storage.repair.range_snapshot import RangeSnapshot, nothing_left

DOTS_AT_ONCE: Final = 2000
"""Messages that one request names."""

CURSORS_BYTES: Final = 256 * 1024
"""Of durable subscriptions in one response, approximately."""


class RepairCall(PeerCall[R], frozen=True, array_like=True, tag_field="what"):
    """In msgpack, as an array."""

    kind: ClassVar = "repair"
    format: ClassVar[Any] = msgspec.msgpack


class Attempts(Struct, frozen=True, array_like=True):
    """How often a message of a queue has failed."""

    queue: Text
    sequence: Annotated[int, Meta(ge=1)]
    count: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)]


class SnapshotReply(Struct, frozen=True, array_like=True):
    """See `RangeSnapshot`."""

    through: Count
    lost: Count
    dropped: Count
    records: list[bytes]
    attempts: list[Attempts]

    @property
    def snapshot(self) -> RangeSnapshot:
        attempts = [(one.queue, one.sequence, one.count) for one in self.attempts]
        return RangeSnapshot(self.through, self.lost, self.dropped, self.records, attempts)


class SnapshotCall(RepairCall[SnapshotReply], frozen=True, tag="rest"):
    """What is left of a range of an incarnation; with `fanout` of that fanout at least.

    `row`: the queue store is missing it, so a node that is missing the same has nothing either. It is the only message
    of the range, or 0: a file was lost.
    """

    node: Node
    incarnation: int
    after: Count
    through: Count
    fanout: Text = ""
    row: Count | None = None

    def __post_init__(self) -> None:
        check_incarnation(self.incarnation)

    def request(self) -> PeerRequest:
        fields = msgspec.to_builtins(self)
        # An earlier version takes a sixth field for a row, even nil.
        return PeerRequest(self.kind, msgspec.msgpack.encode(fields if self.row is not None else fields[:-1]))

    def check(self, reply: SnapshotReply) -> None:
        number(reply.through, 0, self.through)
        for packed in reply.records:
            record = unpack_record(packed)
            number(record.sequence, 1)
            number(record.timestamp_us)
            text(record.destination)
            octets(record.headers)
            octets(record.body)
        for one in reply.attempts:
            name_of(one.queue, DestinationKind.QUEUE)
            number(one.sequence, self.after + 1, self.through)


class DotGroup(Struct, frozen=True, array_like=True):
    """Messages of one incarnation."""

    node: Node
    incarnation: int
    sequences: list[Whole]

    def __post_init__(self) -> None:
        check_incarnation(self.incarnation)


class SettledReply(Struct, frozen=True, array_like=True):
    """Which messages are settled, and how often others have failed, as in a record."""

    done: list[DotGroup]
    failed: bytes


class SettledCall(RepairCall[SettledReply], frozen=True, tag="settled"):
    """What a node knows of these messages, at most DOTS_AT_ONCE."""

    dots: list[DotGroup]

    def check(self, reply: SettledReply) -> None:
        unpack_attempts(reply.failed)


class SealsCall(RepairCall[list[Seal]], frozen=True, tag="seals"):
    """What a node knows of dead incarnations: node, incarnation, node, incarnation, …; see `incarnation_gc`."""

    flat: list[Any]

    def __post_init__(self) -> None:
        self.origins()

    def origins(self) -> list[Origin]:
        return [origin_of(*self.flat[at : at + 2]) for at in range(0, len(self.flat) - 1, 2)]

    @classmethod
    def encode_reply(cls, reply: list[Seal]) -> bytes:
        return pack_seals(reply)

    @classmethod
    def decode_reply(cls, data: bytes) -> list[Seal]:
        return unpack_seals(data)


class _Durables(Struct, frozen=True, array_like=True):
    moves: list[tuple[Text, bytes]]


class DurablesCall(RepairCall[list[Move]], frozen=True, tag="durables"):
    """Durable subscriptions whose name comes after `after`, by name."""

    after: tuple[Text, Text, Text] | None

    @classmethod
    def encode_reply(cls, reply: list[Move]) -> bytes:
        return msgspec.msgpack.encode([[(move.name.destination, pack_move(move)) for move in reply]])

    @classmethod
    def decode_reply(cls, data: bytes) -> list[Move]:
        found = msgspec.msgpack.decode(data, type=_Durables)
        moves = [unpack_move(destination, packed) for destination, packed in found.moves]
        for move in moves:
            check_move(move)
        return moves


async def ask_snapshot(
    rpc: PeerRpc, peer: str, missing: MissingRange, fanout: str = "", row: int | None = None
) -> RangeSnapshot | None:
    """A snapshot of a missing range from a peer's stores (`SnapshotCall`). None: no response."""
    origin, after, through = missing[:3]
    reply = await rpc.ask_one(peer, SnapshotCall(*origin, after, through, fanout, row))
    return None if reply is None else reply.snapshot


async def ask_settled(rpc: PeerRpc, peer: str, dots: list[Dot]) -> tuple[set[Dot], dict[Dot, int]] | None:
    """Which of these a peer knows as settled, and how often others have failed. None: no response."""
    reply = await rpc.ask_one(peer, SettledCall(_groups(dots)))
    return None if reply is None else (set(_dots(reply.done)), unpack_attempts(reply.failed))


def _groups(dots: Iterable[Dot]) -> list[DotGroup]:
    by_origin: dict[Origin, list[int]] = {}
    for origin, sequence in dots:
        by_origin.setdefault(origin, []).append(sequence)
    return [DotGroup(*origin, sequences) for origin, sequences in by_origin.items()]


def _dots(groups: Iterable[DotGroup]) -> list[Dot]:
    return [Dot(Origin(one.node, one.incarnation), sequence) for one in groups for sequence in one.sequences]


class RepairResponder:
    """`rows_searched`: what is missing of the queue store here although the journal was searched for it."""

    def __init__(
        self, engine: EngineParts, seals: Seals, rows_searched: Callable[[], Collection[MissingRange]]
    ) -> None:
        self._engine = engine
        self._seals = seals
        self._rows_searched = rows_searched
        self._answering = trio.Lock()

    async def answer(self, call: RepairCall[Any]) -> Any:
        """The reply of this node. Raises Refused."""
        engine = self._engine
        try:
            if isinstance(call, SealsCall):
                return self._seals.about(call.origins())
            if isinstance(call, DurablesCall):
                return _moves(engine.broker, None if call.after is None else Name(*call.after))
            async with self._answering:
                if isinstance(call, SettledCall):
                    return await self._answer_settled(_dots(call.dots))
                assert isinstance(call, SnapshotCall), call
                return _reply_of(await self._snapshot(call))
        except CorruptLog as error:
            raise Refused("log-unreadable", str(error)) from error
        finally:
            engine.damage.check()

    async def _snapshot(self, call: SnapshotCall) -> RangeSnapshot:
        origin = Origin(call.node, call.incarnation)
        try:
            return await self._answer_snapshot(origin, call.after, call.through, call.fanout, call.row)
        except CorruptLog:
            if call.fanout or call.row is not None:
                raise
            # Unknown until the damage is repaired. Without a response the peer could repair nothing else.
            return _nothing_new(call.after)

    async def _answer_snapshot(
        self, origin: Origin, after: int, through: int, fanout: str, row: int | None
    ) -> RangeSnapshot:
        engine = self._engine
        if origin in engine.broker.forgotten:
            return nothing_left(through)
        durable_subscriptions = engine.broker.durable_subscriptions
        given_up = durable_subscriptions.given_up.get(origin, 0)
        # The repair of a log needs only its messages, and has notified its readers itself.
        lost_ranges = [] if fanout else durable_subscriptions.lost_ranges.up_to(origin, through)
        searched_for = None if row is None else self._rows_searched()
        if row == 0 and not await engine.bring_up_stores():
            # A whole file is missing there, with the record of what is settled: nothing settled may come back from
            # here.
            return _nothing_new(after)
        read: Callable[[], RangeSnapshot] = partial(
            engine.store.repair_source.read, origin, after, through, given_up, fanout, lost_ranges, searched_for
        )
        snapshot = await engine.environment.run_blocking(read)
        if snapshot.through <= after and not snapshot.lost:
            await engine.bring_up_stores()
            snapshot = await engine.environment.run_blocking(read)
        if (
            row
            and row == through == after + 1
            and (snapshot.lost or snapshot.through <= after)
            and not snapshot.records
        ):
            packed = await engine.environment.run_blocking(engine.store.read_quarantined, Dot(origin, row))
            snapshot = snapshot if packed is None else RangeSnapshot(row, 0, 0, [packed])
        return snapshot

    async def _answer_settled(self, dots: list[Dot]) -> SettledReply:
        engine = self._engine
        # Also while this node has to ask others itself: what it knows as settled is settled.
        await engine.bring_up_stores()
        given_up = dict(engine.broker.durable_subscriptions.given_up)
        forgotten = frozenset(engine.broker.forgotten)
        known = await engine.environment.run_blocking(engine.store.repair_source.known_of, dots, given_up, forgotten)
        return SettledReply(_groups(known.done), pack_attempts(known.failed.items()))


def _nothing_new(after: int) -> RangeSnapshot:
    """The response of a node that does not know yet what it still holds."""
    return RangeSnapshot(after, 0, 0, [])


def _reply_of(snapshot: RangeSnapshot) -> SnapshotReply:
    through, lost, dropped, records, attempts = snapshot
    return SnapshotReply(through, lost, dropped, records, [Attempts(*one) for one in attempts])


def _moves(broker: Broker, after: Name | None) -> list[Move]:
    """Durable subscriptions whose name comes after `after`, by name."""
    found: list[Move] = []
    size = 0
    cursors = broker.durable_subscriptions.by_name
    for name in sorted(name for name in cursors if after is None or name > after):
        cursor = cursors[name]
        found.append(cursor.snapshot() if cursor.created_us else Move(name, 0, cursor.deleted_us))
        size += len(pack_move(found[-1]))
        if size > CURSORS_BYTES:
            break
    return found
