"""Dead incarnations: how the mesh comes to forget them, so that vectors do not grow by one entry with every restart.

    dead: its node has a newer incarnation
      │ every member has the same records of it (its node says so in a SEAL record)
      ▼
    sealed: its last sequence is fixed for ever
      │ every member, each for itself, has nothing of it left, in journal, queue store and fanout logs
      │ (each says so in a SEAL record with `released`)
      ▼
    forgotten: it leaves every vector; only its name is remembered, so that nothing of it is taken again

Facts only grow and may come in any order and more than once, so the records need no answer. They reach the catalog with
the checkpoint that carries them (`facts`). `qmq.mesh.repair.incarnation_gc` decides that a step is due. A
record may have left all journals before every node had it; so nodes that know of dead incarnations also ask each other,
and record what others have said (`of`).

Surprising: a node that forgets before its peers do still gets their word about the origin, and is brought its records
by an old copy of a disk that was put back. Both are passed over as known, as long as the name is remembered.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgpack

from qmq.errors import CorruptLog
from qmq.model.dots import Origin, Vector, parse_origin
from qmq.storage.format.record import INCARNATION_MAX, number_of, text_of

SEALED: Final = "sealed/"
FORGOTTEN: Final = "forgotten/"

EVERYBODY: Final = "*"

FORGOTTEN_MAX: Final = 10_000
"""Names remembered; those forgotten first are dropped first."""


class Seal(NamedTuple):
    """One line of a SEAL record. `is_released`: a node has nothing of `origin` left; else this fixes its end."""

    origin: Origin
    last: int
    is_released: bool
    of: str = ""
    """The nodes that have nothing left: empty for the writer, `EVERYBODY` for all members."""


def pack_seals(seals: Iterable[Seal]) -> bytes:
    """Body of a SEAL record: `[[node, incarnation, last, released, of], …]`."""
    packed: bytes = msgpack.packb([[*seal.origin, seal.last, seal.is_released, seal.of] for seal in seals])
    return packed


def unpack_seals(body: bytes) -> list[Seal]:
    """The inverse of `pack_seals`; what a later version adds to a line is ignored. Raises CorruptLog."""
    try:
        return [
            Seal(Origin(text_of(node), number_of(run, INCARNATION_MAX)), number_of(last), bool(released), text_of(of))
            for node, run, last, released, of, *_ in msgpack.unpackb(body)
        ]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptLog(f"not a list of seals: {error}") from error


class Seals:
    """What one node knows of dead incarnations."""

    def __init__(self) -> None:
        self.last: Vector = {}
        """Sealed and not forgotten: where it ends."""
        self.released: dict[Origin, set[str]] = {}
        """Members that have nothing of it left."""
        self.forgotten: dict[Origin, None] = {}

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> "Seals":
        """What the catalog remembers."""
        seals = cls()
        for name, text in facts.items():
            if name.startswith(FORGOTTEN):
                seals.forgotten[parse_origin(name.removeprefix(FORGOTTEN))] = None
            elif name.startswith(SEALED):
                origin = parse_origin(name.removeprefix(SEALED))
                found = json.loads(text)
                seals.last[origin] = found["last"]
                seals.released[origin] = set(found["released"])
        return seals

    def take(self, writer: str, seals: Iterable[Seal]) -> list[Origin]:
        """Take a record of the node `writer` into account. Returns the origins of which it says something new."""
        news: dict[Origin, None] = {}
        for seal in seals:
            origin = seal.origin
            if self.is_news(writer, seal):
                self.last.setdefault(origin, seal.last)
                news[origin] = None
                if seal.is_released:
                    self.released.setdefault(origin, set()).add(seal.of or writer)
        return list(news)

    def is_news(self, writer: str, seal: Seal) -> bool:
        """Whether this is not known yet."""
        if seal.origin in self.forgotten:
            return False
        known = seal.origin in self.last
        return not known or seal.is_released and (seal.of or writer) not in self.released.get(seal.origin, ())

    def about(self, origins: Iterable[Origin]) -> list[Seal]:
        """What is known of these, as lines for another node."""
        lines: list[Seal] = []
        for origin in origins:
            if origin in self.forgotten:
                lines.append(Seal(origin, 0, True, EVERYBODY))
            elif origin in self.last:
                last = self.last[origin]
                lines.append(Seal(origin, last, False))
                lines += [Seal(origin, last, True, node) for node in sorted(self.released.get(origin, ()))]
        return lines

    def unreleased(self, node: str) -> Vector:
        """Sealed origins that `node` has not released."""
        return {o: last for o, last in self.last.items() if node not in self.released.get(o, ())}

    def forgettable(self, members: Collection[str]) -> Vector:
        """Sealed origins that all `members` have released."""
        found: Vector = {}
        for origin, last in self.last.items():
            released = self.released.get(origin, set())
            if EVERYBODY in released or released.issuperset(members):
                found[origin] = last
        return found

    def forget(self, origins: Iterable[Origin]) -> dict[str, str | None]:
        """These leave; returns the facts that say so."""
        facts: dict[str, str | None] = {}
        for origin in origins:
            self.last.pop(origin, None)
            self.released.pop(origin, None)
            self.forgotten[origin] = None
            facts[f"{SEALED}{origin}"] = None
            facts[f"{FORGOTTEN}{origin}"] = ""
        while len(self.forgotten) > FORGOTTEN_MAX:
            oldest = next(iter(self.forgotten))
            del self.forgotten[oldest]
            facts[f"{FORGOTTEN}{oldest}"] = None
        return facts

    def facts(self, origins: Iterable[Origin]) -> dict[str, str | None]:
        """How what is known of these is remembered."""
        return {
            f"{SEALED}{origin}": json.dumps(
                {"last": self.last[origin], "released": sorted(self.released.get(origin, ()))}
            )
            for origin in origins
            if origin in self.last
        }

    def without(self, vector: Vector) -> Vector:
        """`vector` without what is forgotten."""
        if self.forgotten.keys().isdisjoint(vector):
            return vector
        return {origin: last for origin, last in vector.items() if origin not in self.forgotten}
