"""The one frame about membership: what a node says of itself and of who has left, when a link begins and on change.

Both ends of a link send it. It goes out before anything that counts: a
follower tells it before its first Ack, so nothing that a learner has is ever taken for a copy.
"""

from dataclasses import dataclass
from typing import Final

from qmq.dots import Vector
from qmq.errors import MeshError
from qmq.members import Listing, Retirement, Standing
from qmq.replication.protocol.values import array, mapping, node_name, number, pack_vector, text, truth, vector_of

NAMES_MAX: Final = 1000
"""Of one list, and of retired nodes: far beyond what a mesh has in its life, and a bound all the same."""

DISK_CHARACTERS_MAX: Final = 100

PRINTS_MAX: Final = 1001
"""Of destinations; a node that has more policies tells one for all."""

PRINT_CHARACTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class MembershipFrame:
    """The standing of the node that sends it."""

    standing: Standing


def pack_standing(standing: Standing) -> list[object]:
    """version, names, disk, learner, [retired node, adopter, vector of its incarnations, …], prints of destinations,
    other names heard of and how many nodes each came by"""
    retired: list[object] = []
    for retirement in standing.retired:
        retired += (retirement.node, retirement.adopter, pack_vector(retirement.sealed))
    names = sorted(standing.listing.names)
    prints = None if standing.destinations is None else dict(standing.destinations)
    heard_of = dict(standing.heard_of)
    return [standing.listing.version, names, standing.disk, standing.is_learner, retired, prints, heard_of]


def check_standing(fields: list[object]) -> MembershipFrame:
    """The inverse. Raises MeshError."""
    names = [node_name(name) for name in array(fields[1])]
    disk = text(fields[2])
    retired = array(fields[4])
    told = mapping(fields[6])
    heard_of = {node_name(name): number(hops, 1) for name, hops in told.items()}
    if len(names) > NAMES_MAX or len(heard_of) > NAMES_MAX:
        raise MeshError("bad-frame", "more names than a mesh has")
    if len(retired) > 3 * NAMES_MAX or len(retired) % 3 or len(disk) > DISK_CHARACTERS_MAX:
        raise MeshError("bad-frame", "more names than a mesh has, or half a retirement")
    return MembershipFrame(
        Standing(
            listing=Listing(number(fields[0]), frozenset(names)),
            disk=disk,
            is_learner=truth(fields[3]),
            retired=tuple(_retirement(*retired[index : index + 3]) for index in range(0, len(retired), 3)),
            destinations=None if fields[5] is None else _prints(fields[5]),
            heard_of=heard_of,
        )
    )


def _prints(value: object) -> dict[str, str]:
    prints = {name: text(found) for name, found in mapping(value).items()}
    if len(prints) > PRINTS_MAX or any(len(found) > PRINT_CHARACTERS_MAX for found in prints.values()):
        raise MeshError("bad-frame", "more policies than a node sends")
    return {text(name): found for name, found in prints.items()}


def _retirement(node: object, adopter: object, sealed: object) -> Retirement:
    name = node_name(node)
    vector: Vector = {origin: last for origin, last in vector_of(mapping(sealed)).items() if origin.node == name}
    return Retirement(node=name, adopter=node_name(adopter), sealed=vector)
