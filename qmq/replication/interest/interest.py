"""The interest of one incarnation as versioned state: names, patterns and a version.

Both sides use one class. The node that owns the state raises the version with each change; its peers apply what they
receive. An update is either the whole state or the difference between two versions. A difference holds the present
value of each pattern that changed after its first version. It therefore brings a receiver at that version or later
to its last version; an older receiver needs the whole state. A repeated or older update changes nothing. Pure.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

PATTERNS_MAX: Final = 100_000
"""Names and patterns of one node. A node with more interest publishes that it wants every topic (`aggregate`)."""

CHANGES_MAX: Final = 4096
"""Latest changes that are kept; a peer that missed more of them receives the whole state."""

NEVER: Final = -1
"""The version of a peer that has received nothing."""


class InterestState:
    """`patterns` at `version`. `left_out` counts patterns that found no room."""

    __slots__ = ("_changes", "_floor", "left_out", "patterns", "version")

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.patterns: dict[str, None] = {}
        self.left_out = 0
        self._changes: deque[tuple[int, str, bool]] = deque()
        # Differences are available from this version on.
        self._floor = max(version, 0)

    def advance(self, version: int, changes: Mapping[str, bool]) -> dict[str, bool]:
        """Go on to a later version; returns what has really changed."""
        assert version > self.version
        self.version = version
        changed: dict[str, bool] = {}
        for pattern, wanted in changes.items():
            # Unchanged patterns count too: they may be new for a peer between the two versions.
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
        """Replace all by a whole state that was received; returns what has changed."""
        new = dict.fromkeys(patterns)
        changes = {pattern: False for pattern in self.patterns if pattern not in new}
        changes.update(dict.fromkeys(new, True))
        changed = self.advance(version, changes)
        # The changes between the two versions are not known.
        self._changes.clear()
        self._floor = version
        return changed

    def since(self, version: int) -> dict[str, bool] | None:
        """The difference between `version` and the present one; None if only the whole state will do."""
        if version < self._floor:
            return None
        found: dict[str, bool] = {}
        for changed, pattern, wanted in reversed(self._changes):
            if changed <= version:
                break
            found.setdefault(pattern, wanted)
        return found
