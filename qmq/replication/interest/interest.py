"""What topics the subscribers of one incarnation want, as versioned state: names and patterns, and a version.

One class for both sides: the node whose state it is raises the version with every change, its peers follow by what they
are told. Told is either all of it, or the difference between two versions. A difference holds the present word on every
pattern that changed after its first version; so it brings anyone who stands at that version or later to its last one,
and whoever stands before it must be told all. A repeat, or an older version, changes nothing. Pure.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

PATTERNS_MAX: Final = 100_000
"""Names and patterns of one node. A node that wants more asks for every topic instead (`aggregate`)."""

CHANGES_MAX: Final = 4096
"""Latest changes that are remembered; who missed more than these is told all."""

NEVER: Final = -1
"""The version of somebody who knows nothing."""


class InterestState:
    """`patterns` at `version`. `left_out` counts patterns that found no room."""

    __slots__ = ("_changes", "_floor", "left_out", "patterns", "version")

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.patterns: dict[str, None] = {}
        self.left_out = 0
        self._changes: deque[tuple[int, str, bool]] = deque()
        # Differences can be told from this version on.
        self._floor = max(version, 0)

    def advance(self, version: int, changes: Mapping[str, bool]) -> dict[str, bool]:
        """Go on to a later version; returns what has really changed."""
        assert version > self.version
        self.version = version
        changed: dict[str, bool] = {}
        for pattern, wanted in changes.items():
            # Also what is no news here: it may be for somebody who stands between the two versions.
            self._changes.append((version, pattern, wanted))
            if wanted == (pattern in self.patterns):
                continue
            if not wanted:
                del self.patterns[pattern]
            elif len(self.patterns) < PATTERNS_MAX:
                self.patterns[pattern] = None
            else:
                self.left_out += 1
                continue
            changed[pattern] = wanted
        while len(self._changes) > CHANGES_MAX:
            self._floor = self._changes.popleft()[0]
        return changed

    def replace(self, version: int, patterns: Iterable[str]) -> dict[str, bool]:
        """Become what somebody told as a whole; returns what has changed."""
        fresh = dict.fromkeys(patterns)
        changes = {pattern: False for pattern in self.patterns if pattern not in fresh}
        changes.update(dict.fromkeys(fresh, True))
        changed = self.advance(version, changes)
        # What happened on the way there is not known.
        self._changes.clear()
        self._floor = version
        return changed

    def since(self, version: int) -> dict[str, bool] | None:
        """The difference between `version` and now; None when all must be told."""
        if version < self._floor:
            return None
        found: dict[str, bool] = {}
        for changed, pattern, wanted in reversed(self._changes):
            if changed <= version:
                break
            found.setdefault(pattern, wanted)
        return found
