"""Interest aggregation: one prefix pattern replaces many names, so the interest that a node publishes is bounded.

Names are grouped by the part before their last word (`/topic/app.user.` or `/topic/app/`). Above `NAMES_MAX` names in
one group, the node publishes the pattern of the group and none of its names. Below half of that it publishes the names
again. To find these names, all interest must be scanned. The scan waits for as many changes as there are names, so each
change costs one step of a scan. If more than `PATTERNS_MAX` patterns remain, the node publishes that it wants every
topic. Links then carry some messages without a subscriber, and no wanted message is lost. Pure.
"""

from collections.abc import Collection, Iterable
from typing import Final

from qmq.broker.messages.destination import is_pattern
from qmq.replication.interest.interest import PATTERNS_MAX

NAMES_MAX: Final = 1000
"""Names of one group that are published one by one."""

EVERYTHING: Final = "/topic/*"


class Aggregation:
    """`wanted` holds the interest of local subscribers and belongs to the caller; `published` is what peers receive."""

    def __init__(self, wanted: Collection[str]) -> None:
        self.published: dict[str, None] = {}
        self._wanted = wanted
        self._names: dict[str, int] = {}
        self._groups: dict[str, None] = {}
        # Groups of which few names are left, and how much has changed since such were last looked for.
        self._shrunk: dict[str, None] = {}
        self._changes = 0
        self._everything = False

    def change(self, patterns: Iterable[str]) -> dict[str, bool]:
        """Local subscribers added or removed these patterns; returns the changes to publish."""
        if self._everything:
            return {} if len(self._wanted) > PATTERNS_MAX // 2 else self._replace(self._all())
        touched = dict.fromkeys(patterns)
        for pattern in list(touched):
            group = group_of(pattern)
            if group is not None:
                self._count(group, 1 if pattern in self._wanted else -1, touched)
        self._changes += len(touched)
        if self._shrunk and self._changes >= len(self._wanted):
            self._split(touched)
        changes = self._send_some(touched)
        if len(self.published) > PATTERNS_MAX:
            self._everything = True
            self._names, self._groups, self._shrunk = {}, {}, {}
            late = self._replace({EVERYTHING: None})
            # A pattern that was not published needs no removal.
            changes = {p: wanted for p, wanted in {**changes, **late}.items() if wanted or changes.get(p) is not True}
        return changes

    def _count(self, group: str, step: int, touched: dict[str, None]) -> None:
        """Count one name of the group more or less; adds to `touched` what else may be published differently."""
        count = self._names.get(group, 0) + step
        if count:
            self._names[group] = count
        else:
            self._names.pop(group, None)
        if group in self._groups:
            if not count:
                del self._groups[group]
                self._shrunk.pop(group, None)
                touched[group] = None
            elif count < NAMES_MAX // 2:
                self._shrunk[group] = None
            else:
                self._shrunk.pop(group, None)
        elif count > NAMES_MAX:
            self._groups[group] = None
            touched.update({name: None for name in self.published if group_of(name) == group})
            touched[group] = None

    def _split(self, touched: dict[str, None]) -> None:
        """Publish the names of groups that have shrunk."""
        shrunk, self._shrunk, self._changes = self._shrunk, {}, 0
        for group in shrunk:
            del self._groups[group]
        touched.update(shrunk)
        touched.update({name: None for name in self._wanted if group_of(name) in shrunk})

    def _is_published(self, pattern: str) -> bool:
        return pattern in self._groups or (pattern in self._wanted and group_of(pattern) not in self._groups)

    def _send_some(self, touched: Iterable[str]) -> dict[str, bool]:
        changes: dict[str, bool] = {}
        for pattern in touched:
            wanted = self._is_published(pattern)
            if wanted == (pattern in self.published):
                continue
            changes[pattern] = wanted
            if wanted:
                self.published[pattern] = None
            else:
                del self.published[pattern]
        return changes

    def _replace(self, patterns: dict[str, None]) -> dict[str, bool]:
        changes = {pattern: False for pattern in self.published if pattern not in patterns}
        changes.update({pattern: True for pattern in patterns if pattern not in self.published})
        self.published = patterns
        return changes

    def _all(self) -> dict[str, None]:
        """Compute everything again from `wanted`."""
        self._everything = False
        self._names, self._groups = {}, {}
        for pattern in self._wanted:
            group = group_of(pattern)
            if group is not None:
                self._names[group] = self._names.get(group, 0) + 1
        self._groups = {group: None for group, count in self._names.items() if count > NAMES_MAX}
        single = {pattern: None for pattern in self._wanted if self._is_published(pattern)}
        return {**self._groups, **single}


def group_of(pattern: str) -> str | None:
    """The pattern of the group of `pattern`; None if it has no group."""
    if is_pattern(pattern):
        return None
    end = max(pattern.rfind("."), pattern.rfind("/")) + 1
    # A name without a last word would match nothing.
    return None if end == len(pattern) else f"{pattern[:end]}*"
