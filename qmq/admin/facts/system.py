"""`/system/events`, `audit`, `peers` and `stats`: events, links and numbers of this node, for current subscribers.

Events are JSON objects with `event`, `node` and `at_us`. Those of the audit say which user did what. Peers are a JSON
array with the state of each. A new subscriber gets it at once, and all subscribers get it after each change. The
numbers follow at once, too, and then every STATS_SECONDS; without a subscriber they are not read.

All are kept in memory, describe this node only, and are not forwarded: subscribe to each node for all of them. An
event is noted in the middle of another decision, so it is published in the next pass of a task. Beyond `EVENTS_MAX` the
oldest events are dropped.
"""

import json
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

import trio

from qmq.admin.facts.node_facts import NodeFacts
from qmq.admin.facts.node_status import PeerRow
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.selectors import SelectorCosts
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.waker import Waker

EVENTS = "/system/events"
PEERS = "/system/peers"
AUDIT = "/system/audit"
STATS = "/system/stats"
STATS_SECONDS = 60.0
EVENTS_MAX = 1000
AUDITED_MAX = 500
"""Events of the audit that are kept for later subscribers."""

LOGGED_PER_MINUTE = 100
"""Verbs of one user that are logged in a minute: the log may share the disk with the journal."""
MINUTE_US = 60_000_000

log = logging.getLogger("qmq.admin")

JSON_TYPE = b"content-type:application/json\n"

Peers = list[PeerRow]


class SystemTopics:
    """`peers` gives the peers as `qmq status` shows them, and `read` the numbers of the node."""

    def __init__(
        self, engine: EngineParts, peers: Callable[[], Peers], read: Callable[[], Awaitable[NodeFacts]]
    ) -> None:
        self._engine = engine
        self._node = engine.broker.origin.node
        self._peers = peers
        self._read = read
        self._stats_due = math.inf
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=EVENTS_MAX)
        self.audited: deque[dict[str, Any]] = deque(maxlen=AUDITED_MAX)
        """The last events of AUDIT since the start of the node, the oldest first."""
        # Verbs of each user in this minute.
        self._minute = 0
        self._verbs: Counter[str] = Counter()
        self._states: dict[str, tuple[str, str]] = {}
        self._unanswered: list[Subscription] = []
        self._noted = Waker()

    def note(self, event: str, **facts: Any) -> None:
        self._note(EVENTS, event, facts)

    def audit(self, verb: str, **facts: Any) -> None:
        """Note for the subscribers of AUDIT that a user changed something."""
        self._note(AUDIT, verb, facts)

    def log_verb(self, verb: str, user: str | None, address: str, said: Mapping[str, Any], *, changes: bool) -> None:
        """Log what a user has changed with a verb; beyond LOGGED_PER_MINUTE, and where nothing changed, at DEBUG."""
        minute = self._engine.environment.now_us() // MINUTE_US
        if minute != self._minute:
            for name, count in self._verbs.items():
                if count > LOGGED_PER_MINUTE:
                    log.info("= user %s: %d more of these in their minute", name, count - LOGGED_PER_MINUTE)
            self._minute, self._verbs = minute, Counter()
        by = user or "-"
        self._verbs[by] += changes
        is_logged = changes and self._verbs[by] <= LOGGED_PER_MINUTE
        log.log(logging.INFO if is_logged else logging.DEBUG, "= user %s at %s: %s %s", by, address, verb, said)

    def _note(self, destination: str, event: str, facts: Mapping[str, Any]) -> None:
        now_us = self._engine.environment.now_us()
        row = {"event": event, "node": self._node, "at_us": now_us, **facts}
        self._waiting.append((destination, row))
        if destination == AUDIT:
            self.audited.append(row)
        self._noted.wake()

    def watched(self, subscriptions: list[Subscription]) -> None:
        """Of these, which begin, those of PEERS and STATS get the present state in the next pass."""
        self._unanswered += [one for one in subscriptions if one.destination in (PEERS, STATS)]
        if self._unanswered:
            self._noted.wake()

    def links_changed(self) -> None:
        """A link began, ended or caught up."""
        self._noted.wake()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._noted.wait_until(self._stats_due)
            numbers = await self._read() if self._is_stats_due() else None
            await self._engine.path.slot()
            self._noted.clear()
            self.publish(numbers)

    def _is_stats_due(self) -> bool:
        """Whether a subscriber of STATS waits for the numbers."""
        is_time = trio.current_time() >= self._stats_due
        return is_time or any(one.destination == STATS for one in self._unanswered)

    def _publish_stats(self, numbers: NodeFacts, out: Outcome) -> None:
        """To new subscribers, and to all when it is time."""
        now, watchers = trio.current_time(), self._engine.broker.subscriptions.watchers[STATS]
        to = tuple(watchers)
        if now < self._stats_due < math.inf:
            to = self._begun(STATS)
        else:
            self._stats_due = now + STATS_SECONDS if watchers else math.inf
        facts = numbers.some(*NodeFacts.__dataclass_fields__)
        self._send(STATS, {**facts, "at_us": self._engine.environment.now_us()}, to, out)

    def publish(self, numbers: NodeFacts | None = None) -> None:
        """Publish what was noted, now, and these numbers."""
        out = Outcome()
        if numbers is not None:
            self._publish_stats(numbers, out)
        peers = self._peers()
        states = {peer.name: (peer.out, peer.in_) for peer in peers}
        if states != self._states:
            for name, now in states.items():
                before = self._states.get(name, ("down", "down"))
                for link, was, state in zip(("out", "in"), before, now, strict=True):
                    if was != state:
                        self.note("link", peer=name, link=link, state=state)
            self._states = states
            self._publish(PEERS, [peer.facts() for peer in peers], out)
        elif self._unanswered:
            self._send(PEERS, [peer.facts() for peer in peers], self._begun(PEERS), out)
        # Those that came after the numbers were read, or were not, get them in the next pass.
        self._unanswered = [one for one in self._unanswered if one.destination == STATS and numbers is None]
        if self._unanswered:
            self._noted.wake()
        while self._waiting:
            self._publish(*self._waiting.popleft(), out)
        if out.topic_runs:
            self._engine.path.submit(out)

    def _begun(self, destination: str) -> tuple[Subscription, ...]:
        """The subscriptions that wait for their first message, and have not ended."""
        watchers = self._engine.broker.subscriptions.watchers[destination]
        return tuple(one for one in self._unanswered if one in watchers)

    def _publish(self, destination: str, facts: object, out: Outcome) -> None:
        self._send(destination, facts, tuple(self._engine.broker.subscriptions.watchers[destination]), out)

    def _send(self, destination: str, facts: object, watchers: tuple[Subscription, ...], out: Outcome) -> None:
        if watchers:
            broker = self._engine.broker
            envelope = Envelope(destination, DestinationKind.SYSTEM, JSON_TYPE, False)
            message = Message(
                envelope,
                json.dumps(facts, default=asdict).encode(),
                broker.origin,
                -broker.new_memory_sequence(),
                self._engine.environment.now_us(),
            )
            out.publish_topic(watchers, message)
            out.selector_cost += SelectorCosts([one.selector for one in watchers]).of(len(envelope.headers))
