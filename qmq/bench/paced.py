"""Messages at a fixed rate, and how long each took.

A message's time begins when it was *due*, not when it was sent: a generator that waited for a slow broker would
otherwise leave out exactly the moments that were slow (coordinated omission). How late the generator itself was is
measured apart; read it before blaming the broker for a tail.
"""

import select
import time

from qmq.bench.connection import LoadConnection
from qmq.bench.exchange import GIVE_UP_SECONDS, POLL_SECONDS
from qmq.bench.frames import NumberReader
from qmq.bench.histogram import Histogram
from qmq.bench.progress import SILENT, RunProgress


class Schedule:
    """When each message is due, in seconds of the monotonic clock. Starts when it is made."""

    __slots__ = ("interval", "start")

    def __init__(self, rate: float) -> None:
        self.interval = 1 / rate
        self.start = time.monotonic()

    def due(self, number: int) -> float:
        return self.start + number * self.interval


class Stopwatch:
    """A counter that times numbered messages against their schedule, in `times`, which may be exchanged meanwhile."""

    __slots__ = ("_reader", "_schedule", "_seen", "repeated", "times")

    def __init__(self, schedule: Schedule) -> None:
        self.times = Histogram()
        self.repeated = 0
        self._schedule = schedule
        self._reader = NumberReader()
        self._seen: set[int] = set()

    def take(self, data: bytes) -> tuple[int, bytes]:
        now = time.monotonic()
        numbers = self._reader.take(data)
        for number in numbers:
            if number in self._seen:
                self.repeated += 1
            self._seen.add(number)
            self.times.add(now - self._schedule.due(number))
        return len(numbers), b""


class Paced:
    """Sends message k of `schedule` over `sender`; it comes back to `receiver`, whose counter is the stopwatch."""

    def __init__(
        self,
        sender: LoadConnection,
        receiver: LoadConnection,
        frame: tuple[bytes, bytes],
        schedule: Schedule,
        progress: RunProgress = SILENT,
    ) -> None:
        self.sent = 0
        self.lags = Histogram()
        """How late the generator was with each message (waiting for room in the kernel not included)."""
        self._progress = progress
        self._sender = sender
        self._receiver = receiver
        self._before, self._after = frame
        self._schedule = schedule
        sender.begin()
        receiver.begin()

    def run(self, seconds: float) -> None:
        """Keep to the schedule for so long."""
        schedule = self._schedule
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            if schedule.due(self.sent) <= now:
                self._send_due(now)
            self._serve(min(schedule.due(self.sent), deadline) - time.monotonic())

    def finish(self) -> None:
        """Wait until everything came back, or nothing more comes for GIVE_UP_SECONDS; then leave."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while (self._receiver.received < self.sent or self._sender.waiting) and time.monotonic() < deadline:
            before = self._receiver.received
            self._serve(POLL_SECONDS)
            if self._receiver.received > before:
                deadline = time.monotonic() + GIVE_UP_SECONDS
        self._sender.leave()
        self._receiver.leave()

    def _send_due(self, now: float) -> None:
        schedule = self._schedule
        frames = []
        while schedule.due(self.sent) <= now:
            frames.append(b"%b%010d%b" % (self._before, self.sent, self._after))
            self.lags.add(now - schedule.due(self.sent))
            self.sent += 1
        self._sender.waiting += b"".join(frames)
        self._sender.write_waiting()

    def _serve(self, seconds: float) -> None:
        # Not a selector over epoll: its time limit has whole milliseconds, which would be most of what is measured.
        full_sockets = [self._sender.socket] if self._sender.waiting else []
        sockets = [self._receiver.socket, self._sender.socket]
        readable, writable, _ = select.select(sockets, full_sockets, [], max(seconds, 0))
        if self._receiver.socket in readable:
            self._receiver.read()
        if self._sender.socket in readable:
            self._sender.read()
        if writable:
            self._sender.write_waiting()
        self._progress.saw(self._receiver.received)
        now = time.monotonic()
        self._sender.beat_if_due(now)
        self._receiver.beat_if_due(now)
