"""Exclusive consumers and groups.

I27  messages of a group are read for the first time in the order in which their node accepted them
Without faults:
I23  from a moment after a consumer has come or gone until the next does, one consumer at most is given messages of an
     exclusive queue, whatever waits at which node. So it is with messages of a group that are sent from then on. Those
     of before each owner may give to a new consumer when the old one has worked off what it has, but it moves only
     once, and the old one gets no more of that owner's
"""

from tests.simulation.ledger import MOMENT_SECONDS, Ledger
from tests.simulation.workloads.names import EXCLUSIVE

ANY = "any owner"


def overtaken(ledger: Ledger) -> list[str]:
    """I27."""
    return [f"I27: {what}" for what in ledger.overtaken]


def shared(ledger: Ledger) -> list[str]:
    """I23."""
    takers: dict[tuple[str, float, str], list[str]] = {}
    for given in ledger.turns.given:
        settled_at = given.changed_at + MOMENT_SECONDS
        if given.at <= settled_at:
            continue
        rows = [ANY] if given.what == EXCLUSIVE or given.sent_at > settled_at else []
        if given.what != EXCLUSIVE:
            rows.append(given.owner)
        for owner in rows:
            row = takers.setdefault((given.what, given.changed_at, owner), [])
            if row[-1:] != [given.who]:
                row.append(given.who)
    return [
        f"I23: {' and '.join(sorted(set(row)))} were given messages of {what} at once, after {since:.3f}"
        for (what, since, owner), row in takers.items()
        if len(row) > (1 if owner == ANY else 2)
    ]
