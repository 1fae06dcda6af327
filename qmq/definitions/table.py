"""The definitions of one node, and how a change of another node merges into them.

The later version of a key stays, on every node and in whatever order changes arrive: `merge` is commutative,
associative and idempotent. A deleted definition stays as a tombstone, so that an older change cannot bring it back.
When its tombstone is forgotten (`tombstones`), the vector `stable` takes its place: a node that joins later reads old
journals from their start, and passes on old changes before it has read the deletions.

`digest` is a hash of all definitions without tombstones. Two nodes with the same digest have the same definitions.

Surprising: the worker thread of the store reads the table too, so `by_key` gets new entries but no entry is changed in
place.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from qmq.definitions.definition import NUMBER_MAX, Definition, Key, Version
from qmq.errors import Refused
from qmq.model.dots import Origin, Vector, merge

OF_KIND_MAX: Final = 50_000
"""Definitions and tombstones of one kind on a node, before it refuses new keys. It always accepts those of peers. Each
kind has room of its own, so that an operator can add a user although many queues were declared and deleted.
"""


class Merged(NamedTuple):
    """What became of a change."""

    is_news: bool
    """Whether it is the present version now, and was not before."""
    lost: Definition | None = None
    """The earlier one of two concurrent changes with different values: nothing remains of it. Never a seed that a real
    change replaces."""


KNOWN: Final = Merged(False)


class Obsolete(NamedTuple):
    """Tombstones that may go."""

    tombstones: Sequence[Definition] = ()
    stable: Vector = {}
    """Every member has all changes that this covers."""


class DefinitionTable:
    """The later version of each key."""

    def __init__(self, definitions: Iterable[Definition] = (), stable: Vector | None = None) -> None:
        self.by_key: dict[Key, Definition] = {}
        self.digest = 0
        self._of_kind: Counter[str] = Counter()
        self._time_us = self._counter = 0
        self.stable: Vector = {}
        """What all members had when tombstones were forgotten: a change that it covers is deleted if `by_key` does not
        have its key. Causal stability of the literature on CRDTs (Baquero, Almeida, Shoker 2014)."""
        for definition in definitions:
            self.merge(definition)
        merge(self.stable, stable or {})

    def merge(self, change: Definition) -> Merged:
        """Keep `change` if it is later than what is known of its key."""
        key, version = change.key, change.version
        if version[:2] > (self._time_us, self._counter):
            self._time_us, self._counter = version[:2]
        known = self.by_key.get(key)
        if known is None:
            if is_covered(change, self.stable):
                return KNOWN
            self._keep(change, None)
            return Merged(True)
        if version == known.version:
            return KNOWN
        later, earlier = (change, known) if version > known.version else (known, change)
        is_seed = not earlier.version.time_us and later.version.time_us
        is_lost = later.is_concurrent_with(earlier) and later.text != earlier.text and not is_seed
        if later is change:
            self._keep(change, known)
        return Merged(later is change, earlier if is_lost else None)

    def has_later(self, key: Key, version: Version | None) -> bool:
        """Whether this table has, or had and has forgotten, a later change of `key` than this one; None: than none."""
        known = self.by_key.get(key)
        if known is not None:
            return version is None or known.version > version
        return version is not None and self.stable.get(version.origin, 0) >= version.sequence

    def next_version(self, now_us: int, origin: Origin, sequence: int) -> Version:
        """The version of a change made now: later than all that this node knows."""
        time_us = max(now_us, self._time_us)
        counter = self._counter + 1 if time_us == self._time_us else 0
        if counter > NUMBER_MAX:
            time_us, counter = time_us + 1, 0
        self._time_us, self._counter = time_us, counter
        return Version(time_us, counter, origin, sequence, 0 if time_us == now_us else now_us)

    def check_room(self, keys: Iterable[Key]) -> None:
        """Raises Refused when these keys find no room, or no later version is left."""
        for kind, count in Counter(key.kind for key in keys if key not in self.by_key).items():
            if self._of_kind[kind] + count > OF_KIND_MAX:
                deleted = sum(1 for one in self.tombstones() if one.key.kind == kind)
                raise Refused(
                    "too-many-definitions",
                    f"A node keeps at most {OF_KIND_MAX} definitions of the kind {kind}; {deleted} of them are deleted "
                    "and kept for a while.",
                )
        if self._time_us >= NUMBER_MAX:
            raise Refused("no-later-version", "A node has written a definition with the last time that there is.")

    def get(self, key: Key) -> Definition | None:
        """The present definition; None if there is none, or it is deleted."""
        found = self.by_key.get(key)
        return found if found is not None and found.text is not None else None

    def of_kind(self, kind: str) -> list[Definition]:
        """The definitions of this kind, without tombstones, sorted by name."""
        return sorted(one for one in self.present() if one.key.kind == kind)

    def present(self) -> Iterator[Definition]:
        """All definitions but tombstones."""
        return (one for one in list(self.by_key.values()) if one.text is not None)

    def tombstones(self) -> list[Definition]:
        return [one for one in self.by_key.values() if one.text is None]

    def of_origin(self, origin: Origin) -> list[Definition]:
        """The present versions that this origin wrote, tombstones included. Any thread may call it."""
        return [one for one in list(self.by_key.values()) if one.version.origin == origin]

    def forget(self, obsolete: Obsolete) -> None:
        """Forget what `tombstones.TombstoneRounds` of another copy returned; a later change stays."""
        merge(self.stable, obsolete.stable)
        for one in obsolete.tombstones:
            known = self.by_key.get(one.key)
            if known is not None and known.version == one.version:
                del self.by_key[one.key]
                self._of_kind[one.key.kind] -= 1

    def _keep(self, change: Definition, before: Definition | None) -> None:
        if before is not None and before.text is not None:
            self.digest ^= _hash(before)
        if change.text is not None:
            self.digest ^= _hash(change)
        if before is None:
            self._of_kind[change.key.kind] += 1
        self.by_key[change.key] = change


def is_covered(change: Definition, vector: Vector) -> bool:
    """Whether a node that has all that `vector` covers has met this change."""
    return vector.get(change.version.origin, 0) >= change.version.sequence


def _hash(definition: Definition) -> int:
    (kind, name), (time_us, counter, origin, sequence, _) = definition.key, definition.version
    text = f"{kind}\0{name}\0{time_us}\0{counter}\0{origin}\0{sequence}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
