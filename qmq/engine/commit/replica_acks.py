"""Replica acks: decides which responses are free, because enough other disks have their records.

Peers report how far they have this node's records on disk. A response of level k is free when k peers have reached its
last record. A response with QUORUM waits once for each owner whose messages it settles, until `settled_through` says
that no server will deliver them again (`qmq.broker.takeover.quorum_acks`). Responses of one session are freed in the
order of their requests, whatever their levels.

If that takes longer than `seconds`, the level (or the owner) becomes **short**. Everything that waits for it is freed,
marked with the number of copies that exist. Later responses are marked and freed at once, so an outage costs that time
once and not per message. Surprising: neither a link that is up nor a single report ends the shortage. A record sent
meanwhile (the probe) must be confirmed within half of `seconds`. Otherwise a peer that is always late would let every
second message wait in vain.

Responses of the level `HEARD` wait for no disk. They wait until every reachable peer has confirmed a version of this
node's interest. Each of them waits at most `heard_seconds`, and is marked if a peer has not confirmed.

Every step costs as much as it frees: levels are few, and responses of one level wait in the order of their records.
Pure: the caller passes the time, and delivers what is freed.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from qmq.broker.messages.receipt_levels import FSYNC, HEARD, QUORUM, REPLICAS_MAX

WAITING_BYTES_MAX: Final = 16 << 20
"""Responses that wait for replica acks. Beyond it no session decides more; links continue, because they free them."""

PARTIAL: Final = ("qmq-interest", "partial")
"""In a RECEIPT of a SUBSCRIBE: not every peer has confirmed in time that it sends messages of the subscription."""

ANSWER_BYTES: Final = 400
"""What a response costs beyond its receipts and frames."""

RECEIPT_BYTES: Final = 64


@dataclass(slots=True, eq=False)
class PendingReceipt:
    """A response to a session: receipts of one level, then frames, and whether the session ends after them.

    `sequence` is the last record that it confirms, or the version of the interest. `owners` are those whose messages it
    settles for good. `waits` counts the conditions that it waits for. `copies` is set when it is freed with too few
    replica acks: the number of disks that have it. `misses` then names what it should have waited for: its level, or
    QUORUM, or both. `marks` are header lines that each of the receipts carries. `begins`: these receipts complete those
    behind which the first messages of a subscription wait.
    """

    session: int
    receipts: list[str]
    level: int = field(default=FSYNC, kw_only=True)
    sequence: int = field(default=0, kw_only=True)
    owners: Collection[str] = field(default=(), kw_only=True)
    frames: list[bytes] = field(default_factory=list, init=False)
    ending: bool = field(default=False, init=False)
    begins: bool = field(default=False, init=False)
    deadline: float = field(default=0.0, init=False)
    waits: int = field(default=0, init=False)
    copies: int | None = field(default=None, init=False)
    misses: int = field(default=FSYNC, init=False)
    marks: tuple[tuple[str, str], ...] = field(default=(), init=False)

    @property
    def bytes(self) -> int:
        """The approximate memory that it costs, for a bound."""
        receipts = RECEIPT_BYTES * len(self.receipts) + sum(map(len, self.receipts))
        return ANSWER_BYTES + receipts + sum(map(len, self.frames))


class Probe(NamedTuple):
    """A record by which a short level is tested: if it is confirmed by `until`, the shortage ends."""

    sequence: int
    until: float


@dataclass(slots=True, eq=False)
class WaitingLine:
    """Responses that wait for the same condition, in the order of records. With a `probe` it is short: responses pass
    at once.
    """

    waiting: deque[PendingReceipt] = field(default_factory=deque)
    probe: Probe | None = None


def is_unknown_to_all(owner: str, marks: Mapping[str, int]) -> int:
    """Used without takeover: there are no servers to ask."""
    return 0


class ReplicaAcks:
    """Responses that wait for the disks of `peers`, at most `seconds`, or for their confirmation, at most
    `heard_seconds`.

    `settled_through(owner, marks)` returns the last record whose settles of that owner's messages cannot be lost, given
    that each peer has what `marks` says.
    """

    def __init__(
        self,
        peers: Iterable[str],
        seconds: float,
        heard_seconds: float = 1.0,
        settled_through: Callable[[str, Mapping[str, int]], int] = is_unknown_to_all,
    ) -> None:
        self._marks: dict[str, int] = dict.fromkeys(peers, 0)
        self._seconds = seconds
        self._heard_seconds = heard_seconds
        self._settled_through = settled_through
        # Those of the level HEARD, in the order of versions.
        self._unheard: deque[PendingReceipt] = deque()
        # By level: the records that so many peers have, and the responses that wait for that.
        self._through = [0] * (REPLICAS_MAX + 1)
        self._levels = [WaitingLine() for _ in range(REPLICAS_MAX + 1)]
        # By owner, if responses wait or the owner is short.
        self._owners: dict[str, WaitingLine] = {}
        self._lines: dict[int, deque[PendingReceipt]] = {}
        self._last = 0
        self.waiting_bytes = 0

    def enrol(self, peers: Iterable[str]) -> None:
        """Set the peers; the state of those that stay is kept."""
        self._marks = {peer: self._marks.get(peer, 0) for peer in peers}
        self._through = [0] * (REPLICAS_MAX + 1)
        self._reckon()

    def _reckon(self) -> None:
        for level, through in enumerate(sorted(self._marks.values(), reverse=True), 1):
            self._through[level] = through

    @property
    def short(self) -> list[int]:
        """The levels for which no response waits at the moment."""
        return [level for level, line in enumerate(self._levels) if line.probe is not None]

    @property
    def short_owners(self) -> list[str]:
        """The owners for whose servers no response waits at the moment."""
        return sorted([owner for owner, line in self._owners.items() if line.probe is not None])

    def holds(self, session: int) -> bool:
        """Whether a response of this session waits, so that all its later ones wait behind it."""
        return session in self._lines

    def ask(self, answer: PendingReceipt, now: float) -> bool:
        """Accept a response, in the order of records; True when it may be delivered at once.

        One of the level HEARD comes with `waits` 0 when every peer has confirmed its version, else with 1.
        """
        level = answer.level
        if level == HEARD and answer.waits:
            answer.deadline = now + self._heard_seconds
            self._unheard.append(answer)
        if level > FSYNC and answer.sequence > self._through[level]:
            self._wait_in(self._levels[level], answer, level, now)
        for owner in answer.owners:
            if answer.sequence > self._settled_through(owner, self._marks):
                self._wait_in(self._owners.setdefault(owner, WaitingLine()), answer, QUORUM, now)
        session_line = self._lines.get(answer.session)
        if session_line is None:
            if not answer.waits:
                return True
            session_line = self._lines[answer.session] = deque()
        session_line.append(answer)
        self.waiting_bytes += answer.bytes
        return False

    def peer_durable(self, peer: str, sequence: int, now: float) -> list[PendingReceipt]:
        """`peer` has our records up to `sequence`, and no more: its disk may be a new one. Returns what is freed."""
        self._marks[peer] = sequence
        self._reckon()
        freed: list[PendingReceipt] = []
        for level in range(1, len(self._marks) + 1):
            self._advance(self._levels[level], self._through[level], now, freed)
        if self._owners:
            freed += self.terms_changed(now)
        return freed

    def terms_changed(self, now: float) -> list[PendingReceipt]:
        """The terms may show more: which node serves which owner, or which promises exist. Returns what is freed."""
        freed: list[PendingReceipt] = []
        for owner, line in list(self._owners.items()):
            self._advance(line, self._settled_through(owner, self._marks), now, freed)
            if not line.waiting and line.probe is None:
                del self._owners[owner]
        return freed

    def interest_confirmed(self, version: int) -> list[PendingReceipt]:
        """Every reachable peer has confirmed that version. Returns what is freed."""
        freed: list[PendingReceipt] = []
        while self._unheard and self._unheard[0].sequence <= version:
            self._condition_met(self._unheard.popleft(), freed)
        return freed

    def expire(self, now: float) -> list[PendingReceipt]:
        """Free the responses that have waited long enough. Returns them."""
        freed: list[PendingReceipt] = []
        while self._unheard and self._unheard[0].deadline <= now:
            answer = self._unheard.popleft()
            answer.marks = (*answer.marks, PARTIAL)
            self._condition_met(answer, freed)
        for level, line in enumerate(self._levels):
            if line.waiting and line.waiting[0].deadline <= now:
                for short in range(level, REPLICAS_MAX + 1):
                    self._run_short(self._levels[short], short, now, freed)
        for line in self._owners.values():
            if line.waiting and line.waiting[0].deadline <= now:
                self._run_short(line, QUORUM, now, freed)
        return freed

    @property
    def next_deadline(self) -> float | None:
        """The time at which `expire` has something to do; None: nothing waits."""
        lines = [line.waiting for line in (*self._levels, *self._owners.values())]
        deadlines = [waiting[0].deadline for waiting in (*lines, self._unheard) if waiting]
        return min(deadlines) if deadlines else None

    def _wait_in(self, line: WaitingLine, answer: PendingReceipt, what: int, now: float) -> None:
        """Let a response wait, or mark it when the condition is short."""
        self._last = max(self._last, answer.sequence)
        if line.probe is None:
            answer.waits += 1
            answer.deadline = now + self._seconds
            line.waiting.append(answer)
            return
        if now > line.probe.until:
            line.probe = self._new_probe(now)
        self._mark(answer, what)

    def _advance(self, line: WaitingLine, through: int, now: float, freed: list[PendingReceipt]) -> None:
        """The condition of this line holds up to the record `through`."""
        waiting = line.waiting
        while waiting and waiting[0].sequence <= through:
            self._condition_met(waiting.popleft(), freed)
        # End a shortage whose probe was confirmed in time, and begin another probe if it was not.
        if line.probe is not None:
            if now <= line.probe.until:
                if through >= line.probe.sequence:
                    line.probe = None
            elif through < self._last:
                line.probe = self._new_probe(now)

    def _run_short(self, line: WaitingLine, what: int, now: float, freed: list[PendingReceipt]) -> None:
        line.probe = self._new_probe(now)
        while line.waiting:
            answer = line.waiting.popleft()
            self._mark(answer, what)
            self._condition_met(answer, freed)

    def _mark(self, answer: PendingReceipt, what: int) -> None:
        answer.copies = 1 + sum([mark >= answer.sequence for mark in self._marks.values()])
        answer.misses |= what

    def _condition_met(self, answer: PendingReceipt, freed: list[PendingReceipt]) -> None:
        """One of the conditions that it waits for is met."""
        answer.waits -= 1
        if answer.waits:
            return
        line = self._lines[answer.session]
        while line and not line[0].waits:
            self.waiting_bytes -= line[0].bytes
            freed.append(line.popleft())
        if not line:
            del self._lines[answer.session]

    def _new_probe(self, now: float) -> Probe:
        return Probe(self._last, now + self._seconds / 2)
