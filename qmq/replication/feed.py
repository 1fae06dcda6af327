"""What one peer is sent of the journal: live copying and catching up after a week are this one rule.

The feed knows what the peer has (what it told, plus what was sent to it) and walks the journal. A batch that the peer
has is passed over; one that continues what it has is sent; one beyond a hole is sent only after a gap notice, if
retention made the hole. A hole that damage made is told as such, once, and left to others to fill, because a damaged
node says "unknown", never "no"; what comes after it is sent when the peer has got past it.

Surprising: origins that the peer follows at their own node (`direct`) are passed over without counting as known, so
that in a healthy mesh a record crosses each link once, not once per relay. When such a direct link ends, the peer
says so and the feed begins again where the peer really is.

The window bounds what is sent and not yet acknowledged as received; beyond it the peer lags, which costs disk here
and no memory. Pure.
"""

from collections import deque
from typing import Final

from qmq.dots import Origin, Vector, merge
from qmq.replication.frames import Ack, Batches, Gap, Hole
from qmq.storage.batch import BatchHead

WINDOW_BYTES: Final = 1 << 20
"""Sent and not acknowledged. One frame may go over it, because a batch is never split."""

WINDOW_BATCHES: Final = 256

Read = list[tuple[int, BatchHead, bytes]]
"""What `Journal.read` gives: position, head, bytes."""


class Feed:
    """One peer's feed. It sends nothing before the peer's first Ack."""

    def __init__(self) -> None:
        self.peer: Vector = {}
        """What the peer has, or was sent."""
        self.durable: Vector = {}
        """What the peer has told to be durable there."""
        self.began = False
        self.seek_again = False
        """The journal must be walked anew from `peer`; the walker takes this back before it seeks."""
        self.bytes_sent = 0
        self._told: Vector = {}
        self._direct: frozenset[Origin] = frozenset()
        self._holes: set[Origin] = set()
        self._frames = 0
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._waiting_bytes = 0
        self._waiting_batches = 0

    @property
    def has_room(self) -> bool:
        """Whether more may be sent now."""
        return self._waiting_bytes < WINDOW_BYTES and self._waiting_batches < WINDOW_BATCHES

    def acknowledged(self, ack: Ack) -> None:
        """The peer tells what it has."""
        while self._waiting and self._waiting[0][0] <= ack.frames:
            _, size, count = self._waiting.popleft()
            self._waiting_bytes -= size
            self._waiting_batches -= count
        merge(self._told, ack.received)
        merge(self.peer, ack.received)
        merge(self.durable, ack.durable)
        if ack.direct is not None:
            direct = frozenset(ack.direct)
            if not self._direct <= direct:
                self.seek_again = True
            self._direct = direct
        if not self.began:
            self.began = self.seek_again = True

    def start_again(self, base: Vector) -> Gap | None:
        """A walk begins at `seek(peer)`; what retention has dropped and the peer lacks is told as a gap."""
        gaps = [
            (origin, through)
            for origin, through in base.items()
            if through > self.peer.get(origin, 0) and origin not in self._direct
        ]
        merge(self.peer, dict(gaps))
        return Gap(gaps) if gaps else None

    def select(self, read: Read, durable_end: int, base: Vector) -> tuple[list[Gap | Hole | Batches], int | None]:
        """What of `read` is sent, in order, and the position to go on from (None: none of it was durable)."""
        frames: list[Gap | Hole | Batches] = []
        holes: list[Origin] = []
        chosen: list[bytes] = []
        position: int | None = None
        for begin, head, data in read:
            if begin + head.size > durable_end:
                break
            position = begin + head.size
            known = self.peer.get(head.origin, 0)
            if head.last <= known or head.origin in self._direct:
                continue
            if head.first != known + 1:
                if base.get(head.origin, 0) < head.first - 1 or head.first <= known:
                    if head.origin not in self._holes:
                        holes.append(head.origin)
                        self._holes.add(head.origin)
                    continue
                self._close(frames, chosen)
                chosen = []
                frames.append(Gap([(head.origin, head.first - 1)]))
            chosen.append(data)
            self.peer[head.origin] = head.last
        self._close(frames, chosen)
        # Retention may have overtaken the walk; of an origin that writes no more, nothing else would tell the peer.
        gap = self.start_again(base)
        if gap is not None:
            frames.append(gap)
        if holes:
            frames.append(Hole(tuple(holes)))
        return frames, position

    def lag(self, have: Vector) -> dict[Origin, int]:
        """Per origin, how many of our records the peer has not told to have received; only where there are some."""
        return {
            origin: last - self._told.get(origin, 0)
            for origin, last in have.items()
            if last > self._told.get(origin, 0)
        }

    def _close(self, frames: list[Gap | Hole | Batches], chosen: list[bytes]) -> None:
        if not chosen:
            return
        self._frames += 1
        body = chosen[0] if len(chosen) == 1 else b"".join(chosen)
        self._waiting.append((self._frames, len(body), len(chosen)))
        self._waiting_bytes += len(body)
        self._waiting_batches += len(chosen)
        self.bytes_sent += len(body)
        frames.append(Batches(self._frames, body))
