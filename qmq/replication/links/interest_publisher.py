"""What one link still has to tell of who wants which topics.

The writer pulls (`take`), so a burst of changes is one difference, and a peer that reads slowly costs no memory: what
waits is the name of an origin. Somebody who is too far behind for a difference is told all, in parts, from a copy of
the names; what changes meanwhile follows as a difference. Pure; `wake` is called when there is something to take.
"""

from collections.abc import Callable

from qmq.dots import Origin
from qmq.replication.interest.interest import NEVER, InterestState
from qmq.replication.protocol.frames import WantsPart


class Whole:
    """All that one origin wants at `version`, on its way in parts."""

    __slots__ = ("_number", "names", "origin", "part", "position", "version")

    def __init__(self, number: int, origin: Origin, state: InterestState) -> None:
        self._number = number
        self.origin = origin
        self.version = state.version
        self.names = list(state.patterns)
        self.position = 0
        self.part = 0

    def next_part(self, bytes_max: int) -> WantsPart:
        begin = self.position
        while self.position < len(self.names) and bytes_max > 0:
            bytes_max -= len(self.names[self.position])
            self.position += 1
        names = self.names[begin : self.position]
        part, self.part = self.part, self.part + 1
        patterns = dict.fromkeys(names, True)
        return WantsPart(self.origin, NEVER, self.version, self._number, part, self.is_over, patterns)

    @property
    def is_over(self) -> bool:
        return self.position == len(self.names)


class InterestPublisher:
    """One link. `state_of` gives the present state of an origin; `sent` is what the other side has already; `number`
    gives a number never used before on any link with it."""

    __slots__ = ("_due", "_number", "_sent", "_wake", "_state_of", "_whole")

    def __init__(
        self,
        state_of: Callable[[Origin], InterestState | None],
        wake: Callable[[], None],
        sent: dict[Origin, int],
        number: Callable[[], int],
    ) -> None:
        self._number = number
        self._state_of = state_of
        self._wake = wake
        self._sent = sent
        # What is to be told, and whether also when there is no news in it.
        self._due: dict[Origin, bool] = {}
        self._whole: Whole | None = None

    @property
    def is_due(self) -> bool:
        return bool(self._due) or self._whole is not None

    def mark(self, origin: Origin, *, always: bool = False) -> None:
        """Something of `origin` is to be told; `always`: its version at least, so that the peer asks if it lacks it."""
        self._due[origin] = always or self._due.get(origin, False)
        self._wake()

    def knows(self, origin: Origin, version: int) -> None:
        """The peer has told that it stands there; NEVER: it wants all again."""
        self._sent[origin] = version

    def forget(self, origin: Origin) -> None:
        """Of this one the peer need not be told any more."""
        self._due.pop(origin, None)
        self._sent.pop(origin, None)
        if self._whole is not None and self._whole.origin == origin:
            self._whole = None

    def take(self, bytes_max: int) -> list[WantsPart]:
        """What to tell now: about `bytes_max`, or one difference."""
        frames: list[WantsPart] = []
        while bytes_max > 0 and self.is_due:
            if self._whole is None:
                frame = self._difference()
                if frame is None:
                    continue
            else:
                whole = self._whole
                frame = whole.next_part(bytes_max)
                if frame.is_last:
                    self._whole = None
                    self._sent[whole.origin] = whole.version
                    self._due.setdefault(whole.origin, False)
            bytes_max -= sum(map(len, frame.patterns))
            frames.append(frame)
        return frames

    def _difference(self) -> WantsPart | None:
        """The next one of those that are due; None when it has no news, or must be told whole."""
        origin, always = next(iter(self._due.items()))
        del self._due[origin]
        state = self._state_of(origin)
        if state is None or state.version == NEVER:
            return None
        sent = self._sent.get(origin, NEVER)
        if sent >= state.version and not always:
            return None
        changes = state.since(sent)
        if changes is None:
            self._whole = Whole(self._number(), origin, state)
            return None
        self._sent[origin] = state.version
        return WantsPart(origin, sent, state.version, 0, 0, True, changes)
