"""What one peer is sent of the journal: live copying and catching up after a week are this one rule.

The feed knows what the peer has (what it reported, plus what was sent to it) and walks the journal. A batch that the
peer has is skipped; one that continues what it has is sent; one beyond a hole is sent only after a gap notice, if
retention made the hole. A hole that damage made is reported as such, once, and other nodes fill it: a damaged node
answers "unknown", never "no". Batches after the hole are sent when the peer has got past it. No batch follows a hole at
the end of an origin; the end of the walk finds it (`ended`). A batch in the journal that stands for a compacted range
(`batch.REST`) is no record of the origin: the range counts as dropped.

A peer may still get what the stores have of a gap (`gaps`): nothing of that origin is sent until it has got past it.

Surprising: origins that the peer pulls from their own node (`direct`) are skipped without counting as known. So in a
healthy mesh a record crosses each link once, not once per relay. When such a direct link ends, the peer reports it,
and the feed begins again at the peer's real position.

The window (`pace`) bounds what is sent and not yet acknowledged as received; beyond it the peer lags, which costs disk
here and no memory. Pure.
"""

from collections import deque
from typing import Final

from qmq.errors import MeshError
from qmq.model.dots import Origin, Vector, merge
from qmq.replication.protocol.congestion import CongestionWindow
from qmq.replication.protocol.frames import Ack, Batches, Gap, Hole
from qmq.storage.format.batch import REST, BatchHead

WINDOW_BATCHES: Final = 256

ORIGINS_MAX: Final = 100_000
"""In what one peer reports to have, some 200 bytes each. A mesh forgets an origin of which no member has a record."""

Read = list[tuple[int, BatchHead, bytes]]
"""What `Journal.read` gives: position, head, bytes."""


