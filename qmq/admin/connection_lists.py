"""`/control/connections`, `/control/links` and `/control/kick`: rows of one node or of all, merged and in pages."""

from collections.abc import Mapping
from typing import Any

from qmq.admin.inspection.connections import REASON_CHARS_MAX, ROWS_MAX, place_of
from qmq.admin.mesh_queries import QueryContext, ask_nodes
from qmq.admin.totals import rated
from qmq.errors import Refused
from qmq.mesh.peers.peer_json import Facts
from qmq.mesh.peers.verb_request import VerbRequest, header_number


async def list_connections(context: QueryContext, asked: VerbRequest) -> Facts:
    """One page of connections, ordered by node and number. Raises Refused for a bad `limit` or `after`."""
    limit = header_number(asked.headers, "limit", ROWS_MAX, 1, ROWS_MAX, " of rows")
    after = asked.headers.get("after", "")
    wanted = {**_named(asked), "limit": limit, **({"after": after} if after else {})}
    if after:
        place_of(after)

    async def page() -> Facts:
        facts = await _ask(context, asked, wanted)
        rows = sorted(_rows(facts["rows"]), key=lambda row: place_of(row["id"]))
        # A node that has more says so; what sorts behind its last row may be incomplete.
        ends = [end for end in facts.pop("next") if _is_place(end)]
        end = min(ends, key=place_of, default="")
        rows = [row for row in rows if not end or place_of(row["id"]) <= place_of(end)]
        end = rows[limit - 1]["id"] if len(rows) > limit else end
        return {**facts, "rows": rows[:limit], **({"next": end} if end else {})}

    return await rated(asked.headers, page)


def _rows(rows: list[Any]) -> list[dict[str, Any]]:
    """The rows that make sense: a peer may have sent them."""
    return [row for row in rows if isinstance(row, dict) and _is_place(row.get("id"))]


def _is_place(id: Any) -> bool:
    try:
        place_of(id)
    except Refused:
        return False
    return True


async def list_links(context: QueryContext, asked: VerbRequest) -> Facts:
    """All links, as each node sees its own."""

    async def read() -> Facts:
        return _whole(await _ask(context, asked, {}, "links"))

    return await rated(asked.headers, read)


async def kick(context: QueryContext, asked: VerbRequest) -> Facts:
    """End the connections that are named, but not that of the request."""
    wanted = _named(asked)
    if not wanted:
        raise Refused("missing-header", "kick names connections: /control/kick/ID, or the header user or address.")
    reason = asked.headers.get("reason", "no reason given")[:REASON_CHARS_MAX]
    # Else the client that asks would get no response.
    but = f"{context.origin.node}/{asked.session}"
    wanted |= {"reason": reason, "but": but, "is_dry_run": asked.is_dry_run}
    return _whole(await _ask(context, asked, wanted))


def _whole(facts: Facts) -> Facts:
    """A response without pages."""
    return {name: fact for name, fact in facts.items() if name != "next"}


def _named(asked: VerbRequest) -> dict[str, Any]:
    """The connections that a request names."""
    wanted = {name: asked.headers[name] for name in ("user", "address") if name in asked.headers}
    return {**wanted, **({"id": asked.about.removeprefix("/")} if asked.about else {})}


async def _ask(
    context: QueryContext, asked: VerbRequest, wanted: Mapping[str, Any], counted: str = "connections"
) -> Facts:
    """Ask one node or all, and put their rows together."""
    found, missing = await ask_nodes(context, asked.verb, wanted, is_mesh=asked.is_mesh)
    facts: Facts = {counted: sum([one[counted] for one in found.values()])}
    facts["rows"] = [row for one in found.values() for row in one["rows"]]
    facts["next"] = [one["next"] for one in found.values() if "next" in one]
    if asked.is_mesh:
        facts |= {"nodes_asked": len(found) + len(missing), "nodes_answered": len(found), "nodes_missing": missing}
    return facts
