"""Messages that fail or expire.

I22  nothing is given later than its ttl and what a jump of the clock may add to it, and nothing expires before; where
     nothing goes wrong, all is given in time
cap  poison ends as one dead letter, after no more deliveries than its limit and the deaths of nodes explain

If no node hears an owner, the node that serves it by then does not know its counts and dead letters.
"""

from collections.abc import Collection

from tests.simulation.ledger import Ledger
from tests.simulation.plan import Plan
from tests.simulation.workloads.names import POISON
from tests.simulation.workloads.poison import LIMIT, TTL_SECONDS

HOLDS_NOTHING_UP = frozenset({"clock", "crash", "power", "power of all", "stop", "disk"})
"""Faults after which nothing that was sent arrives much later."""

CUTS = frozenset(
    {
        "break",
        "break clients",
        "cut",
        "cut one way",
        "flap",
        "halves",
        "isolate",
        "isolate one way",
        "partial",
        "ring",
        "swizzle",
    }
)
"""Faults that hold up nodes and no client."""

ON_THE_WAY_SECONDS = 1.0
FOLLOWS_PARTS = 8
"""As `qmq.engine.runtime.clock`: a clock that is corrected runs so much slower or faster."""

POLICY_LIMIT = 20
"""What counts for a delivery whose end only the owner has seen: its consumer's own limit is not known then."""


def late(plan: Plan, ledger: Ledger) -> list[str]:
    """I22, where no fault explains that something was on its way for long."""
    if not HOLDS_NOTHING_UP.issuperset(fault.name for fault in plan.script):
        return []
    most = TTL_SECONDS * (1 + 1 / FOLLOWS_PARTS) + ON_THE_WAY_SECONDS
    return [f"I22: {id} was given {age:.1f} s after its receipt" for id, age in ledger.ages.items() if age > most]


def early(ledger: Ledger) -> list[str]:
    """I22, while every node lived its first life: what has expired was not young, by whosever clock."""
    least = TTL_SECONDS * (1 - 2 / FOLLOWS_PARTS)  # its owner's clock may be too slow while its server's is too fast
    return [f"I22 early: {id} had expired at {age:.1f} s" for id, age in ledger.expired.items() if age < least]


def tried_too_often(plan: Plan, ledger: Ledger, lives: int) -> list[str]:
    """The cap: `lives` is how many all nodes had."""

    def most(id: str) -> int:
        # Of a consumer that dies the owner may not know the limit; the next one that refuses is asked for its own.
        return LIMIT + ledger.deaths.get(id, 0) if plan.quiet else POLICY_LIMIT + lives

    return [f"cap: {id} was tried {count} times" for id, count in ledger.tries.items() if count > most(id)]


def rejuvenated(plan: Plan, ledger: Ledger, taken_over: Collection[str]) -> list[str]:
    """A count that a client saw is on the owner's disk, so no client sees a lower one; if clients hear at once, and of
    owners that always served themselves."""
    if not (HOLDS_NOTHING_UP | CUTS).issuperset(fault.name for fault in plan.script):
        return []
    return [
        f"cap: {id} had delivery-count {before}, then {after}"
        for id, before, after in ledger.rejuvenated
        if ledger.sent[id].node not in taken_over
    ]


def dead_lettered_wrongly(ledger: Ledger, taken_over: Collection[str]) -> list[str]:
    """Poison that is not exactly one dead letter at the end, when no disk was lost.

    Of owners that were `taken_over`: that is not at least one.
    """
    letters = ledger.letters
    wrongs = [
        f"burial: {id} has {len(found)} dead letters"
        for id, found in letters.items()
        if len(found) > 1 and ledger.sent[id].node not in taken_over
    ]
    lost = [m.id for m in ledger.receipted if m.destination == POISON and m.id not in letters]
    return wrongs + [f"burial: {id} is poison and no dead letter" for id in lost]
