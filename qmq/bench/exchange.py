"""A sender, its receivers, and the brake between them.

Closed loop: at most `outstanding` deliveries are under way. Without that brake a fast sender would measure how the
broker's backlog grows. One thread, one selector; whoever is ready is served, and the sender goes on whenever the
brake lets it.
"""

import selectors
import time
from collections.abc import Callable, Sequence

from qmq.bench.frames import Ring
from qmq.bench.line import Line

GIVE_UP_SECONDS = 5.0
"""Without any progress at the end, what is missing then is missing."""

LOOK_SECONDS = 0.1
"""A wait ends at the latest after this, so that ends of phases are seen."""


class Exchange:
    """`sender` sends `ring`; each message comes back `copies` times, counted by `lines` (the sender may be one)."""

    def __init__(self, sender: Line, ring: Ring, lines: Sequence[Line], *, copies: int, outstanding: int) -> None:
        self.received = 0
        self.ring = ring
        self._sender = sender
        self._lines = list(dict.fromkeys((sender, *lines)))
        self._copies = copies
        self._outstanding = outstanding
        self._sender_blocked = False
        self._selector = selectors.DefaultSelector()
        self._wants_write: set[Line] = set()
        for line in self._lines:
            line.begin()
            self._selector.register(line.socket, selectors.EVENT_READ, line)

    @property
    def expected(self) -> int:
        """How many deliveries follow from what was sent."""
        return self.ring.begun * self._copies

    def run(self, seconds: float) -> None:
        """Send and receive for so long."""
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            self._send()
            self._serve(min(deadline - now, LOOK_SECONDS))

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
            self._serve(0 if sent else LOOK_SECONDS)
        self._sender_blocked = False
        self._until(lambda: self.received >= self.expected)
        self._until(lambda: not any(line.waiting for line in self._lines))
        for line in self._lines:
            before = line.received
            line.leave()
            self.received += line.received - before

    def close(self) -> None:
        """Watch the lines no more; closing them is the caller's. Idempotent."""
        self._selector.close()

    def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while not done() and time.monotonic() < deadline:
            if self._serve(LOOK_SECONDS):
                deadline = time.monotonic() + GIVE_UP_SECONDS

    def _send(self) -> None:
        """Send what the brake and the kernel allow."""
        if self._sender_blocked or self._sender.waiting:
            return
        ring = self.ring
        allowed = (self.received + self._outstanding) // self._copies
        while piece := ring.next_piece(allowed):
            sent = self._sender.write(piece)
            ring.sent_bytes += sent
            if sent < len(piece):
                self._sender_blocked = True
                self._wait(self._sender, True)
                return

    def _serve(self, seconds: float) -> bool:
        """Wait at most so long and serve what is ready; True when something came or went."""
        before = self.received
        written = False
        for key, ready in self._selector.select(seconds):
            line: Line = key.data
            if ready & selectors.EVENT_WRITE:
                written = True
                line.write_waiting()
                if line is self._sender:
                    self._sender_blocked = False
            if ready & selectors.EVENT_READ:
                self.received += line.read()
            self._wait(line, bool(line.waiting) or (line is self._sender and self._sender_blocked))
        return written or self.received > before

    def _wait(self, line: Line, for_room: bool) -> None:
        """Ask the selector to tell when the kernel has room for `line`, or not to."""
        if for_room == (line in self._wants_write):
            return
        if for_room:
            self._wants_write.add(line)
            self._selector.modify(line.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, line)
        else:
            self._wants_write.discard(line)
            self._selector.modify(line.socket, selectors.EVENT_READ, line)