class JournalFeed:
    """One peer's feed. It sends nothing before the peer's first Ack."""

    def __init__(self) -> None:
        # Origins of which nothing is sent until the peer has this much: a gap or a hole was reported to it.
        self._awaited: Vector = {}
        self.peer: Vector = {}
        """What the peer has, or was sent."""
        self.durable: Vector = {}
        """What the peer has reported as durable."""
        self.began = False
        self.seek_again = False
        """The journal must be walked again from `peer`; the walker resets this before it seeks."""
        self.bytes_sent = 0
        self.pace = CongestionWindow()
        self.now = 0.0
        """Seconds of any monotonic clock; the caller sets it first."""
        self._reported: Vector = {}
        self._direct: frozenset[Origin] = frozenset()
        self._frames = 0
        # Number, bytes, batches and time of each frame that is not acknowledged.
        self._waiting: deque[tuple[int, int, int, float]] = deque()
        self._waiting_bytes = 0
        self._waiting_batches = 0

    @property
    def has_room(self) -> bool:
        """Whether more may be sent now."""
        return self.room > 0 and self._waiting_batches < WINDOW_BATCHES

    @property
    def room(self) -> int:
        """How many bytes may be sent now."""
        return self.pace.window - self._waiting_bytes

    def acknowledged(self, ack: Ack) -> None:
        """The peer reports what it has. Raises MeshError if it has named more than ORIGINS_MAX origins."""
        while self._waiting and self._waiting[0][0] <= ack.frames:
            _, size, count, sent_at = self._waiting.popleft()
            self.pace.took(self.now - sent_at)
            self._waiting_bytes -= size
            self._waiting_batches -= count
        merge(self._reported, ack.received)
        merge(self.peer, ack.received)
        merge(self.durable, ack.durable)
        if max(len(self.peer), len(self.durable)) > ORIGINS_MAX:
            raise MeshError("too-many-origins", f"the peer names more than {ORIGINS_MAX} origins")
        for origin in [o for o, through in self._awaited.items() if self.peer.get(o, 0) >= through]:
            del self._awaited[origin]
            self.seek_again = True
        if ack.direct is not None:
            direct = frozenset(ack.direct)
            if not self._direct <= direct:
                self.seek_again = True
            self._direct = direct
        if not self.began:
            self.began = self.seek_again = True

    def start_again(self, base: Vector) -> Gap | None:
        """A walk begins at `seek(peer)`; what retention has dropped and the peer does not have is reported as a gap."""
        gaps = [
            (origin, through)
            for origin, through in base.items()
            if through > max(self.peer.get(origin, 0), self._awaited.get(origin, 0)) and origin not in self._direct
        ]
        self._pass(gaps)
        return Gap(gaps) if gaps else None

    def _pass(self, gaps: list[tuple[Origin, int]]) -> None:
        """These gaps were reported to the peer."""
        merge(self._awaited, dict(gaps))

    def select(self, read: Read, durable_end: int, base: Vector) -> tuple[list[Gap | Hole | Batches], int | None]:
        """What of `read` is sent, in order, and the position to go on from (None: none of it was durable)."""
        frames: list[Gap | Hole | Batches] = []
        holes: list[Origin] = []
        chosen: list[bytes] = []
        chosen_bytes = 0
        position: int | None = None
        for begin, head, data in read:
            if begin + head.size > durable_end:
                break
            position = begin + head.size
            known = self.peer.get(head.origin, 0)
            if head.last <= known or head.origin in self._direct or head.origin in self._awaited:
                continue
            # What stores still hold may end inside a batch; no journal has it as the origin wrote it.
            is_compacted = head.attributes & REST != 0 or head.first <= known
            if head.first != known + 1 and not is_compacted and base.get(head.origin, 0) < head.first - 1:
                holes.append(head.origin)
                self._awaited[head.origin] = head.first - 1
                continue
            if head.first != known + 1 or is_compacted:
                self._close(frames, chosen)
                chosen = []
                dropped = [(head.origin, head.last if is_compacted else head.first - 1)]
                self._pass(dropped)
                frames.append(Gap(dropped))
                continue
            if chosen and chosen_bytes + len(data) > self.pace.quantum_bytes:
                self._close(frames, chosen)
                chosen = []
            chosen_bytes = len(data) + (chosen_bytes if chosen else 0)
            chosen.append(data)
            self.peer[head.origin] = head.last
        self._close(frames, chosen)
        # Retention may have overtaken the walk; if the origin writes no more, only this reports it to the peer.
        gap = self.start_again(base)
        if gap is not None:
            frames.append(gap)
        if holes:
            frames.append(Hole(tuple(holes)))
        return frames, position

    def ended(self, had: Vector, given_up: Vector) -> list[Gap | Hole]:
        """The walk has passed the position before which the journal had `had`: report what the peer did not get.

        That is damaged, unless this node gave it up itself (`given_up`). Reported once, like any other hole.
        """
        missing = [
            (origin, last)
            for origin, last in had.items()
            if last > self.peer.get(origin, 0) and origin not in self._awaited and origin not in self._direct
        ]
        gaps = [(origin, last) for origin, last in missing if last <= given_up.get(origin, 0)]
        holes = [(origin, last) for origin, last in missing if last > given_up.get(origin, 0)]
        self._pass(gaps)
        self._awaited.update(holes)
        frames: list[Gap | Hole] = []
        if gaps:
            frames.append(Gap(gaps))
        if holes:
            frames.append(Hole(tuple(origin for origin, _ in holes)))
        return frames

    def has_exactly(self, origin: Origin, last: int) -> bool:
        """Whether the peer has reported exactly this of `origin` as received and durable."""
        return self.began and self._reported.get(origin, 0) == last == self.durable.get(origin, 0)

    def has_none_beyond(self, origin: Origin, last: int) -> bool:
        """Whether the peer has no more of `origin` than that, and nothing is in flight to it."""
        return self.began and self.peer.get(origin, 0) <= last

    def lag(self, have: Vector) -> dict[Origin, int]:
        """Per origin, how many of our records the peer has not reported as received; only where there are some."""
        return {
            origin: last - self._reported.get(origin, 0)
            for origin, last in have.items()
            if last > self._reported.get(origin, 0)
        }

    def _close(self, frames: list[Gap | Hole | Batches], chosen: list[bytes]) -> None:
        if not chosen:
            return
        self._frames += 1
        body = chosen[0] if len(chosen) == 1 else b"".join(chosen)
        self._waiting.append((self._frames, len(body), len(chosen), self.now))
        self._waiting_bytes += len(body)
        self._waiting_batches += len(chosen)
        self.bytes_sent += len(body)
        frames.append(Batches(self._frames, body))
