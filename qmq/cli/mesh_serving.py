"""Which node serves which owner's queue messages, merged from the status of each node of a mesh.

Every node knows the terms that reached it, so the highest term of an owner counts, whichever node reports it. Only the
serving node knows whether it dispatches the messages now. If that node does not answer, the table says so, because no
other node can know whether it is dead. The states are explained in docs/takeover.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .output import duration, table

SERVING: Final = "serving"
WORDS: Final = {
    "serving": SERVING,
    "waiting": "paused",
    "arriving": "takes over",
    "bidding": "asks for votes",
}
"""Place in `qmq.broker.takeover.leases` → the state that operators see."""

SILENT: Final = "does not answer"
UNSERVED: Final = "not served"


@dataclass(frozen=True, slots=True)
class Served:
    """One owner of queue messages."""

    owner: str
    server: str
    term: int
    seconds: float | None
    """For how long that node has claimed it; None if it does not say."""
    lease_seconds: float | None
    state: str


def merge_serving(reports: Mapping[str, Mapping[str, Any]]) -> list[Served]:
    """One for each owner, from `takeover` in the status of the nodes that answer; none if takeover is off."""
    rows = {
        (node, str(row.get("owner"))): row
        for node, report in reports.items()
        if report.get("active")
        for row in report.get("owners") or ()
        if isinstance(row, dict)
    }
    return [_served(owner, reports, rows) for owner in sorted({owner for _, owner in rows})]


def _served(owner: str, reports: Mapping[str, object], rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Served:
    by_node = {node: row for (node, of), row in rows.items() if of == owner}
    latest = max(by_node.values(), key=_term)
    server = str(latest.get("server", owner))
    # A candidate shows its takeover before its term has reached the other nodes.
    busy = [node for node, row in by_node.items() if row.get("place") in ("bidding", "arriving")]
    if busy and (by_node.get(server) or {}).get("place") not in ("serving", "waiting"):
        server = busy[0]
    row = by_node.get(server)
    if row is None:
        state = SILENT if server not in reports else UNSERVED
        return Served(owner, server, _term(latest), None, None, state)
    state = WORDS.get(str(row.get("place")), UNSERVED)
    return Served(owner, server, _term(latest), row.get("seconds"), row.get("lease_seconds"), state)


def _term(row: Mapping[str, Any]) -> int:
    term = row.get("term")
    return term if isinstance(term, int) else 0


def serving_table(owners: list[Served]) -> list[str]:
    """The table for people."""
    rows = [
        [one.owner, one.server, one.term, "-" if one.seconds is None else duration(one.seconds), one.state]
        for one in owners
    ]
    return table(["MESSAGES OF", "SERVED BY", "TERM", "SINCE", "STATE"], rows)
