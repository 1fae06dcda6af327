"""Quarantine: damaged bytes of the journal, and intact batches that stand behind them.

Recovery of the journal puts them here (`keep`); `qmq.storage.quarantine_restore` and
`qmq.mesh.repair.quarantine_restore` take them out again. The bytes are copies: the ranges stay in their segments, as
holes that readers skip (`load_holes`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import Final, NamedTuple

import msgpack

from qmq.model.dots import Origin
from qmq.storage.format.batch import BatchHead
from qmq.storage.format.interfaces import Disk
from qmq.storage.log.chain import Damage, replace_file

QUARANTINE_DIRECTORY: Final = "quarantine"
HOLES_SUFFIX: Final = ".holes"
BYTES_SUFFIX: Final = ".bad"


class Quarantined(NamedTuple):
    """Quarantined bytes of the journal. If the head is unreadable, its fields are 0 and `origin` is None."""

    start: int
    end: int
    origin: Origin | None
    first: int
    last: int

    def __str__(self) -> str:
        where = f"quarantined: the journal from {self.start} to {self.end}"
        if self.origin is None:
            return f"{where} cannot be read"
        return f"{where}, records {self.first} to {self.last} of {self.origin}, intact but behind such a place"


def in_words(entries: Iterable[Quarantined]) -> list[str]:
    """Lines for the operator: each unreadable place, then what was quarantined behind such places, per origin."""
    behind: dict[Origin, Quarantined] = {}
    places: list[Quarantined] = []
    for entry in entries:
        if entry.origin is None:
            places.append(entry)
            continue
        known = behind.setdefault(entry.origin, entry)
        behind[entry.origin] = known._replace(end=entry.end, last=entry.last)
    return [str(entry) for entry in (*behind.values(), *places)]


def quarantined(start: int, end: int, head: BatchHead | None) -> Quarantined:
    """The entry of a batch, or of bytes without a readable head."""
    if head is None:
        return Quarantined(start, end, None, 0, 0)
    return Quarantined(start, end, head.origin, head.first, head.last)


def keep(disk: Disk, found: list[Quarantined], raw: list[bytes]) -> None:
    """Keep the bytes, then commit the list of holes. In this order a crash leaves nothing that counts."""
    disk.make_directory(QUARANTINE_DIRECTORY)
    stem = f"{QUARANTINE_DIRECTORY}/{found[0].start:016x}"
    replace_file(disk, stem + BYTES_SUFFIX, b"".join(raw)).close()
    listed = [[entry.start, entry.end, entry.origin and list(entry.origin), entry.first, entry.last] for entry in found]
    replace_file(disk, stem + HOLES_SUFFIX, msgpack.packb(listed)).close()


def load_quarantined(disk: Disk) -> list[Quarantined]:
    """Everything that was ever quarantined, in log order."""
    found: list[Quarantined] = []
    for name in disk.names(QUARANTINE_DIRECTORY):
        if name.endswith(HOLES_SUFFIX):
            found += _read_holes(disk, name)
    return sorted(found, key=lambda entry: entry.start)


def _read_holes(disk: Disk, name: str) -> list[Quarantined]:
    """The entries of one list. If the list itself has rotted, only the place where it begins: readers find what is
    damaged there by its checksums.
    """
    with closing(disk.open(f"{QUARANTINE_DIRECTORY}/{name}")) as file:
        data = file.read(0, file.size())
    try:
        found = [
            Quarantined(start, end, Origin(*origin) if origin else None, first, last)
            for start, end, origin, first, last in msgpack.unpackb(data)
        ]
        if found and all([0 <= entry.start < entry.end for entry in found]):
            return found
    except (ValueError, TypeError):
        pass
    start = int(name.removesuffix(HOLES_SUFFIX), 16)
    return [Quarantined(start, start, None, 0, 0)]


def quarantined_bytes(disk: Disk, wanted: Callable[[Quarantined], bool]) -> Iterator[tuple[Quarantined, bytes]]:
    """The quarantined entries that are `wanted`, with their bytes, in no order; unreadable ones are left out.

    Only the wanted bytes are read, because the quarantine may hold gigabytes.
    """
    for name in disk.names(QUARANTINE_DIRECTORY):
        if not name.endswith(HOLES_SUFFIX):
            continue
        try:
            listed = _read_holes(disk, name)
            file = disk.open(f"{QUARANTINE_DIRECTORY}/{name.removesuffix(HOLES_SUFFIX)}{BYTES_SUFFIX}")
        except OSError:
            continue
        place = 0
        with closing(file):
            for entry in listed:
                if wanted(entry):
                    with suppress(OSError):
                        yield entry, file.read(place, entry.end - entry.start)
                place += entry.end - entry.start


def load_holes(disk: Disk) -> list[Damage]:
    """The ranges that readers of the journal must skip, in log order."""
    return [(entry.start, entry.end) for entry in load_quarantined(disk)]
