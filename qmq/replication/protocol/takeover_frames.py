"""What nodes tell each other about who serves whose queue messages (`qmq.broker.takeover.leases`), both ways over a
link.

Beats go over every link between two nodes, so that what follows a beat on
a link can be trusted to be as fresh as the echo in it; everything else goes over one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from qmq.broker.takeover.leases import Beat, Bid, Term
from qmq.dots import Dot, Vector
from qmq.replication.protocol.values import (
    array,
    check_dots,
    mapping,
    node_name,
    number,
    pack_dot_groups,
    pack_vector,
    truth,
    vector_of,
)


@dataclass(frozen=True, slots=True)
class HeartbeatFrame:
    """A beat."""

    beat: Beat


@dataclass(frozen=True, slots=True)
class Ask:
    """The sender, who is the candidate, asks for a vote."""

    bid: Bid


@dataclass(frozen=True, slots=True)
class Vote:
    """The sender has voted for the bid in that term; `has` is what it has durably."""

    owner: str
    number: int
    has: Vector


@dataclass(frozen=True, slots=True)
class Release:
    """Without `has`: the owner asks the node that serves it in that term to stop. With it: that has stopped, and its
    consumers' settles are in its records up to there. `lent` is what consumers of each node have."""

    owner: str
    number: int
    has: Vector | None = None
    lent: Mapping[str, list[Dot]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holds:
    """To the server of a new term: these messages of `owner` are with consumers of the sender."""

    owner: str
    number: int
    dots: list[Dot]


Terms = HeartbeatFrame | Ask | Vote | Release | Holds


def pack_terms(frame: Terms) -> tuple[str, list[object]]:
    """(destination, fields) of `frame`."""
    match frame:
        case HeartbeatFrame(beat):
            return "/mesh/beat", [
                beat.stamp_us,
                beat.echo_us,
                beat.wants_echo,
                beat.in_contact,
                dict(beat.claims),
                dict(beat.promises),
            ]
        case Ask(bid):
            released = None if bid.released is None else [bid.released.number, bid.released.server]
            return "/mesh/bid", [bid.owner, bid.term, bid.candidate, released]
        case Vote(owner, term, has):
            return "/mesh/vote", [owner, term, pack_vector(has)]
        case Release(owner, term, has, lent):
            packed = {peer: pack_dot_groups(dots) for peer, dots in lent.items()}
            return "/mesh/release", [owner, term, None if has is None else pack_vector(has), packed]
        case Holds(owner, term, dots):
            return "/mesh/holds", [owner, term, pack_dot_groups(dots)]


def numbers_of(value: object) -> Mapping[str, int]:
    """Owner → term."""
    return {node_name(owner): number(term) for owner, term in mapping(value).items()}


def heartbeats_of(fields: list[object]) -> HeartbeatFrame:
    return HeartbeatFrame(
        Beat(
            number(fields[0]),
            number(fields[1]),
            truth(fields[2]),
            truth(fields[3]),
            numbers_of(fields[4]),
            numbers_of(fields[5]),
        )
    )


def ask_of(fields: list[object]) -> Ask:
    released = None
    if fields[3] is not None:
        found = array(fields[3], 2)
        released = Term(number(found[0]), node_name(found[1]))
    return Ask(Bid(node_name(fields[0]), number(fields[1], 1), node_name(fields[2]), released))


def vote_of(fields: list[object]) -> Vote:
    return Vote(node_name(fields[0]), number(fields[1], 1), vector_of(fields[2]))


def release_of(fields: list[object]) -> Release:
    has = None if fields[2] is None else vector_of(fields[2])
    lent = {node_name(peer): check_dots(dots) for peer, dots in mapping(fields[3]).items()}
    return Release(node_name(fields[0]), number(fields[1]), has, lent)


def holds_of(fields: list[object]) -> Holds:
    return Holds(node_name(fields[0]), number(fields[1], 1), check_dots(fields[2]))
