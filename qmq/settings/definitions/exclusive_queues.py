"""Declared queues that are exclusive to one connection (AMQP 0-9-1: `exclusive`), and their end with it.

The declaration names the owner: the incarnation of its node, and its session there. Only the owner may subscribe to
the queue or administer it; every client that may send may send to it. When the connection ends, its node deletes the
declaration, and each node drops its messages (`deleted_queues`). A node that was killed does so at its next start. The
adopter of a retired node does it in its place.

Surprising: a node learns of a declaration by replication. A client that subscribes on another node in that moment is
not refused, and keeps its subscription until it or the queue ends.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import trio

from qmq.broker.broker import Broker
from qmq.definitions.definition import Key
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.log_events import about
from qmq.errors import Refused
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.live import LiveDefinitions

LOCKED: Final = "resource-locked"
"""AMQP 0-9-1, reply code 405."""

RETRY_SECONDS: Final = 5.0
"""Until queues are deleted that could not be deleted."""

QUEUES_AT_ONCE: Final = 200
"""In one change."""

log = logging.getLogger("qmq.definitions")


@dataclass(eq=False, repr=False)
class ExclusiveQueues:
    """One task while there is something to delete."""

    _broker: Broker
    _mesh: Mesh
    _membership: Membership
    _node: NodeBasics
    _definitions: LiveDefinitions
    _declared: DeclaredQueues

    def __post_init__(self) -> None:
        # Queue → its owner, and owner → its queues.
        self._owners: dict[str, str] = {}
        self._queues: dict[str, dict[str, None]] = {}
        self._due: dict[str, None] = {}
        self.acts_for: dict[int, int] = {}
        """Session by which a connection receives → the session of that connection."""
        self.is_running = False

    def owner(self, session: int) -> str:
        """How a declaration names a session of this node."""
        return f"{self._broker.origin}/{session}"

    def is_owner(self, queue: str, session: int) -> bool:
        """Whether `queue` is exclusive to this session of this node."""
        return self._owners.get(queue) == self.owner(self.acts_for.get(session, session))

    def check(self, queue: str, session: int) -> None:
        """Raises Refused if `queue` is exclusive to another connection than `session` of this node."""
        if queue in self._owners and not self.is_owner(queue, session):
            raise Refused(LOCKED, f"{queue} is exclusive to another connection.")

    def is_orphan(self, queue: str) -> bool:
        """Whether another client may declare it: its connection has ended, or the node of that cannot be reached."""
        owner = self._owners.get(queue)
        if owner is None or self._has_ended(owner):
            return owner is not None
        node = _node_of(owner)
        return node != self._broker.origin.node and node not in self._mesh.followers()

    def claim(self, queue: str, session: int) -> str:
        """The owner that a declaration of this session names. Raises Refused if others consume from the queue."""
        known = self._broker.queues.by_name.get(queue)
        if known is not None:
            consumers = {self.acts_for.get(one.session, one.session) for one in known.subscriptions}
            if known.borrowers or consumers - {session}:
                raise Refused("has-consumers", f"{queue} has consumers of other connections.")
        return self.owner(session)

    def changed(self, queues: Iterable[str]) -> None:
        """The declarations of these have changed, or are known since the start."""
        for name in queues:
            until = self._declared.lifetime(name)
            owner = "" if until is None else until.exclusive_to_connection
            before = self._owners.pop(name, "")
            if before:
                self._queues[before].pop(name)
                if not self._queues[before]:
                    del self._queues[before]
            if owner:
                self._owners[name] = owner
                self._queues.setdefault(owner, {})[name] = None
                if self._has_ended(owner):
                    self._delete_soon([name])

    def session_ended(self, session: int) -> None:
        """A client of this node has left."""
        self._delete_soon(self._queues.get(self.owner(session), ()))

    def members_changed(self) -> None:
        """A node may have been retired whose messages this node adopts."""
        for owner in [owner for owner in self._queues if self._has_ended(owner)]:
            self._delete_soon(self._queues[owner])

    # Inside

    def _has_ended(self, owner: str) -> bool:
        """Whether this node has to delete the queues of an owner that is not connected any more."""
        origin, _, session = owner.rpartition("/")
        if origin == str(self._broker.origin):
            return int(session) not in self._broker.sessions
        node = _node_of(owner)
        here = self._broker.origin.node
        return node == here or node in self._membership.adopted_by(here)

    def _delete_soon(self, queues: Iterable[str]) -> None:
        self._due.update(dict.fromkeys(queues))
        if self._due and not self.is_running:
            self.is_running = True
            self._node.spawn(self._run)

    async def _run(self) -> None:
        at_once = QUEUES_AT_ONCE
        while self._due and not self._node.is_stopping:
            names = [name for name in list(self._due)[:at_once] if self._is_due(name)]
            self._due = dict.fromkeys(list(self._due)[at_once:])
            try:
                if names:
                    await self._delete(names)
            except Refused as refused:
                log.info("= %d exclusive queues are not deleted yet: %s", len(names), refused)
                self._due.update(dict.fromkeys(names))
                # One may be refused for ever, as a file locks a binding to it: the others must not wait for that.
                at_once = 1
                await trio.sleep(RETRY_SECONDS)
        self.is_running = False

    def _is_due(self, name: str) -> bool:
        return name in self._owners and self._has_ended(self._owners[name])

    async def _delete(self, names: list[str]) -> None:
        changes: dict[Key, None] = {}
        ended: list[str] = []

        def guard() -> None:
            # Here, because others may declare a queue, or delete a binding, while this change waits.
            ended.extend(filter(self._is_due, names))
            for name in ended:
                changes.update(dict.fromkeys(self._declared.definitions_of(name)))

        await self._definitions.change(changes, None, guard=guard)
        for name in ended:
            extra = about("queue-deleted", destination=name, reason="exclusive")
            log.info("= %s is deleted: its connection has ended", name, extra=extra)
            self._node.system.note("queue-deleted", destination=name, reason="exclusive")


def _node_of(owner: str) -> str:
    """The node to which an owner is, or was, connected."""
    return owner.rpartition("/")[0].rpartition("-")[0]
