"""When the tombstone of a deleted definition may go: when no older change of its key can arrive on any node.

It is not enough that every member has the tombstone: one that drops it could then receive an older, concurrent change
that another member wrote before it had the tombstone. So there are two steps. When every member has the tombstone,
their vectors together cover all such changes, because a later change has a later version. When every member has all
that these vectors cover, each has merged every older change into the tombstone, and it may go. A node that joins later
still reads older changes: see `DefinitionTable.stable`.

Many definitions of one kind may come and go, as queues of connections do. When there are CROWDED tombstones of a kind,
its old ones may go after CROWDED_AGE_US, before they fill the room of the kind.

One round at a time; a round that a restart interrupts begins again. A tombstone from a node whose clock is far ahead
has an age from when this node first sees it. Pure.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from qmq.definitions.definition import Definition, Version
from qmq.definitions.table import OF_KIND_MAX, DefinitionTable, Obsolete
from qmq.model.dots import Origin, Vector, covers, merge

CROWDED: Final = OF_KIND_MAX // 2

CROWDED_AGE_US: Final = 3_600_000_000
"""Messages of a deleted queue that were with a consumer are still dropped for so long."""


class TombstoneRounds:
    """The rounds of one node. Tombstones younger than `age_us` stay, for disks that are restored from a copy."""

    def __init__(self, age_us: int) -> None:
        self._age_us = age_us
        self._waiting: list[Definition] = []
        self._needed: Vector = {}
        self._seen_us: dict[Version, int] = {}
        """When this node first saw each tombstone that was from the future then."""

    def obsolete(
        self, table: DefinitionTable, members: Iterable[Vector], now_us: int, forgotten: Collection[Origin]
    ) -> Obsolete:
        """Take a step. `members`: the durable vectors of all members, this node included."""
        self._see(table.tombstones(), now_us)
        vectors = list(members)
        found = Obsolete()
        needed = {origin: last for origin, last in self._needed.items() if origin not in forgotten}
        if self._waiting and all(covers(has, needed) for has in vectors):
            found = Obsolete([one for one in self._waiting if table.by_key.get(one.key) == one], needed)
            self._waiting = []
        if not self._waiting:
            removed = {one.key for one in found.tombstones}
            left = [one for one in table.tombstones() if one.key not in removed]
            counts = Counter(one.key.kind for one in left)
            self._waiting = [
                one
                for one in left
                if self._is_old(one, now_us, counts[one.key.kind]) and _all_have(one, vectors, forgotten)
            ]
            self._needed = {}
            for has in vectors:
                merge(self._needed, has)
        return found

    def _see(self, tombstones: Iterable[Definition], now_us: int) -> None:
        seen = self._seen_us
        versions = [one.version for one in tombstones if one.version.time_us > now_us or one.version in seen]
        self._seen_us = {version: seen.get(version, now_us) for version in versions}

    def _is_old(self, tombstone: Definition, now_us: int, of_kind: int) -> bool:
        version = tombstone.version
        age_us = self._age_us if of_kind < CROWDED else min(self._age_us, CROWDED_AGE_US)
        return self._seen_us.get(version, version.time_us) < now_us - age_us


def _all_have(tombstone: Definition, vectors: list[Vector], forgotten: Collection[Origin]) -> bool:
    origin, sequence = tombstone.version.dot
    return origin in forgotten or all(has.get(origin, 0) >= sequence for has in vectors)
