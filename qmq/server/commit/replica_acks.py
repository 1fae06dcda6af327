"""Which answers may be told: those whose records are on as many other disks, or on such, as their level asks.

Peers tell how far they have this node's records durably; an answer of level k is free when k of them have reached its
last record. One with QUORUM waits in the line of each owner whose messages it settles, until `settled_through` says
that no server will hand them out again (`qmq.broker.takeover.quorum`). Answers of one session are freed in the order in
which they were asked, whatever their levels.

When that does not come within `seconds`, the level (or the owner) is **short**: all that waits for it is freed, marked
with the number of copies that there are, and what comes is marked and freed at once, so that an outage costs that time
once and not per message. Surprising: a link that is up does not end the shortage, and no single report does. A record
that was given out meanwhile (the probe) must be confirmed in half of `seconds`; a peer that is always late would
otherwise let every other message wait in vain.

Answers of the level `HEARD` wait for no disk but until every peer that can be reached has confirmed a version of what
this node's subscribers want. Each of them waits at most `heard_seconds`, and is marked when nobody has.

Every step costs what it frees: levels are few, answers of one level wait in the order of their records. Pure: the
caller brings the time, and tells what is freed.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.receipt_levels import FSYNC, HEARD, QUORUM, REPLICAS_MAX, disks_of

WAITING_BYTES_MAX: Final = 16 << 20
"""Answers that wait for copies. Beyond it no session decides more; links go on, because they are what frees them."""

PARTIAL: Final = ("qmq-interest", "partial")
"""In a RECEIPT of a SUBSCRIBE: not every peer has confirmed in time that it sends what was subscribed to."""

ANSWER_BYTES: Final = 400
"""What an answer costs beyond its receipts and frames."""

RECEIPT_BYTES: Final = 64


class PendingReceipt:
    """Something told to a session: receipts of one level, then frames, and whether it ends after them.

    `sequence` is the last record that it is about, or the version of what subscribers want; `owners` are those whose
    messages it settles for good. `waits` counts what it waits for. `copies` is set when it is told although too few
    have that: on how many disks it is, and `misses` says what it should have waited for: its level, or QUORUM, or both.
    `marks` are header lines that each of the receipts carries. `begins`: with it the receipts are complete behind which
    the first messages of a subscription wait.
    """

    __slots__ = (
        "begins",
        "copies",
        "deadline",
        "ending",
        "frames",
        "level",
        "marks",
        "misses",
        "owners",
        "receipts",
        "sequence",
        "session",
        "waits",
    )

    def __init__(
        self,
        session: int,
        receipts: list[str],
        *,
        level: int = FSYNC,
        sequence: int = 0,
        owners: Collection[str] = (),
    ) -> None:
        self.session = session
        self.receipts = receipts
        self.frames: list[bytes] = []
        self.ending = False
        self.begins = False
        self.level = level
        self.owners = owners
        self.sequence = sequence
        self.deadline = 0.0
        self.waits = 0
        self.copies: int | None = None
        self.misses = FSYNC
        self.marks: tuple[tuple[str, str], ...] = ()

    @property
    def bytes(self) -> int:
        """What it costs to hold, near enough for a bound."""
        receipts = RECEIPT_BYTES * len(self.receipts) + sum(map(len, self.receipts))
        return ANSWER_BYTES + receipts + sum(map(len, self.frames))


def answers_of(out: Outcome) -> list[PendingReceipt]:
    """What `out` tells its session, one Answer for each run of receipts of one level."""
    answers: list[PendingReceipt] = []
    begins = out.levels if out.levels and out.levels[0][0] == 0 else [(0, FSYNC), *out.levels]
    for number, (begin, level) in enumerate(begins):
        end = begins[number + 1][0] if number + 1 < len(begins) else len(out.receipts)
        answer = PendingReceipt(out.session, out.receipts[begin:end], level=disks_of(level), sequence=out.sequence)
        if level >= QUORUM:
            answer.owners = out.owners or ()
        answers.append(answer)
    if out.marks:
        for answer in answers:
            answer.marks = out.marks
    answers[-1].frames = out.frames
    answers[-1].ending = out.ending
    answers[-1].begins = out.begins
    return answers


class Probe:
    """A record by which a short level is tried: confirmed by `until`, it ends the shortage."""

    __slots__ = ("sequence", "until")

    def __init__(self, sequence: int, until: float) -> None:
        self.sequence = sequence
        self.until = until


class WaitingLine:
    """Answers that wait for the same, in the order of records. With a `probe` it is short: nobody waits."""

    __slots__ = ("probe", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[PendingReceipt] = deque()
        self.probe: Probe | None = None


def is_unknown_to_all(owner: str, marks: Mapping[str, int]) -> int:
    """Without takeover there are no servers to ask."""
    return 0


class ReplicaAcks:
    """Answers that wait for the disks of `peers`, for `seconds` at most, or for their word, for `heard_seconds`.

    `settled_through(owner, marks)` says up to which record settles of that owner's messages will not be forgotten, when
    each peer has what `marks` says.
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
        # By level: how far so many peers have our records, and who waits for that.
        self._through = [0] * (REPLICAS_MAX + 1)
        self._levels = [WaitingLine() for _ in range(REPLICAS_MAX + 1)]
        # By owner, where somebody waits or it is short.
        self._owners: dict[str, WaitingLine] = {}
        self._lines: dict[int, deque[PendingReceipt]] = {}
        self._last = 0
        self.waiting_bytes = 0

    def enrol(self, peers: Iterable[str]) -> None:
        """From now on these are the peers; what is known of those that stay stays."""
        self._marks = {peer: self._marks.get(peer, 0) for peer in peers}
        self._through = [0] * (REPLICAS_MAX + 1)
        self._reckon()

    def _reckon(self) -> None:
        for level, through in enumerate(sorted(self._marks.values(), reverse=True), 1):
            self._through[level] = through

    @property
    def short(self) -> list[int]:
        """The levels that nobody waits for at the moment."""
        return [level for level, line in enumerate(self._levels) if line.probe is not None]

    @property
    def short_owners(self) -> list[str]:
        """The owners whose servers nobody waits for at the moment."""
        return sorted([owner for owner, line in self._owners.items() if line.probe is not None])

    def holds(self, session: int) -> bool:
        """Whether something of this session waits, so that all it asks later waits behind."""
        return session in self._lines

    def ask(self, answer: PendingReceipt, now: float) -> bool:
        """Take an answer, in the order of records; True when it may be told at once.

        One of the level HEARD comes with `waits` 0 when everyone has confirmed its version, else with 1.
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
        """`peer` has our records up to there, and no more: its disk may be a new one. Returns what may be told."""
        self._marks[peer] = sequence
        self._reckon()
        freed: list[PendingReceipt] = []
        for level in range(1, len(self._marks) + 1):
            self._advance(self._levels[level], self._through[level], now, freed)
        if self._owners:
            freed += self.terms_changed(now)
        return freed

    def terms_changed(self, now: float) -> list[PendingReceipt]:
        """Who serves whom, or who has promised what, may be known better. Returns what may be told."""
        freed: list[PendingReceipt] = []
        for owner, line in list(self._owners.items()):
            self._advance(line, self._settled_through(owner, self._marks), now, freed)
            if not line.waiting and line.probe is None:
                del self._owners[owner]
        return freed

    def heard(self, version: int) -> list[PendingReceipt]:
        """Every peer that can be reached has confirmed that version. Returns what may be told."""
        freed: list[PendingReceipt] = []
        while self._unheard and self._unheard[0].sequence <= version:
            self._let_go(self._unheard.popleft(), freed)
        return freed

    def expire(self, now: float) -> list[PendingReceipt]:
        """Free what has waited long enough. Returns what may be told."""
        freed: list[PendingReceipt] = []
        while self._unheard and self._unheard[0].deadline <= now:
            answer = self._unheard.popleft()
            answer.marks = (*answer.marks, PARTIAL)
            self._let_go(answer, freed)
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
        """When `expire` has something to do; None: nothing waits."""
        lines = [line.waiting for line in (*self._levels, *self._owners.values())]
        deadlines = [waiting[0].deadline for waiting in (*lines, self._unheard) if waiting]
        return min(deadlines) if deadlines else None

    def _wait_in(self, line: WaitingLine, answer: PendingReceipt, what: int, now: float) -> None:
        """Let an answer wait, or mark it when nobody waits for this."""
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
        """What this line waits for has come up to the record `through`."""
        waiting = line.waiting
        while waiting and waiting[0].sequence <= through:
            self._let_go(waiting.popleft(), freed)
        # End a shortage whose probe was confirmed in time, and begin another try where it was not.
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
            self._let_go(answer, freed)

    def _mark(self, answer: PendingReceipt, what: int) -> None:
        answer.copies = 1 + sum([mark >= answer.sequence for mark in self._marks.values()])
        answer.misses |= what

    def _let_go(self, answer: PendingReceipt, freed: list[PendingReceipt]) -> None:
        """One of the things that it waits for needs no more waiting."""
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
