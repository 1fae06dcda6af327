"""Exclusive consumers and groups.

I27  messages of a group are read for the first time in the order in which their node accepted them
Without faults:
I23  from a moment after a consumer has come or gone until the next does, one consumer at most is given messages of an
     exclusive queue, and one those of each group, whatever waits at which node. A group that moves to a new consumer
     may do so later, when its old one has worked off what it has, but only once, and it does not come back
"""

from tests.simulation.ledger import MOMENT_SECONDS, Ledger
from tests.simulation.workloads.names import EXCLUSIVE


def overtaken(ledger: Ledger) -> list[str]:
    """I27."""
    return [f"I27: {what}" for what in ledger.overtaken]


def shared(ledger: Ledger) -> list[str]:
    """I23."""
    turns = ledger.turns
    takers: dict[tuple[str, float], list[str]] = {}
    for what, who, at, changed_at in turns.given:
        if at > changed_at + MOMENT_SECONDS:
            row = takers.setdefault((what, changed_at), [])
            if row[-1:] != [who]:
                row.append(who)
    return [
        f"I23: {' and '.join(sorted(set(row)))} were given messages of {what} at once, after {since:.3f}"
        for (what, since), row in takers.items()
        if len(row) > (1 if what == EXCLUSIVE else 2)
    ]
