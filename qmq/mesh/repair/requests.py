"""What a node that repairs itself asks of one peer: range snapshots, settles, durable subscriptions, dead incarnations.

Requests and responses are bounded and self-contained, so a link that ends costs one request. A response that is
malformed counts as none. `RepairResponder` responds from the stores of this node, one request at a time.
"""

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, Protocol

import msgpack
import trio

from qmq.broker.broker import Broker
from qmq.broker.messages.destination import DestinationKind
from qmq.engine.runtime.contexts import Engine, MeshPeers, Repairing, Reporting
from qmq.errors import CorruptLog, MeshError, Refused
from qmq.mesh.peers.kinds import RequestKind
from qmq.model.cursors import Move, Name
from qmq.model.dots import Dot, Origin
from qmq.replication.protocol.frames import PeerRequest
from qmq.replication.protocol.values import (
    array,
    check_dots,
    check_move,
    name_of,
    number,
    octets,
    origin_of,
    pack_dot_groups,
    text,
)
from qmq.storage.format.cursor_record import pack_move, unpack_move
from qmq.storage.format.failure_records import ATTEMPTS_MAX, pack_attempts, unpack_attempts
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.record import unpack, unpack_record
from qmq.storage.repair.range_snapshot import RangeSnapshot, nothing_left

DOTS_AT_ONCE: Final = 2000
"""Messages that one request names."""

ELEMENTS_MAX: Final = 1_000_000
"""In a request or a response."""

CURSORS_BYTES: Final = 256 * 1024
"""Of durable subscriptions in one response, approximately."""

log = logging.getLogger("qmq.repair")


def request_about(origins: list[Origin]) -> PeerRequest:
    """Ask a peer what it knows of dead incarnations; see `qmq.mesh.repair.incarnation_gc`."""
    return _packed("seals", [value for origin in origins for value in origin])


async def ask_snapshot(
    context: MeshPeers, peer: str, missing: MissingRange, fanout: str = "", row: int | None = None
) -> RangeSnapshot | None:
    """A snapshot of a missing range from a peer's stores; with `fanout` of that fanout at least. None: no response.

    `row`: the queue store is missing it, so a peer that is missing the same has nothing either. It is the only message
    of the range, or 0: a file was lost.
    """
    origin, after, through = missing[:3]
    request = _packed("rest", *origin, after, through, fanout, *(() if row is None else (row,)))
    fields = await _ask(context, peer, request, 5)
    try:
        return (
            None
            if fields is None
            else RangeSnapshot(
                number(fields[0], 0, through),
                number(fields[1]),
                number(fields[2]),
                [_record(packed) for packed in array(fields[3])],
                [_attempt(values, missing) for values in array(fields[4])],
            )
        )
    except (MeshError, CorruptLog) as error:
        log.error("! %s: invalid snapshot of %s: %s", peer, origin, error)
        return None


async def ask_settled(context: MeshPeers, peer: str, dots: list[Dot]) -> tuple[set[Dot], dict[Dot, int]] | None:
    """Which of these, at most DOTS_AT_ONCE, a peer knows as settled, and how often others have failed. None: no
    response."""
    fields = await _ask(context, peer, _packed("settled", pack_dot_groups(dots)), 2)
    try:
        return None if fields is None else (set(check_dots(fields[0])), unpack_attempts(octets(fields[1])))
    except (MeshError, CorruptLog):
        return None


async def ask_subscriptions(context: MeshPeers, peer: str, after: tuple[str, str, str] | None) -> list[Move] | None:
    """Durable subscriptions of a peer whose name comes after `after`, by name. None: no response."""
    fields = await _ask(context, peer, _packed("durables", after), 1)
    try:
        pairs = [] if fields is None else [array(pair, 2) for pair in array(fields[0])]
        moves = [unpack_move(text(destination), octets(packed)) for destination, packed, *_ in pairs]
        for move in moves:
            check_move(move)
    except (MeshError, CorruptLog, TypeError):
        return None
    return None if fields is None else moves


def _packed(*request: object) -> PeerRequest:
    return PeerRequest(RequestKind.REPAIR, msgpack.packb(request))


async def _ask(context: MeshPeers, peer: str, request: PeerRequest, least: int) -> list[object] | None:
    """At least so many fields of a response; None: no response."""
    answer = await context.ask_one(peer, request)
    try:
        return None if answer is None else array(unpack(answer, ELEMENTS_MAX), least)
    except (ValueError, MeshError, msgpack.UnpackException):
        return None


def _record(value: object) -> bytes:
    packed = octets(value)
    record = unpack_record(packed)
    number(record.sequence, 1)
    number(record.timestamp_us)
    text(record.destination)
    octets(record.headers)
    octets(record.body)
    return packed


def _attempt(values: object, missing: MissingRange) -> tuple[str, int, int]:
    queue, sequence, count = array(values, 3)[:3]
    return (
        name_of(queue, DestinationKind.QUEUE),
        number(sequence, missing.after + 1, missing.through),
        number(count, 1, ATTEMPTS_MAX),
    )


