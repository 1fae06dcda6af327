"""The states of an owner's messages, as one node sees them: for the status, and for the table of docs/takeover.md."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qmq.broker.takeover.campaigns import NodeView
from qmq.broker.takeover.elections import Elections


class OwnerState(StrEnum):
    """Where the messages of one owner stand, as one node sees it."""

    OTHERS = "another serves"
    """Or none does: this node delivers none of them."""
    BIDDING = "bidding"
    """This node asks for votes."""
    ARRIVING = "arriving"
    """A majority has voted: what the voters have is fetched, and all nodes are asked what their consumers hold."""
    SERVING = "serving"
    """This node hands them out."""
    WAITING = "waiting"
    """It would, but has no lease."""


TRANSITIONS: Final[tuple[tuple[OwnerState | str, str, OwnerState], ...]] = (
    ("start", "its own messages", OwnerState.WAITING),
    ("start", "messages of another node", OwnerState.OTHERS),
    (OwnerState.OTHERS, "silent for takeover_after_seconds, and this node's turn", OwnerState.BIDDING),
    (OwnerState.OTHERS, "own messages, and released or silent", OwnerState.BIDDING),
    (OwnerState.BIDDING, "votes of a majority", OwnerState.ARRIVING),
    (OwnerState.BIDDING, "too few votes in time", OwnerState.OTHERS),
    (OwnerState.ARRIVING, "all is here, lease", OwnerState.SERVING),
    (OwnerState.ARRIVING, "a later term, or too late", OwnerState.OTHERS),
    (OwnerState.SERVING, "no majority echoes, or away", OwnerState.WAITING),
    (OwnerState.WAITING, "lease", OwnerState.SERVING),
    (OwnerState.SERVING, "a later term, or the owner asks", OwnerState.OTHERS),
    (OwnerState.WAITING, "a later term, or not its own", OwnerState.OTHERS),
)
"""What can happen; `elections` and `qmq.mesh.membership.takeover_sync` make it so."""


@dataclass(frozen=True, slots=True)
class OwnerStatistics:
    """One owner."""

    owner: str
    server: str
    term: int
    place: str
    """The name of its state, in lower case."""
    seconds: float | None
    """For which this node has claimed it without a break."""
    lease_seconds: float


@dataclass(frozen=True, slots=True)
class TakeoverStatistics:
    """Which node serves which owner, as far as one node knows."""

    active: bool
    may_hand_out: bool
    serves: Collection[str]
    owners: Collection[OwnerStatistics]


def takeover_statistics(elections: Elections, now: float, view: NodeView, *, is_held: bool) -> TakeoverStatistics:
    """A snapshot. `is_held`: the node delivers no queue messages."""
    rules = elections.rules

    def state_of(owner: str, lease_seconds: float) -> OwnerState:
        if owner in view.syncs:
            return OwnerState.ARRIVING
        if owner in view.serves:
            return OwnerState.SERVING if lease_seconds > 0 and not is_held else OwnerState.WAITING
        return OwnerState.BIDDING if owner in elections.campaigns.by_owner else OwnerState.OTHERS

    def statistics_of(owner: str) -> OwnerStatistics:
        term, claim = rules.term_of(owner), rules.claims.get(owner)
        lease_seconds = rules.lease_until(owner, now) - now
        return OwnerStatistics(
            owner,
            term.server,
            term.number,
            state_of(owner, lease_seconds).name.lower(),
            None if claim is None else round(now - claim.since, 1),
            round(max(0.0, min(lease_seconds, rules.after)), 1),
        )

    owners = [statistics_of(owner) for owner in rules.members]
    return TakeoverStatistics(elections.is_active, not is_held, sorted(view.serves), owners)


def page() -> str:
    """The rows of docs/takeover.md: a state, an event, and the next state."""
    return "\n".join(f"| {here} | {event} | {there} |" for here, event, there in TRANSITIONS)


if __name__ == "__main__":
    print(page())
