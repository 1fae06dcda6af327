"""What clients did and saw, and the faults of nodes, with times. Threads write; one thread reads at the end.

A message is identified by its body, which is unique and names its sender and its number. It may exist more than once in
the mesh, if its sender had no answer and sent it again. Each copy has a message-id, which names the node that accepted
it.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from qmq.model.dots import parse_origin

BUCKET_SECONDS = 0.5
"""How finely the picture shows what happened when."""

UNKNOWN = "?"
"""A node that a client could not name, because its connection had ended by then."""


@dataclass(slots=True)
class Harm:
    """One fault: `what` was done to `nodes`, from when to when in seconds since the beginning."""

    what: str
    nodes: tuple[str, ...]
    begin: float
    end: float
    alone_since: float = inf
    """What only the disk of this node has had since then may be gone with it; inf when the fault spares disks."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The first RECEIPT of a message: when it came, from whom, and on how many disks the message was by then."""

    at: float
    node: str
    copies: int
    disk: str
    """One of the nodes whose disks those are; UNKNOWN when an earlier attempt is there, and the receipt not from its
    node."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The RECEIPT of an ACK. `for_good`: the ACK asked for `quorum` and got it."""

    at: float
    message_id: str
    node: str
    life: int
    """Of the node."""
    for_good: bool


@dataclass(frozen=True, slots=True)
class Again:
    """A message was handed out, by `node`, at a moment after `ack` was receipted."""

    body: bytes
    message_id: str
    node: str
    life: int
    at: float
    ack: Ack

    @property
    def is_same_copy(self) -> bool:
        return self.message_id == self.ack.message_id

    def __str__(self) -> str:
        return (
            f"{self.body.decode('utf-8', 'replace')} ({self.message_id}) came from {self.node} at {self.at:.2f} s, "
            f"its ACK was receipted by {self.ack.node} at {self.ack.at:.2f} s"
        )


@dataclass(slots=True)
class Stream:
    """What one reader was told: a follower of a fanout, or all consumers of a queue together."""

    destination: str
    reader: str
    times: Counter[bytes] = field(default_factory=Counter)
    """Body → how often it was told."""
    told: dict[bytes, list[tuple[str, str]]] = field(default_factory=dict)
    """Body → the message-id and the node of each time."""
    repeats: list[tuple[bytes, str]] = field(default_factory=list)
    """Told again under the same message-id, on a stream that says where it stands; and by which node."""
    by_node: Counter[str] = field(default_factory=Counter)
    acks: dict[bytes, list[Ack]] = field(default_factory=dict)
    """Body → its first receipted ACK, and the first one for good."""
    again: list[Again] = field(default_factory=list)
    last_of_group: dict[tuple[str, str], int] = field(default_factory=dict)
    """Origin and group → the last sequence that was told for the first time."""
    overtaken: list[tuple[bytes, str]] = field(default_factory=list)
    """Told for the first time behind a later message of its group, and by which node."""
    on_the_way: int = 0
    """Came after the receipt of an ACK, and may have been handed out before it."""


class History:
    """Everything of one run. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.harms: list[Harm] = []
        self.deaths: list[tuple[float, str, str]] = []
        """Nodes that ended and were not meant to: when, which, how."""
        self.lives: Counter[str] = Counter()
        self.takeovers: Counter[str] = Counter()
        """Node → how often it began to serve another."""
        self.sent: dict[str, dict[bytes, float]] = {}
        """Destination → bodies handed to a node, and when for the first time."""
        self.attempts: dict[str, Counter[bytes]] = {}
        """Destination → how often a sender that does not name its attempts has handed a body over."""
        self.receipted: dict[str, dict[bytes, Receipt]] = {}
        self.receipted_by: Counter[str] = Counter()
        self.streams: dict[str, Stream] = {}
        self.rates: dict[str, Counter[int]] = {"sent": Counter(), "receipted": Counter(), "received": Counter()}
        """What → bucket of time → how many."""

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def send(self, destination: str, body: bytes, *, is_named: bool = False) -> None:
        """A body is handed to a node. `is_named`: with a dedup-id, so that it may be handed over again without harm."""
        with self._lock:
            self.sent.setdefault(destination, {}).setdefault(body, self.now)
            if not is_named:
                self.attempts.setdefault(destination, Counter())[body] += 1
            self._count("sent")

    def receipt(self, destination: str, body: bytes, node: str, copies: int = 2, *, is_duplicate: bool = False) -> None:
        """A node says that it has the message, or, with `is_duplicate`, that it or another has an earlier attempt."""
        with self._lock:
            receipted = self.receipted.setdefault(destination, {})
            receipted.setdefault(body, Receipt(self.now, node, copies, UNKNOWN if is_duplicate else node))
            self.receipted_by[node] += 1
            self._count("receipted")

    def receive(
        self,
        destination: str,
        reader: str,
        body: bytes,
        node: str,
        message_id: str,
        *,
        is_repeat: bool = False,
        since: float = -inf,
        group: str = "",
        is_marked: bool = False,
    ) -> None:
        """A reader gets a message. `since`: it was delivered then at the earliest; `is_marked`: as redelivered."""
        with self._lock:
            stream = self.streams.setdefault(reader, Stream(destination, reader))
            if group and not is_marked and all(id != message_id for id, _ in stream.told.get(body, ())):
                origin, _, sequence = message_id.rpartition("-")
                last = stream.last_of_group.get((origin, group), 0)
                if int(sequence) < last:
                    stream.overtaken.append((body, node))
                stream.last_of_group[origin, group] = max(last, int(sequence))
            stream.times[body] += 1
            stream.told.setdefault(body, []).append((message_id, node))
            if is_repeat:
                stream.repeats.append((body, node))
            stream.by_node[node] += 1
            for ack in stream.acks.get(body, ()):
                if since > ack.at:
                    stream.again.append(Again(body, message_id, node, self.lives[node], self.now, ack))
                else:
                    stream.on_the_way += 1
            self._count("received")

    def receipt_of_ack(self, reader: str, body: bytes, node: str, message_id: str, *, for_good: bool) -> None:
        """A consumer among those that make up `reader` hears that its ACK is recorded."""
        with self._lock:
            acks = self.streams[reader].acks.setdefault(body, [])
            if not any(ack.for_good >= for_good for ack in acks):
                acks.append(Ack(self.now, message_id, node, self.lives[node], for_good))

    def begin_life(self, node: str) -> None:
        """The node is started again."""
        with self._lock:
            self.lives[node] += 1

    def death(self, node: str, how: str) -> None:
        """A node ended that nothing had been done to which may end it."""
        with self._lock:
            self.deaths.append((self.now, node, how))

    @contextmanager
    def harm(self, what: str, *nodes: str, alone_since: float = inf) -> Iterator[None]:
        """Around what is done to nodes, until it is undone."""
        harm = Harm(what, nodes, self.now, self.now, alone_since)
        with self._lock:
            self.harms.append(harm)
        try:
            yield
        finally:
            harm.end = self.now

    def _count(self, what: str) -> None:
        self.rates[what][int(self.now / BUCKET_SECONDS)] += 1


def accepted_by(message_id: str) -> str:
    """The node that accepted the copy with this id."""
    return parse_origin(message_id.rpartition("-")[0]).node
