"""Nodes that are only what topics need of links: a broker, its Routes, and lines that carry frames when told to.

Every line of a pair carries both ways, as a connection does. `flow` lets frames arrive, one at a time and by chance,
in order per line and direction; a line that breaks loses what is on it.
"""

import random
from collections import deque
from typing import Any

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.message import Envelope
from qmq.model.dots import Origin
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.links.routes import Routes
from qmq.replication.protocol.frame_table import FROM_SERVING_SIDE, decode, pack
from qmq.replication.protocol.frames import MeshFrame, Paths, Topics
from qmq.replication.protocol.values import Sender


class Line:
    """One connection. `first` dialled: it follows, and is served topics."""

    def __init__(self, first: "Spot", second: "Spot") -> None:
        self.ends = (first, second)
        self.frames: dict[Spot, deque[tuple[str, bytes]]] = {first: deque(), second: deque()}
        self.outboxes = {end: LinkOutbox(self._encoder(end), lambda: None) for end in self.ends}
        self.senders = {end: Sender(end.origin.node) for end in self.ends}
        self.broken: set[Spot] = set()
        """Ends that know that the line is no more."""

    def _encoder(self, end: "Spot") -> Any:
        def encode(frame: MeshFrame) -> bytes:
            self.frames[end].append(pack(frame))
            return b"x"

        return encode

    def other(self, end: "Spot") -> "Spot":
        return self.ends[1] if end is self.ends[0] else self.ends[0]


class Spot:
    """One node; `heard` is what its subscribers were told: (origin, number, topic)."""

    def __init__(self, mesh: "Spots", origin: Origin) -> None:
        self.origin = origin
        self.broker = Broker(origin, 1)
        self.broker.open_session(1)
        self.routes = Routes(self, mesh.members, lambda: None)  # type: ignore[arg-type]  # of the Host only what is used
        self.lines: list[Line] = []
        self.reports: list[str] = []
        self.heard: list[tuple[Origin, int, str]] = []
        self.subscriptions: dict[str, Subscription] = {}
        self._numbers = 0

    def raise_condition(self, code: str, message: str) -> None:
        self.reports.append(code)

    def submit(self, out: Outcome) -> None:
        for run in out.topic_runs:
            for message in run.messages:
                self.heard.append((message.origin, -message.sequence, message.envelope.destination))
        for node, messages in out.peer_topics.items():
            serving = [line for line in self.lines if line.ends[1] is self and line.ends[0].origin.node == node]
            if serving:
                serving[-1].outboxes[self].put_topics(messages)
            else:
                self.routes.unrelayed += self.routes.send(node, messages)
        self.routes.own_changed(out.interest_changes)

    def subscribe(self, *patterns: str) -> None:
        out = Outcome()
        for pattern in patterns:
            self._numbers += 1
            subscription = Subscription(1, str(self._numbers), pattern, Ack.AUTO, 1, b"")
            self.broker.limit(BrokerLimits(subscriptions_max=1 << 20, destinations_max=1 << 20))
            self.broker.subscriptions.subscribe(subscription, out)
            self.subscriptions[pattern] = subscription
        self.submit(out)

    def unsubscribe(self, *patterns: str) -> None:
        out = Outcome()
        for pattern in patterns:
            self.broker.subscriptions.unsubscribe(1, self.subscriptions.pop(pattern).id, out)
        self.submit(out)

    def publish(self, topic: str, count: int = 1) -> None:
        out = Outcome()
        envelope = Envelope(topic, DestinationKind.TOPIC, b"", False)
        for _ in range(count):
            self.broker.send(envelope, b"x", 1, out)
        self.submit(out)

    def lines_changed(self) -> None:
        """Followings first, then servings, as the hub has them."""
        ordered = sorted(self.lines, key=lambda line: line.ends[1] is self)
        self.routes.links_changed([(line.other(self).origin, line.outboxes[self]) for line in ordered])

    def knows(self, topic: str) -> set[str]:
        """Nodes to which it would send a message of that topic."""
        return set(self.broker.interest.match(topic))

    def numbers(self, origin: Origin) -> list[int]:
        return [number for found, number, _ in self.heard if found == origin]


class Spots:
    """All nodes of a test, by name."""

    def __init__(self, names: str, seed: object = 0) -> None:
        self.members = frozenset(names)
        self.rng = random.Random(f"spots {seed}")
        self.nodes = {name: Spot(self, Origin(name, 1)) for name in names}
        self.all_lines: list[Line] = []

    def __getitem__(self, name: str) -> Spot:
        return self.nodes[name]

    def link(self, one: str, other: str, *, both: bool = True) -> None:
        """`one` dials, and with `both` the other one too."""
        first, second = self.nodes[one], self.nodes[other]
        for dialling, serving in [(first, second), (second, first)][: 1 + both]:
            line = Line(dialling, serving)
            self.all_lines.append(line)
            for end in (serving, dialling):
                end.lines.append(line)
                end.lines_changed()

    def mesh(self) -> "Spots":
        """All pairs linked, and everything told."""
        names = sorted(self.nodes)
        for index, one in enumerate(names):
            for other in names[index + 1 :]:
                self.link(one, other)
        self.flow()
        return self

    def cut(self, one: str, other: str, *, noticed_by: str | None = None) -> None:
        """Lines between the two break; without `noticed_by` both notice, else the other one later (`notice`)."""
        ends = {self.nodes[one], self.nodes[other]}
        for line in [line for line in self.all_lines if set(line.ends) == ends]:
            line.frames = {end: deque() for end in line.ends}
            self.all_lines.remove(line)
            for end in line.ends:
                line.broken.add(end)
                if noticed_by in (None, end.origin.node):
                    end.lines.remove(line)
        for end in ends:
            end.lines_changed()

    def notice(self) -> None:
        for node in self.nodes.values():
            node.lines = [line for line in node.lines if node not in line.broken]
            node.lines_changed()

    def restart(self, name: str) -> None:
        """It dies and comes back as another incarnation, with no link and no subscriber."""
        old = self.nodes[name]
        for line in list(old.lines):
            other = line.other(old).origin.node
            self.cut(name, other)
        self.nodes[name] = Spot(self, Origin(name, old.origin.incarnation + 1))

    def step(self) -> bool:
        """One outbox is emptied into its line, or one frame arrives; False when nothing is left to do."""
        ways = [(line, end) for line in self.all_lines for end in line.ends]
        self.rng.shuffle(ways)
        for line, end in ways:
            if self.rng.random() < 0.5 and line.outboxes[end].take():
                return True
            if line.frames[end]:
                self._arrive(line, end)
                return True
            if line.outboxes[end].take():
                return True
        return False

    def _arrive(self, line: Line, end: Spot) -> None:
        to = line.other(end)
        destination, body = line.frames[end].popleft()
        frame = decode(FROM_SERVING_SIDE, destination, body, line.senders[end])
        out = Outcome()
        if isinstance(frame, Topics):
            to.broker.topic_router.accept_all(frame.messages, out)
        else:
            assert isinstance(frame, Paths)
            to.routes.take(end.origin, frame, out)
        to.submit(out)

    def flow(self, steps: int = 1 << 20) -> None:
        """Let frames arrive until none is on its way (or for so many steps)."""
        while steps and self.step():
            steps -= 1
        assert steps or steps == 0
