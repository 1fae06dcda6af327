"""Deletions of fanouts: which messages of a fanout are deleted, by vector.

Like `dots`, every layer may import it. A **deletion** names a fanout and the vector of the deleting node at that time.
A message of that fanout is deleted if the vector covers its dot, on every node and whenever it arrives. A message with
a later dot stays: it was sent after the deletion, or concurrently with it. No clock takes part in that decision.

A deletion is remembered until no member can send a deleted message any more (`Deletions.obsolete`). Pure.

Surprising: the vector of a fanout is replaced, never changed, because other threads read it too.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from qmq.model.dots import Dot, Origin, Vector, covers, merge

DELETIONS_MAX: Final = 10_000
"""Deletions that a node remembers before it refuses a further request to delete. It always accepts those of peers."""

NOTHING: Final[Vector] = {}


class Deletion(NamedTuple):
    """One DELETE record. `dot` and `timestamp_us` are those of the record itself."""

    destination: str
    dot: Dot
    timestamp_us: int
    before: Vector
    """What is deleted: per origin, all messages of the fanout up to that sequence."""

    def includes(self, other: "Deletion") -> bool:
        """Whether the writer of this deletion knew `other`, so that this one deletes all that `other` deletes."""
        known = self.dot == other.dot or self.before.get(other.dot.origin, 0) >= other.dot.sequence
        return known and covers(self.before, other.before)


class Deletions:
    """The remembered deletions, by fanout. One thread changes them; any thread may call `before`."""

    def __init__(self, deletions: Iterable[Deletion] = ()) -> None:
        self.by_name: dict[str, list[Deletion]] = {}
        self._before: dict[str, Vector] = {}
        for deletion in deletions:
            self.add(deletion)

    @property
    def count(self) -> int:
        """How many are remembered."""
        return sum(map(len, self.by_name.values()))

    def add(self, deletion: Deletion) -> bool:
        """Remember `deletion` in place of those that it includes. False when a known one includes it."""
        known = self.by_name.get(deletion.destination, [])
        if any(one.includes(deletion) for one in known):
            return False
        self._set(deletion.destination, [*(one for one in known if not deletion.includes(one)), deletion])
        return True

    def before(self, destination: str) -> Vector:
        """Per origin, the sequence up to which messages of this fanout are deleted. Do not change the result."""
        return self._before.get(destination, NOTHING)

    def covers(self, destination: str, origin: Origin, sequence: int) -> bool:
        """Whether this message is deleted."""
        before = self._before.get(destination)
        return before is not None and sequence <= before.get(origin, 0)

    def of_origin(self, origin: Origin) -> list[Deletion]:
        """The deletions that this origin wrote. Any thread may call it."""
        return [one for known in list(self.by_name.values()) for one in known if one.dot.origin == origin]

    def obsolete(
        self, members: Iterable[Vector], older_than_us: int, forgotten: Collection[Origin]
    ) -> dict[str, list[Deletion]]:
        """By fanout, the old deletions that every member has durably, together with all that they delete."""
        vectors = list(members)
        found: dict[str, list[Deletion]] = {}
        for destination, known in self.by_name.items():
            for one in known:
                needed = dict(one.before)
                merge(needed, {one.dot.origin: one.dot.sequence})
                needed = {origin: last for origin, last in needed.items() if origin not in forgotten}
                if one.timestamp_us < older_than_us and all(covers(has, needed) for has in vectors):
                    found.setdefault(destination, []).append(one)
        return found

    def forget(self, obsolete: Mapping[str, Collection[Deletion]]) -> None:
        """Forget what `Deletions.obsolete` of another copy returned. Later deletions stay."""
        for destination, old in obsolete.items():
            dots = {one.dot for one in old}
            self._set(destination, [one for one in self.by_name.get(destination, ()) if one.dot not in dots])

    def forget_origins(self, forgotten: Collection[Origin]) -> list[str]:
        """Remove these origins, of which the mesh has no message. Return the fanouts whose deletions changed."""
        changed = [
            destination for destination, before in self._before.items() if any(origin in forgotten for origin in before)
        ]
        for destination in changed:
            self._set(
                destination,
                [
                    one._replace(before={o: last for o, last in one.before.items() if o not in forgotten})
                    for one in self.by_name[destination]
                ],
            )
        return changed

    def _set(self, destination: str, known: list[Deletion]) -> None:
        if not known:
            self.by_name.pop(destination, None)
            self._before.pop(destination, None)
            return
        before: Vector = {}
        for one in known:
            merge(before, one.before)
        self.by_name[destination] = known
        self._before[destination] = before
