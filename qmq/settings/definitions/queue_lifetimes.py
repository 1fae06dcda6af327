"""Declared queues that end by themselves: `auto_delete` and `expires_seconds`.

Each node knows which of them have consumers: its own, and peers that offer credit for them. It asks all other nodes
before it deletes one, so a consumer on any node that can be reached keeps a queue. A node that cannot be reached counts
as unused when it has been silent for `redeliver_after_seconds` and a majority was asked. So a minority deletes nothing.

Times are measured as elapsed time, so a clock that jumps lets nothing expire. Each node counts since its own start. So
it may keep a queue for longer, but never for less time.

Surprising: the node whose last consumer leaves deletes an `auto_delete` queue at once. The others do so a little later,
in case that node was killed.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Final

import trio
from msgspec import Meta, Struct

from qmq.broker.broker import Broker
from qmq.config.destinations.declared import QueueLifetime
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.engine.runtime.log_events import about
from qmq.errors import Refused
from qmq.mesh.peers.calls import AdminQuery, Text
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.settings.definitions.declared_queues import DeclaredQueues

OTHERS_SECONDS: Final = 5.0
"""After which nodes without the last consumer of a queue delete it."""

RETRY_SECONDS: Final = 5.0
"""Until a queue is looked at again that could not be deleted."""

RETRY_SECONDS_MIN: Final = 0.01
"""However little is left of a time: its sum may be rounded."""

QUEUES_AT_ONCE: Final = 200
"""In one query, and in one change."""

log = logging.getLogger("qmq.definitions")


class Use(Struct, frozen=True, array_like=True):
    """The use of one queue on one node. `is_consumed`: it has a consumer, or surely will have one in a moment.
    `is_kept`: it was declared again since its last consumer left, so its end is that of the next one.
    """

    is_consumed: bool
    unused_seconds: float
    is_kept: bool = False


class UseReply(Struct, frozen=True):
    queues: dict[str, Use]


class UseCall(AdminQuery[UseReply], frozen=True):
    """The use of queues on one node."""

    name: ClassVar = "queue-use"
    queues: Annotated[list[Text], Meta(max_length=QUEUES_AT_ONCE)]

    def check(self, reply: UseReply) -> None:
        if not reply.queues.keys() >= set(self.queues):
            raise ValueError("a queue of the request is missing")


class LifetimeState:
    """What this node has seen of one queue. Times are trio's."""

    __slots__ = ("had_consumer", "is_consumed", "is_kept", "is_local", "sure_until", "until", "used_at", "watch")

    def __init__(self, until: QueueLifetime, now: float) -> None:
        self.until = until
        self.used_at = now
        self.sure_until = now
        """A client has declared it here again, and will consume it until then."""
        self.is_kept = False
        """It was declared again since its last consumer left."""
        self.had_consumer = self.is_consumed = self.is_local = False
        self.watch = -1

    def due(self) -> float | None:
        """When the queue ends if nothing changes; None: as long as it has consumers, or had none."""
        if self.is_consumed:
            return None
        until = [self.used_at + self.until.expires_seconds] if self.until.expires_seconds else []
        if self.until.auto_delete and self.had_consumer:
            until.append(self.used_at + (0.0 if self.is_local else OTHERS_SECONDS))
        return min(until, default=None)


