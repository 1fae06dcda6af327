"""What clients did and saw, and what was done to the nodes meanwhile, with times. Threads write, one reads at the end.

A message is known by its body, which says who sent it and the how manieth it is, and which nothing else has.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

BUCKET_SECONDS = 0.5
"""How finely the picture shows what happened when."""


@dataclass(slots=True)
class Harm:
    """One fault: `what` was done to `nodes`, from when to when in seconds since the beginning."""

    what: str
    nodes: tuple[str, ...]
    begin: float
    end: float


@dataclass(slots=True)
class Stream:
    """What one reader was told: a follower of a fanout, or all consumers of a queue together."""

    destination: str
    reader: str
    times: Counter[bytes] = field(default_factory=Counter)
    """Body → how often it was told."""
    repeats: int = 0
    """Told again under the same message-id, on a stream that says where it stands."""
    by_node: Counter[str] = field(default_factory=Counter)


class History:
    """Everything of one run. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.harms: list[Harm] = []
        self.sent: dict[str, dict[bytes, float]] = {}
        """Destination → bodies handed to a node, and when for the first time."""
        self.again: dict[str, set[bytes]] = {}
        """Destination → bodies of which the first attempt had no answer, by senders that do not name their attempts."""
        self.receipted: dict[str, dict[bytes, float]] = {}
        """Destination → bodies with a receipt, and when it came."""
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
            sent = self.sent.setdefault(destination, {})
            if body not in sent:
                sent[body] = self.now
            elif not is_named:
                self.again.setdefault(destination, set()).add(body)
            self._count("sent")

    def receipt(self, destination: str, body: bytes, node: str) -> None:
        with self._lock:
            self.receipted.setdefault(destination, {})[body] = self.now
            self.receipted_by[node] += 1
            self._count("receipted")

    def receive(self, destination: str, reader: str, body: bytes, node: str, *, is_repeat: bool = False) -> None:
        with self._lock:
            stream = self.streams.setdefault(reader, Stream(destination, reader))
            stream.times[body] += 1
            stream.repeats += is_repeat
            stream.by_node[node] += 1
            self._count("received")

    @contextmanager
    def harm(self, what: str, *nodes: str) -> Iterator[None]:
        """Around what is done to nodes, until it is undone."""
        harm = Harm(what, nodes, self.now, self.now)
        with self._lock:
            self.harms.append(harm)
        try:
            yield
        finally:
            harm.end = self.now

    def _count(self, what: str) -> None:
        self.rates[what][int(self.now / BUCKET_SECONDS)] += 1
