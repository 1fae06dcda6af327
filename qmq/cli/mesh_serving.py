"""Who serves whose queue messages, put together from what each node of a mesh says about itself.

Every node knows the terms that it has heard of, so of an owner the highest term counts, whoever tells it; whether its
messages are dispatched now only the serving node knows. Where that one does not answer, the table says so:
nobody else can tell whether it is dead. What the words mean: docs/takeover.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .output import duration, table

WORDS: Final = {
    "serving": "serving",
    "waiting": "paused",
    "arriving": "takes over",
    "bidding": "asks for votes",
}
"""What the places of `qmq.broker.takeover.ownership` that matter here mean to an operator."""

SILENT: Final = "does not answer"
UNSERVED: Final = "not served"


@dataclass(frozen=True, slots=True)
class Served:
    """One owner of queue messages."""

    owner: str
    server: str
    term: int
    seconds: float | None
    """For how long that node has claimed it; None when it does not say."""
    lease_seconds: float | None
    state: str


def who_serves(pictures: Mapping[str, Mapping[str, Any]]) -> list[Served]:
    """One for each owner, from `takeover` of the status of the nodes that answer; none where takeover is off."""
    rows = {
        (node, str(row.get("owner"))): row
        for node, picture in pictures.items()
        if picture.get("active")
        for row in picture.get("owners") or ()
        if isinstance(row, dict)
    }
    return [_served(owner, pictures, rows) for owner in sorted({owner for _, owner in rows})]


def _served(owner: str, pictures: Mapping[str, object], rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Served:
    told = {node: row for (node, of), row in rows.items() if of == owner}
    latest = max(told.values(), key=_term)
    server = str(latest.get("server", owner))
    # Who is about to take over says so before the others have heard of its term.
    busy = [node for node, row in told.items() if row.get("place") in ("bidding", "arriving")]
    if busy and (told.get(server) or {}).get("place") not in ("serving", "waiting"):
        server = busy[0]
    says = told.get(server)
    if says is None:
        state = SILENT if server not in pictures else UNSERVED
        return Served(owner, server, _term(latest), None, None, state)
    state = WORDS.get(str(says.get("place")), UNSERVED)
    return Served(owner, server, _term(latest), says.get("seconds"), says.get("lease_seconds"), state)


def _term(row: Mapping[str, Any]) -> int:
    term = row.get("term")
    return term if isinstance(term, int) else 0


def serving_table(owners: list[Served]) -> list[str]:
    """For people."""
    rows = [
        [one.owner, one.server, one.term, "-" if one.seconds is None else duration(one.seconds), one.state]
        for one in owners
    ]
    return table(["MESSAGES OF", "SERVED BY", "TERM", "SINCE", "STATE"], rows)