class ResponderContext(Engine, Reporting, Repairing, Protocol):
    def rows_searched_for(self) -> Collection[MissingRange]: ...

    def about_dead(self, origins: list[Origin]) -> bytes: ...


class RepairResponder:
    def __init__(self, context: ResponderContext) -> None:
        self._context = context
        self._answering = trio.Lock()

    async def answer(self, request: bytes) -> bytes:
        """The response of this node to a request of a peer. Raises Refused for an invalid request."""
        context = self._context
        try:
            fields = array(unpack(request, ELEMENTS_MAX), 1)
            what = fields[0]
            if what == "rest":
                origin = origin_of(fields[1], fields[2])
                fanout = text(fields[5]) if len(fields) > 5 else ""
                row = number(fields[6]) if len(fields) > 6 else None
                async with self._answering:
                    try:
                        return await self._answer_snapshot(origin, number(fields[3]), number(fields[4]), fanout, row)
                    except CorruptLog:
                        if fanout or row is not None:
                            raise
                        # Unknown until the damage is repaired. Without a response the peer could repair nothing else.
                        return _nothing_new(number(fields[3]))
            if what == "settled":
                dots = check_dots(fields[1])
                async with self._answering:
                    return await self._answer_settled(dots)
            if what == "seals":
                values = array(fields[1])
                return context.about_dead(
                    [origin_of(values[at], values[at + 1]) for at in range(0, len(values) - 1, 2)]
                )
            if what == "durables":
                after = None if fields[1] is None else Name(*map(text, array(fields[1], 3)[:3]))
                return _response(_cursors(context.broker, after))
        except (ValueError, IndexError, MeshError, msgpack.UnpackException) as error:
            raise Refused("bad-destination", f"an invalid repair request: {error}") from error
        except CorruptLog as error:
            raise Refused("log-unreadable", str(error)) from error
        finally:
            context.check_damage()
        raise Refused("bad-destination", "this node does not know this repair request")

    async def _answer_snapshot(self, origin: Origin, after: int, through: int, fanout: str, row: int | None) -> bytes:
        context = self._context
        if origin in context.broker.forgotten:
            return _response(*nothing_left(through))
        durable_subscriptions = context.broker.durable_subscriptions
        given_up = durable_subscriptions.given_up.get(origin, 0)
        # The repair of a log needs only its messages, and has notified its readers itself.
        lost_ranges = [] if fanout else durable_subscriptions.lost_ranges.up_to(origin, through)
        searched_for = None if row is None else context.rows_searched_for()
        if row == 0 and not await context.bring_up_stores():
            # A whole file is missing there, with the record of what is settled: nothing settled may come back from
            # here.
            return _nothing_new(after)
        read: Callable[[], RangeSnapshot] = partial(
            context.store.repair_source.read, origin, after, through, given_up, fanout, lost_ranges, searched_for
        )
        snapshot = await context.environment.run_blocking(read)
        if snapshot.through <= after and not snapshot.lost:
            await context.bring_up_stores()
            snapshot = await context.environment.run_blocking(read)
        if (
            row
            and row == through == after + 1
            and (snapshot.lost or snapshot.through <= after)
            and not snapshot.records
        ):
            packed = await context.environment.run_blocking(context.store.read_quarantined, Dot(origin, row))
            snapshot = snapshot if packed is None else RangeSnapshot(row, 0, 0, [packed])
        return _response(*snapshot)

    async def _answer_settled(self, dots: list[Dot]) -> bytes:
        context = self._context
        # Also while this node has to ask others itself: what it knows as settled is settled.
        await context.bring_up_stores()
        given_up = dict(context.broker.durable_subscriptions.given_up)
        forgotten = frozenset(context.broker.forgotten)
        known = await context.environment.run_blocking(context.store.repair_source.known_of, dots, given_up, forgotten)
        return _response(pack_dot_groups(known.done), pack_attempts(known.failed.items()))


def _nothing_new(after: int) -> bytes:
    """The response of a node that does not know yet what it still holds."""
    return _response(*RangeSnapshot(after, 0, 0, []))


def _response(*fields: object) -> bytes:
    return msgpack.packb(fields)  # type: ignore[no-any-return]


def _cursors(broker: Broker, after: Name | None) -> list[tuple[str, bytes]]:
    """Durable subscriptions whose name comes after `after`, by name."""
    found: list[tuple[str, bytes]] = []
    size = 0
    cursors = broker.durable_subscriptions.by_name
    for name in sorted(name for name in cursors if after is None or name > after):
        cursor = cursors[name]
        move = cursor.snapshot() if cursor.created_us else Move(name, 0, cursor.deleted_us)
        found.append((name.destination, pack_move(move)))
        size += len(found[-1][1])
        if size > CURSORS_BYTES:
            break
    return found
