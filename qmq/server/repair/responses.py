"""The responses of a node to peers that repair themselves, from its stores, one at a time; see `requests`."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, Protocol

import msgpack
import trio

from qmq.broker.broker import Broker
from qmq.cursors import Move, Name
from qmq.dots import Dot, Origin
from qmq.errors import CorruptLog, MeshError, Refused
from qmq.replication.protocol.values import array, check_dots, number, origin_of, pack_dot_groups, text
from qmq.server.repair.requests import ELEMENTS_MAX
from qmq.server.runtime.contexts import Engine, Repairing, Reporting
from qmq.storage.format.cursor_record import pack_move
from qmq.storage.format.failure_records import pack_attempts
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.record import unpack
from qmq.storage.repair.range_snapshot import RangeSnapshot, nothing_left

PICTURES_BYTES: Final = 256 * 1024
"""Of durable subscriptions in one response, approximately."""


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
                return _packed(_pictures(context.broker, after))
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
            return _packed(*nothing_left(through))
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
            packed = await context.environment.run_blocking(partial(context.store.read_quarantined, Dot(origin, row)))
            snapshot = snapshot if packed is None else RangeSnapshot(row, 0, 0, [packed])
        return _packed(*snapshot)

    async def _answer_settled(self, dots: list[Dot]) -> bytes:
        context = self._context
        # Also while this node has to ask others itself: what it knows as settled is settled.
        await context.bring_up_stores()
        given_up = dict(context.broker.durable_subscriptions.given_up)
        forgotten = frozenset(context.broker.forgotten)
        known = await context.environment.run_blocking(
            partial(context.store.repair_source.known_of, dots, given_up, forgotten)
        )
        return _packed(pack_dot_groups(known.done), pack_attempts(known.failed.items()))


def _nothing_new(after: int) -> bytes:
    """The response of a node that does not know yet what it still holds."""
    return _packed(*RangeSnapshot(after, 0, 0, []))


def _packed(*fields: object) -> bytes:
    return msgpack.packb(fields)  # type: ignore[no-any-return]


def _pictures(broker: Broker, after: Name | None) -> list[tuple[str, bytes]]:
    """Durable subscriptions whose name comes after `after`, by name."""
    found: list[tuple[str, bytes]] = []
    size = 0
    cursors = broker.durable_subscriptions.by_name
    for name in sorted(name for name in cursors if after is None or name > after):
        cursor = cursors[name]
        move = cursor.picture() if cursor.created_us else Move(name, 0, cursor.deleted_us)
        found.append((name.destination, pack_move(move)))
        size += len(found[-1][1])
        if size > PICTURES_BYTES:
            break
    return found