@dataclass(eq=False, repr=False)
class QueueLifetimes:
    """One timer per queue in the task of the heartbeats; without such queues there is none."""

    _broker: Broker
    _mesh: Mesh
    _membership: Membership
    _rpc: PeerRpc
    _beats: Heartbeats
    _node: NodeBasics
    _declared: DeclaredQueues

    def __post_init__(self) -> None:
        self.states: dict[str, LifetimeState] = {}
        """Declared queues that end by themselves."""
        self._due: dict[str, None] = {}
        self._silent_since: dict[str, float] = {}
        self.is_running = False

    def changed(self, queues: Iterable[str]) -> None:
        """The declarations of these have changed, or are known since the start."""
        for name in queues:
            until = self._declared.lifetime(name)
            state = self.states.get(name)
            if until is None or not (until.auto_delete or until.expires_seconds):
                if state is not None:
                    self._beats.forget(state.watch)
                    del self.states[name]
                continue
            if state is None:
                state = self.states[name] = LifetimeState(until, trio.current_time())
            state.until = until
            state.used_at = trio.current_time()
            self._look(name, state)

    def decided(self) -> None:
        """Whatever was decided: consumers may have come or left."""
        if self._broker.queues.consumers_changed:
            self.consumers_changed()

    def consumers_changed(self) -> None:
        """Consumers of queues that end by themselves have come or left, here or on a peer."""
        queues = self._broker.queues
        names, queues.consumers_changed = queues.consumers_changed, {}
        for name in names:
            state = self.states.get(name)
            if state is not None:
                self._look(name, state)

    def declared_again(self, queue: str) -> None:
        """A client relies on it: consumers that have left count no more, also if its deletion is decided already."""
        self.consumers_changed()  # That the last one has left may be decided, and not seen yet.
        self.used(queue)
        state = self.states.get(queue)
        if state is not None:
            state.sure_until = state.used_at + OTHERS_SECONDS
            if not state.is_consumed:
                state.had_consumer, state.is_kept = False, True

    def has_no_consumer_here(self, queue: str) -> bool:
        """Whether a client of this node that reads it now and leaves is not to end it."""
        self.consumers_changed()
        state = self.states.get(queue)
        return state is not None and not (state.had_consumer and state.is_local)

    def used(self, queue: str) -> None:
        """It was read without a consumer, or asked about."""
        state = self.states.get(queue)
        if state is not None:
            state.used_at = trio.current_time()

    def answer(self, call: UseCall) -> UseReply:
        """The reply of this node."""
        return UseReply({name: self._use(name) for name in call.queues})

    # Inside

    def _use(self, name: str) -> "Use":
        """What this node says of a queue. One that it does not know as declared counts as used just now."""
        state = self.states.get(name)
        queue = self._broker.queues.by_name.get(name)
        is_consumed = queue is not None and bool(queue.subscriptions)
        if state is None:
            return Use(is_consumed, 0.0)
        now = trio.current_time()
        # A client that has just declared it here consumes it next. Another node may be about to delete it.
        return Use(is_consumed or now < state.sure_until, now - state.used_at, state.is_kept)

    def _look(self, name: str, state: LifetimeState) -> None:
        queue = self._broker.queues.by_name.get(name)
        is_local = queue is not None and bool(queue.subscriptions)
        is_consumed = is_local or (queue is not None and bool(queue.borrowers))
        if is_consumed:
            state.had_consumer, state.is_local, state.is_kept = True, is_local, False
            state.sure_until = state.used_at
        if state.is_consumed and not is_consumed:
            state.used_at = trio.current_time()
        state.is_consumed = is_consumed
        self.watch(name, state, state.due())

    def watch(self, name: str, state: LifetimeState, due: float | None) -> None:
        """Look at the queue at this time, and no other; None: not before something changes."""
        self._beats.forget(state.watch)
        if due is not None:
            state.watch = self._beats.watch(due, partial(self._check, name, state))

    def _check(self, name: str, state: LifetimeState, now: float) -> float | None:
        """The timer: when to look again; None for never, or because the other nodes are asked now."""
        due = state.due()
        if self.states.get(name) is not state or due is None or due > now:
            return due
        self._due[name] = None
        if not self.is_running:
            self.is_running = True
            self._node.spawn(self._run)
        return None

    async def _run(self) -> None:
        while self._due and not self._node.is_stopping:
            names = list(self._due)[:QUEUES_AT_ONCE]
            for name in names:
                del self._due[name]
            again = await self._end([name for name in names if name in self.states])
            for name, due in again.items():
                state = self.states.get(name)
                if state is not None:
                    self.watch(name, state, due)
        self.is_running = False

    async def _end(self, names: list[str]) -> dict[str, float]:
        """Delete those of `names` that are unused on all nodes; when to look again at the others."""
        now = trio.current_time()
        replies, missing = await self._rpc.ask(UseCall(names))
        if not self._may_decide(set(replies), set(missing), now):
            return dict.fromkeys(names, now + RETRY_SECONDS)
        again: dict[str, float] = {}
        for name in names:
            state = self.states.get(name)
            if state is None:
                continue
            uses = [self._use(name), *[one.queues[name] for one in replies.values()]]
            expires = state.until.expires_seconds
            left_seconds = expires - min(use.unused_seconds for use in uses)
            if any(use.is_kept for use in uses):
                state.had_consumer = False
            if state.due() is None:
                continue
            is_left = state.until.auto_delete and state.had_consumer
            if any(use.is_consumed for use in uses):
                again[name] = now + max(RETRY_SECONDS, expires)
            elif not is_left and left_seconds > 0:
                again[name] = now + max(left_seconds, RETRY_SECONDS_MIN)
            elif not await self._delete(name, state, "auto-delete" if is_left else "expired"):
                again[name] = now + RETRY_SECONDS
        return again

    def _may_decide(self, asked: set[str], missing: set[str], now: float) -> bool:
        """Whether every node has answered, or has been silent for so long that its consumers count as gone."""
        linked = set(self._mesh.followers())
        self._silent_since = {
            peer: since for peer, since in self._silent_since.items() if peer in missing and peer not in linked
        }
        for peer in missing - linked:
            self._silent_since.setdefault(peer, now)
        patience = self._node.settings.mesh.redeliver_after_seconds
        is_silent = all(now - self._silent_since.get(peer, now) >= patience for peer in missing)
        return not missing or (is_silent and self._membership.is_majority({self._membership.node, *asked}))

    async def _delete(self, name: str, state: LifetimeState, why: str) -> bool:
        def guard() -> None:
            due = state.due()
            if self.states.get(name) is not state or due is None or due > trio.current_time():
                raise Refused("has-consumers", f"{name} is used again.")

        try:
            await self._declared.delete(name, None, guard=guard)
        except Refused as refused:
            log.info("= %s is not deleted: %s", name, refused)
            return False
        log.info("= %s is deleted: %s", name, why, extra=about("queue-deleted", destination=name, reason=why))
        self._node.system.note("queue-deleted", destination=name, reason=why)
        return True
