"""What a running mesh says of itself, as `qmq doctor` asks it: the answers of verbs that exist, from one node."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from qmq.broker.messages.rules import DEAD_LETTERS

from ..client import CommandClient, Endpoint, Headers, ServerError, ask_over, headers_of

QUEUES_SEEN: Final = 200
"""The deepest ones."""
POLICIES_SEEN: Final = 100
DEAD_LETTER_QUEUES_SEEN: Final = 10
RATE_SECONDS: Final = 2

Facts = Mapping[str, Any]


class MeshFacts(NamedTuple):
    """Answers of one node for the mesh. None in place of a list: the user may not ask for it."""

    nodes: Mapping[str, Facts]
    """What each node says of itself (`/control/overview`)."""
    missing: list[str]
    conditions: list[Facts]
    queues: list[Facts] | None
    """The deepest QUEUES_SEEN."""
    dead_letters: list[Facts]
    """The queues of dead letters, with rates."""
    unmatched: list[str] | None
    """Patterns of policies that match no destination, among the first POLICIES_SEEN."""
    policies: int
    """How many policies there are."""
    archives: list[str]
    """Names of the archives that the mesh has defined; none if the user may not ask for them."""


def ask_mesh(node: Endpoint) -> MeshFacts:
    """Ask a node about the mesh. Raises Failed if none responds, and ServerError if it refuses the login."""
    with node.connect() as client:
        overview = ask_over(client, "overview", headers_of(scope="mesh"))
        conditions = ask_over(client, "conditions", headers_of(scope="mesh", limit=1000))
    queues = _rows(node, "list/queue/", "destinations", headers_of(scope="mesh", sort="depth", limit=QUEUES_SEEN))
    policies = _rows(node, "definitions/list/policy", "definitions")
    dead = {DEAD_LETTERS, *(row["value"].get("dead_letter", DEAD_LETTERS) for row in policies or ())}
    rates = headers_of(scope="mesh", rate_seconds=RATE_SECONDS, limit=1)
    counted = [_rows(node, f"list{one}", "destinations", rates) for one in sorted(dead)[:DEAD_LETTER_QUEUES_SEEN]]
    return MeshFacts(
        nodes=overview.get("nodes", {}),
        missing=list(overview.get("nodes_missing", ())),
        conditions=list(conditions.get("conditions", ())),
        queues=queues,
        dead_letters=[row for rows in counted for row in rows or () if row.get("destination") in dead],
        unmatched=None if policies is None else _unmatched(node, [str(row["name"]) for row in policies]),
        policies=len(policies or ()),
        archives=[str(row["name"]) for row in _rows(node, "definitions/list/archive", "definitions") or ()],
    )


def _rows(node: Endpoint, request: str, key: str, headers: Headers = ()) -> list[Facts] | None:
    """The rows of an answer; None if the user has no right to it, or if the node is older than what is asked."""
    try:
        with node.connect() as client:
            rows: list[Facts] = ask_over(client, request, headers).get(key, [])
            return rows
    except ServerError as error:
        if error.code not in ("not-allowed", "bad-definition"):
            raise
        return None


def _unmatched(node: Endpoint, patterns: Iterable[str]) -> list[str]:
    with node.connect() as client:
        return [one for one in list(patterns)[:POLICIES_SEEN] if not _matches_some(client, one)]


def _matches_some(client: CommandClient, pattern: str) -> bool:
    if pattern.startswith("/exchange/"):
        return True  # Exchanges are declared, never made on use.
    facts = ask_over(client, f"list{pattern.removesuffix('*')}", headers_of(scope="mesh", limit=1))
    rows = facts.get("destinations", ())
    return any(pattern.endswith("*") or row.get("destination") == pattern for row in rows)
