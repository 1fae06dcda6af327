"""Checks during the whole run which node serves each owner's messages; the other checks run at its end.

I9   a term of an owner has one server on all nodes; no two nodes deliver messages of one owner; and a node that
     delivers them does so in the highest term that it knows

Surprising: a violation counts only if two checks in a row find it. A node that was paused continues in its former
state, and delivers nothing before it has read the clock. Both happen in the same virtual instant, and a check may come
between the two.
"""

from collections.abc import Iterator

import trio

from tests.simulation.cluster import Member
from tests.simulation.pauses import Pauses
from tests.simulation.reports.trace import Trace

POLL_SECONDS = 0.1
"""A small part of a lease: a node that wrongly delivers does so for as long as a cut or a pause lasts."""


class ServingObserver:
    """`wrongs` are broken promises, each once."""

    def __init__(self, members: list[Member], pauses: Pauses, trace: Trace) -> None:
        self.wrongs: list[str] = []
        self._members = members
        self._pauses = pauses
        self._trace = trace
        self._servers: dict[tuple[str, int], str] = {}
        self._suspected: set[str] = set()

    @property
    def takeovers(self) -> int:
        """How often a node began to serve another one."""
        return sum(owner != server for (owner, _), server in self._servers.items())

    @property
    def taken_over(self) -> set[str]:
        """The owners that another node served for a while."""
        return {owner for (owner, _), server in self._servers.items() if owner != server}

    async def run(self) -> None:
        """Check every POLL_SECONDS."""
        while True:
            await trio.sleep(POLL_SECONDS)
            self.look()

    def look(self) -> None:
        """Check this moment."""
        found = set(self._double_servers()) | set(self._outdated())
        for text in sorted(found & self._suspected):
            if text not in self.wrongs:
                self.wrongs.append(text)
                self._trace.note(text)
        self._suspected = found
        for member in self._awake():
            assert member.node is not None
            rules = member.node.mesh_parts.takeover.rules
            for owner, term in rules.terms.items():
                self.served(owner, term.number, term.server)
            for owner, claim in rules.claims.items():
                self.served(owner, claim.term, member.name)

    def served(self, owner: str, term: int, server: str) -> None:
        """A node serves an owner in a term, as some node knows."""
        known = self._servers.get((owner, term))
        if known is None:
            self._servers[owner, term] = server
            if term:
                self._trace.note(f"{server} serves {owner} in term {term}")
        elif known != server:
            text = f"I9 term: both {known} and {server} serve {owner} in term {term}"
            if text not in self.wrongs:
                self.wrongs.append(text)

    def _double_servers(self) -> Iterator[str]:
        servers: dict[str, str] = {}
        for member in self._awake():
            for owner in handed_out_by(member):
                other = servers.setdefault(owner, member.name)
                if other != member.name:
                    yield f"I9 servers: both {other} and {member.name} hand out messages of {owner}"

    def _outdated(self) -> Iterator[str]:
        for member in self._awake():
            assert member.node is not None
            takeover = member.node.mesh_parts.takeover
            for owner in handed_out_by(member):
                serves_in, known = takeover.terms_served.get(owner, 0), takeover.rules.term_of(owner).number
                if takeover.is_active and serves_in < known:
                    yield f"I9 outdated: {member.name} serves {owner} in term {serves_in} and knows of {known}"

    def _awake(self) -> Iterator[Member]:
        """The nodes that can do anything now."""
        for member in self._members:
            if member.is_alive and member.node is not None and not self._pauses.holds(member.host):
                yield member


def handed_out_by(member: Member) -> list[str]:
    """The owners whose messages a node would give to a consumer that came now."""
    assert member.node is not None
    queues = member.node.broker.queues
    return [] if queues.held else sorted(queues.owned.serves)
