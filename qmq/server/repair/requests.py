"""What a node that repairs itself asks of one peer: range snapshots, settles, durable subscriptions, dead incarnations.

Requests and responses are bounded and self-contained, so a link that ends costs one request. `responses` has the other
side. A response that is malformed counts as none.
"""

import logging
from typing import Final

import msgpack

from qmq.broker.messages.destination import DestinationKind
from qmq.cursors import Move
from qmq.dots import Dot, Origin
from qmq.errors import CorruptLog, MeshError
from qmq.replication.protocol.frames import PeerRequest
from qmq.replication.protocol.values import (
    array,
    check_dots,
    check_move,
    name_of,
    number,
    octets,
    pack_dot_groups,
    text,
)
from qmq.server.peers.kinds import RequestKind
from qmq.server.runtime.contexts import MeshPeers
from qmq.storage.format.cursor_record import unpack_move
from qmq.storage.format.failure_records import ATTEMPTS_MAX, unpack_attempts
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.record import unpack
from qmq.storage.repair.range_snapshot import RangeSnapshot

DOTS_AT_ONCE: Final = 2000
"""Messages that one request names."""

ELEMENTS_MAX: Final = 1_000_000
"""In a request or a response."""

log = logging.getLogger("qmq.repair")


def request_about(origins: list[Origin]) -> PeerRequest:
    """Ask a peer what it knows of dead incarnations; see `qmq.server.repair.incarnation_gc`."""
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
                [octets(packed) for packed in array(fields[3])],
                [_attempt(values, missing) for values in array(fields[4])],
            )
        )
    except MeshError as error:
        log.error("! %s: invalid snapshot of %s: %s", peer, origin, error.message)
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


def _attempt(values: object, missing: MissingRange) -> tuple[str, int, int]:
    queue, sequence, count = array(values, 3)[:3]
    return (
        name_of(queue, DestinationKind.QUEUE),
        number(sequence, missing.after + 1, missing.through),
        number(count, 1, ATTEMPTS_MAX),
    )
