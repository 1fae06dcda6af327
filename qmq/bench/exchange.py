"""A sender, its receivers, and the bound of deliveries between them.

Closed loop: at most `outstanding` deliveries are under way. Without that bound, a fast sender would measure how the
backlog of the broker grows. One thread and one selector serve every ready socket, and the sender continues whenever the
bound allows.
"""

import selectors
import time
from collections.abc import Callable, Sequence

from qmq.bench.connection import LoadConnection
from qmq.bench.frames import Supply
from qmq.bench.plan import BenchPlan, Meter, Report
from qmq.bench.progress import SILENT, RunProgress

GIVE_UP_SECONDS = 5.0
"""If nothing arrives for so long at the end, the rest counts as missing."""

STALL_SECONDS = 30.0
"""The same while messages are under way: a node may pause to write a large checkpoint."""

POLL_SECONDS = 0.1
"""The longest wait, so that ends of phases are noticed."""


class Exchange:
    """`sender` sends `ring`; each message comes back `copies` times, counted by `lines` (the sender may be one).

    With as many `lines` as `copies`, each of them gets every message once.
    """

    def __init__(
        self,
        sender: LoadConnection,
        ring: Supply,
        lines: Sequence[LoadConnection],
        *,
        copies: int,
        outstanding: int,
        progress: RunProgress = SILENT,
    ) -> None:
        self.received = 0
        self.ring = ring
        self._sender = sender
        self._counting = list(lines)
        self._lines = list(dict.fromkeys((sender, *lines)))
        self._copies = copies
        self._progress = progress
        self._outstanding = outstanding
        self._sender_blocked = False
        self._beats = any(line.beats for line in self._lines)
        self._selector = selectors.DefaultSelector()
        self._awaits_room: set[LoadConnection] = set()
        for line in self._lines:
            line.begin()
            self._selector.register(line.socket, selectors.EVENT_READ, line)

    @property
    def expected(self) -> int:
        """How many deliveries the sent messages cause."""
        return self.ring.begun * self._copies

    def expected_and_received(self) -> list[tuple[int, int]]:
        """For each line, if every line gets every message, so that a second copy on one cannot hide a loss on another.
        Otherwise for all together."""
        if len(self._counting) != self._copies:
            return [(self.expected, self.received)]
        return [(self.ring.begun, line.received) for line in self._counting]

    def run(self, seconds: float) -> None:
        """Send and receive for `seconds`."""
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            self._send()
            self._serve(min(deadline - now, POLL_SECONDS))

    def complete(self, messages: int) -> None:
        """Send `messages` more, and receive until all sent messages came back, or nothing comes for STALL_SECONDS."""
        most = self.ring.begun + messages

        def done() -> bool:
            if self.received >= most * self._copies:
                return True
            self._send(most)
            return False

        self._until(done, STALL_SECONDS)

    def collect(self, deliveries: int) -> None:
        """Send nothing, and receive until `deliveries` have come since the start, or none for STALL_SECONDS."""
        self._until(lambda: self.received >= deliveries, STALL_SECONDS)

    def finish(self) -> None:
        """Send no more; return when everything came back, or nothing more comes for GIVE_UP_SECONDS; then leave.

        Afterwards `received` is final: the goodbyes have been answered.
        """
        self._outstanding = 0
        ring = self.ring
        unfinished = ring.next_piece(ring.begun)
        while unfinished:
            sent = self._sender.write(unfinished)
            ring.sent_bytes += sent
            unfinished = unfinished[sent:]
            self._wait(self._sender, bool(unfinished))
            self._serve(0 if sent else POLL_SECONDS)
        self._sender_blocked = False
        self._until(lambda: self.received >= self.expected, GIVE_UP_SECONDS)
        self._until(lambda: not any(line.waiting for line in self._lines), GIVE_UP_SECONDS)
        for line in self._lines:
            before = line.received
            line.leave()
            self.received += line.received - before

    def close(self) -> None:
        """Stop watching the lines; the caller closes them. Idempotent."""
        self._selector.close()

    def _until(self, done: Callable[[], bool], patience_seconds: float) -> None:
        deadline = time.monotonic() + patience_seconds
        while not done() and time.monotonic() < deadline:
            if self._serve(POLL_SECONDS):
                deadline = time.monotonic() + patience_seconds

    def _send(self, messages_max: int | None = None) -> None:
        """Send what the bound and the kernel allow, and not more than `messages_max` since the start."""
        if self._sender_blocked or self._sender.waiting:
            return
        ring = self.ring
        allowed = (self.received + self._outstanding) // self._copies
        if messages_max is not None:
            allowed = min(allowed, messages_max)
        while piece := ring.next_piece(allowed):
            sent = self._sender.write(piece)
            ring.sent_bytes += sent
            if sent < len(piece):
                self._sender_blocked = True
                self._wait(self._sender, True)
                return

    def _serve(self, seconds: float) -> bool:
        """Wait at most `seconds` and serve ready sockets; True if bytes were read or written."""
        before = self.received
        written = False
        for key, ready in self._selector.select(seconds):
            line: LoadConnection = key.data
            if ready & selectors.EVENT_WRITE:
                written = True
                line.write_waiting()
                if line is self._sender:
                    self._sender_blocked = False
            if ready & selectors.EVENT_READ:
                self.received += line.read()
            self._wait(line, bool(line.waiting) or (line is self._sender and self._sender_blocked))
        self._progress.saw(self.received)
        if self._beats:
            now = time.monotonic()
            for line in self._lines:
                line.beat_if_due(now)
        return written or self.received > before

    def _wait(self, line: LoadConnection, for_room: bool) -> None:
        """Watch, or stop watching, whether the kernel has room for `line`."""
        if for_room == (line in self._awaits_room):
            return
        if for_room:
            self._awaits_room.add(line)
            self._selector.modify(line.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, line)
        else:
            self._awaits_room.discard(line)
            self._selector.modify(line.socket, selectors.EVENT_READ, line)


def timed(
    plan: BenchPlan,
    report: Report,
    exchange: Exchange,
    counted: Sequence[LoadConnection] = (),
    rate_of: Callable[[list[int]], int] = sum,
) -> list[int]:
    """Run `exchange` and close it. Returns what came on each of `counted` (none: on all) in the measured seconds.

    `rate_of` makes of that what `per_second` and the CPU time of each message count. Raises nothing when the node ends
    a connection: `report` says so, and the list is empty.
    """

    def received() -> list[int]:
        return [line.received for line in counted] or [exchange.received]

    meter = Meter(plan.pids)
    came: list[int] = []
    try:
        plan.progress.phase("warming up")
        exchange.run(plan.warmup_seconds)
        plan.progress.phase("measuring")
        meter.begin()
        before = received()
        exchange.run(plan.seconds)
        came = [now - had for now, had in zip(received(), before, strict=True)]
        report.figures.update(meter.end(rate_of(came)))
        plan.progress.phase("waiting for the rest")
        exchange.finish()
    except OSError as error:
        report.failed(error)
    finally:
        exchange.close()
    for wanted, got in exchange.expected_and_received():
        report.compare(wanted, got)
    return came
