"""Rows of a status that join what several running objects have; each object gives its own part by `statistics()`."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """`messages` are those that are not settled, `ready` those in memory that wait."""

    destination: str
    messages: int
    ready: int
    consumers: int


@dataclass(frozen=True, slots=True)
class FanoutRow:
    destination: str
    messages: int
    bytes: int
    subscribers: int


@dataclass(frozen=True, slots=True)
class DurableRow:
    """A durable subscription; `in_use` and `in_flight` are of this node."""

    destination: str
    name: str
    in_use: bool
    in_flight: int


@dataclass(frozen=True, slots=True)
class RetiredNode:
    node: str
    adopter: str


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """The peers file that this node uses, whether the node counts, and which nodes were retired."""

    peers_version: int
    members: list[str]
    learner: bool
    lists: int
    retired: list[RetiredNode]


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A peer: our link to it (`out`), its link to us (`in_`), and how many of our durable records it is missing."""

    name: str
    out: str
    in_: str
    caught_up: bool
    lag: int
    learner: bool
    peers_version: int
    topics_dropped: int
    topics_via: str | None
    topics_wanted: int
    last_error: str

    def facts(self) -> dict[str, Any]:
        """Ready for JSON, where `in_` is `in`."""
        return {name.removesuffix("_"): value for name, value in asdict(self).items()}
