"""`/control/connections`, `/control/links` and `/control/kick`: rows of one node or of all, merged and in pages."""

from collections.abc import Mapping

from qmq.admin.facts.totals import rated
from qmq.admin.inspection import connections
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts, Replies
from qmq.mesh.peers.rpc import PeerRpc
from qmq.verbs.nodes import Connections, Kick, Links
from qmq.verbs.verb import Verb, VerbRequest


class ConnectionVerbs:
    """Responds to them."""

    def __init__(self, rpc: PeerRpc, node: str) -> None:
        self._rpc = rpc
        self._node = node

    async def connections(self, asked: VerbRequest[Connections]) -> Facts:
        """One page of connections, ordered by node and number. Raises Refused for a bad `after`."""
        limit = asked.options.limit
        call = connections.ConnectionsCall(**_named(asked), limit=limit, after=asked.options.after)

        async def page() -> Facts:
            replies = await self._rpc.ask_all(call, is_mesh=asked.is_mesh)
            facts = _together(asked, "connections", replies)
            rows = sorted(facts["rows"], key=lambda row: connections.place_of(row["id"]))
            # A node that has more says so; what sorts behind its last row may be incomplete.
            ends = [one.next for one in replies.by_node.values() if one.next]
            end = min(ends, key=connections.place_of, default="")
            rows = [row for row in rows if not end or connections.place_of(row["id"]) <= connections.place_of(end)]
            end = rows[limit - 1]["id"] if len(rows) > limit else end
            return {**facts, "rows": rows[:limit], **({"next": end} if end else {})}

        return await rated(asked.options.rate_seconds, page)

    async def links(self, asked: VerbRequest[Links]) -> Facts:
        """All links, as each node sees its own."""

        async def read() -> Facts:
            return _together(asked, "links", await self._rpc.ask_all(connections.LinksCall(), is_mesh=asked.is_mesh))

        return await rated(asked.options.rate_seconds, read)

    async def kick(self, asked: VerbRequest[Kick]) -> Facts:
        """End the connections that are named, but not that of the request."""
        named = _named(asked)
        if not named:
            raise Refused("missing-header", "kick names connections: /control/kick/ID, or the header user or address.")
        reason = asked.options.reason[: connections.REASON_CHARS_MAX]
        # Else the client that asks would get no response.
        but = f"{self._node}/{asked.session}"
        call = connections.KickCall(**named, reason=reason, but=but, is_dry_run=asked.is_dry_run)
        return _together(asked, "connections", await self._rpc.ask_all(call, is_mesh=asked.is_mesh))


def _named(asked: VerbRequest[Connections | Kick]) -> Mapping[str, str]:
    """The connections that a request names."""
    options, id = asked.options, asked.about.removeprefix("/") or None
    named = (("user", options.user), ("address", options.address), ("id", id))
    return {name: one for name, one in named if one is not None}


def _together(
    asked: VerbRequest[Verb], counted: str, replies: Replies[connections.ConnectionRows] | Replies[connections.LinkRows]
) -> Facts:
    """The rows of one node or of all."""
    found, missing = replies
    facts: Facts = {counted: sum([getattr(one, counted) for one in found.values()])}
    facts["rows"] = [row for one in found.values() for row in one.rows]
    if asked.is_mesh:
        facts |= {"nodes_asked": len(found) + len(missing), "nodes_answered": len(found), "nodes_missing": missing}
    return facts
