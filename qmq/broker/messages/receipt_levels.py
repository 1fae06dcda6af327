"""Receipt levels: how many disks hold what a receipt is about, before it is sent.

A level is a number: `ACCEPTED` does not even wait for this node's disk, `FSYNC` waits for it, and k > 0 also for the
disks of k other nodes. Higher is stronger. `QUORUM`, added to a level from `FSYNC` on, asks for something else besides:
that no server will hand out again what was acknowledged (`qmq.broker.takeover.quorum_acks`). One more is about no disk:
`HEARD` waits until every peer that can be reached sends what was just subscribed to. Waiting is left to
`qmq.engine.commit.replica_acks`.
"""

from collections.abc import Iterable
from typing import Final

from qmq.errors import Refused

HEARD: Final = -2
ACCEPTED: Final = -1
FSYNC: Final = 0
REPLICAS_MAX: Final = 7
"""A mesh has at most 8 nodes."""
QUORUM: Final = 16
"""Beyond every number of disks."""

NO_DISK: Final = "this node keeps everything in memory, and loses it when it stops"

ACK_LEVELS: Final = ("edge", "quorum")
"""What an ACK may ask for: durable here, or nowhere to be handed out again."""


def level_of(text: str) -> int | None:
    """The level that a word stands for; None when it is no such word."""
    if text == "accepted":
        return ACCEPTED
    if text == "fsync":
        return FSYNC
    word, _, number = text.partition("=")
    if word == "replicas" and len(number) == 1 and "1" <= number <= str(REPLICAS_MAX):
        return int(number)
    return None


def asked_level(text: str, level_max: int) -> int:
    """The level that a header asks for, at a node that gives at most `level_max`: ACCEPTED without a disk, else the
    number of other nodes. Raises Refused."""
    level = level_of(text)
    if level_max < FSYNC and level != ACCEPTED:
        raise Refused("bad-receipt-level", f"The header receipt-level is accepted: {NO_DISK}.")
    if level is None or level > level_max:
        most = f", replicas=1 up to replicas={level_max}" if level_max > 1 else ""
        most = ", replicas=1" if level_max == 1 else most
        raise Refused(
            "bad-receipt-level",
            f"The header receipt-level is one of accepted, fsync{most}: the mesh has {1 + level_max} "
            f"node{'s' if level_max else ''}.",
        )
    return level


def asks_quorum(text: str, level_max: int = FSYNC) -> bool:
    """What a header `ack-level` says, at a node that gives at most `level_max` as above. Raises Refused."""
    if text not in ACK_LEVELS:
        raise Refused("bad-ack-level", f"The header ack-level is one of {', '.join(ACK_LEVELS)}.")
    if text == "quorum" and level_max < FSYNC:
        raise Refused("bad-ack-level", f"The header ack-level is edge: {NO_DISK}.")
    return text == "quorum"


def with_quorum(level: int) -> int:
    """`level`, and QUORUM. What is `accepted` only, no other node has."""
    return max(level, FSYNC) + QUORUM


def disks_of(level: int) -> int:
    """`level` without QUORUM."""
    return level - QUORUM if level >= QUORUM else level


def strongest(levels: Iterable[int]) -> int:
    """The level that has everything that any of `levels` asks for; FSYNC for none."""
    asked = list(levels)
    disks = max([disks_of(level) for level in asked], default=FSYNC)
    return with_quorum(disks) if any(level >= QUORUM for level in asked) else disks
