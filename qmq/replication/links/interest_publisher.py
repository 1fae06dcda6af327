"""The interest that one link still has to send, per origin.

The writer pulls (`take`), so a burst of changes becomes one difference. A peer that reads slowly costs no memory: only
the name of an origin waits. A peer that is too far behind for a difference receives the whole state, in parts, from a
copy of the names. Changes during that time follow as a difference. Pure; `wake` is called when there is a frame to
take.
"""

from collections.abc import Callable
from dataclasses import dataclass

from qmq.model.dots import Origin
from qmq.replication.interest.interest import NEVER, InterestState
from qmq.replication.protocol.frames import InterestPart


class Whole:
    """The whole interest of one origin at `version`, which is sent in parts."""

    __slots__ = ("_number", "names", "origin", "part", "position", "version")

    def __init__(self, number: int, origin: Origin, state: InterestState) -> None:
        self._number = number
        self.origin = origin
        self.version = state.version
        self.names = list(state.patterns)
        self.position = 0
        self.part = 0

    def next_part(self, bytes_max: int) -> InterestPart:
        begin = self.position
        while self.position < len(self.names) and bytes_max > 0:
            bytes_max -= len(self.names[self.position])
            self.position += 1
        names = self.names[begin : self.position]
        part, self.part = self.part, self.part + 1
        patterns = dict.fromkeys(names, True)
        return InterestPart(self.origin, NEVER, self.version, self._number, part, self.is_over, patterns)

    @property
    def is_over(self) -> bool:
        return self.position == len(self.names)


@dataclass(eq=False, repr=False)
class InterestPublisher:
    """One link. `state_of` gives the present state of an origin; `sent` holds the versions that the peer has;
    `number` returns a number that no link with the peer has used."""

    __slots__ = ("_due", "_number", "_sent", "_wake", "_state_of", "_whole")

    _state_of: Callable[[Origin], InterestState | None]
    _wake: Callable[[], None]
    _sent: dict[Origin, int]
    _number: Callable[[], int]

    def __post_init__(self) -> None:
        # Origins to send, and whether to send them even without a change.
        self._due: dict[Origin, bool] = {}
        self._whole: Whole | None = None

    @property
    def is_due(self) -> bool:
        return bool(self._due) or self._whole is not None

    def mark(self, origin: Origin, *, always: bool = False) -> None:
        """Send what is new of `origin`; `always`: at least its version, so that the peer can request what it misses."""
        self._due[origin] = always or self._due.get(origin, False)
        self._wake()

    def knows(self, origin: Origin, version: int) -> None:
        """The peer has confirmed that version; NEVER: it requests the whole state again."""
        self._sent[origin] = version

    def forget(self, origin: Origin) -> None:
        """The peer needs no more updates of this origin."""
        self._due.pop(origin, None)
        self._sent.pop(origin, None)
        if self._whole is not None and self._whole.origin == origin:
            self._whole = None

    def take(self, bytes_max: int) -> list[InterestPart]:
        """Frames to send now: about `bytes_max`, or one difference."""
        frames: list[InterestPart] = []
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

    def _difference(self) -> InterestPart | None:
        """The difference of the next origin that is due; None if nothing changed or the whole state is needed."""
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
        return InterestPart(origin, sent, state.version, 0, 0, True, changes)
