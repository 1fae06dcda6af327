"""When the tombstone of a deleted definition may go: when no older change of its key can arrive on any node.

It is not enough that every member has the tombstone: one that drops it could then receive an older, concurrent change
that another member wrote before it had the tombstone. So there are two steps. When every member has the tombstone,
their vectors together cover all such changes, because a later change has a later version. When every member has all
that these vectors cover, each has merged every older change into the tombstone, and it may go.

One round at a time; a round that a restart interrupts begins again. Pure.
"""

from collections.abc import Collection, Iterable

from qmq.definitions.definition import Definition
from qmq.definitions.table import DefinitionTable
from qmq.dots import Origin, Vector, covers, merge


class TombstoneRounds:
    """The rounds of one node. `older_than_us`: younger tombstones stay, for disks that are restored from a copy."""

    def __init__(self) -> None:
        self._waiting: list[Definition] = []
        self._needed: Vector = {}

    def obsolete(
        self, table: DefinitionTable, members: Iterable[Vector], older_than_us: int, forgotten: Collection[Origin]
    ) -> list[Definition]:
        """Take a step. `members`: the durable vectors of all members, this node included."""
        vectors = list(members)
        found: list[Definition] = []
        needed = {origin: last for origin, last in self._needed.items() if origin not in forgotten}
        if self._waiting and all(covers(has, needed) for has in vectors):
            found = [one for one in self._waiting if table.by_key.get(one.key) == one]
            self._waiting = []
        if not self._waiting:
            gone = {one.key for one in found}
            self._waiting = [
                one
                for one in table.tombstones()
                if one.key not in gone and one.version.time_us < older_than_us and _all_have(one, vectors, forgotten)
            ]
            self._needed = {}
            for has in vectors:
                merge(self._needed, has)
        return found


def _all_have(tombstone: Definition, vectors: list[Vector], forgotten: Collection[Origin]) -> bool:
    origin, sequence = tombstone.version.dot
    return origin in forgotten or all(has.get(origin, 0) >= sequence for has in vectors)
