"""The interfaces of storage: disk, file and catalog (`queue_store` has that of the queue store).

All other modules of this package use these interfaces. So a node can run on real files (`disk`, `catalog`, `queues`) or
on in-memory implementations that fail on demand (`tests/fakes`). All calls block and are made from worker threads; each
class says which calls may run at the same time.

Surprising: position (a place in the journal) is an int that only grows, also over restarts and dropped segments.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import EDQUOT, EMFILE, ENFILE, ENOSPC
from typing import Final, NamedTuple, Protocol

from qmq.definitions.definition import Definition, Key
from qmq.model.cursors import Cursor, Name
from qmq.model.dots import Dot, Origin, Vector
from qmq.storage.format.term_record import TermNote

SEQUENCE_MAX = (1 << 63) - 1
NO_SPACE: Final = (ENOSPC, EDQUOT)
"""Error numbers of a disk without room."""
NO_DESCRIPTOR: Final = (EMFILE, ENFILE)
"""Error numbers of a call that opens nothing, because the process or the system has too much open."""


class File(Protocol):
    """One append-only file. `read` may be called by any thread at any time; the rest by one thread at a time."""

    def write(self, data: bytes) -> None:
        """Append all of `data`. OSError: how much was written is unknown."""

    def sync(self) -> None:
        """Return when all that was written survives a power cut. OSError: it is unknown what survives."""

    def cut(self, size: int) -> None:
        """Keep only the first `size` bytes; durable after the next `sync`. Needs no free space."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""

    def size(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Shift:
    """Times before `before_us` count as `by_us` later, so that nothing looks too old by a clock that is in doubt.

    No time counts as before `first_us`: earlier ones come from a doubt that an empty disk began with.
    """

    before_us: int = 0
    by_us: int = 0
    first_us: int = 0

    def of(self, time_us: int) -> int:
        """The time that counts."""
        return max(time_us + self.by_us if time_us < self.before_us else time_us, self.first_us)


class Disk(Protocol):
    """A data directory. Paths are relative to it and use `/`. Missing files raise FileNotFoundError."""

    def lock(self) -> None:
        """Take the directory for this process until `unlock`. Raises DirectoryInUse."""

    def unlock(self) -> None: ...

    def make_directory(self, path: str, *, is_synced: bool = True) -> None:
        """With its parents, durable on return; nothing happens when it exists.

        Without `is_synced` the caller syncs the parent before it counts on the directory itself.
        """

    def create(self, path: str) -> File:
        """A new, empty file; an existing file is replaced. Durable only after `sync_directory`."""

    def open(self, path: str) -> File:
        """An existing file, for reading and appending."""

    def names(self, directory: str) -> list[str]:
        """What is in `directory`, sorted; empty when it does not exist."""

    def rename(self, old: str, new: str) -> None:
        """Put `old` in the place of `new` in one step. Durable only after `sync_directory`."""

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; nothing happens when there is none, or something is in it."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in `path` survive a power cut."""

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """`sync` of each file, then `sync_directory` of each directory; much quicker than one after the other.

        OSError: unknown which of them survive a power cut.
        """

    def free_bytes(self) -> int:
        """Free bytes, without those that the reserve's file holds."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the reserve's file holds and that can be freed. Does not block."""

    def hold_reserve(self, size: int) -> None:
        """Let the reserve's file hold `size` bytes. If there is no room for them, nothing changes."""

    def give_up_reserve(self, size: int) -> bool:
        """Free `size` bytes of it or somewhat more, or all that is left; False: there was nothing left."""


class DirectoryIdentity(NamedTuple):
    """The node of a data directory. The uuid is drawn once per directory, so peers notice a wiped disk."""

    node: str
    uuid: str
    format_version: int


class FanoutExtent(NamedTuple):
    """What of a fanout log counts: bytes from `start` to `end` (positions of that log) in the directory `name`.

    `dropped` and `dropped_records`: what retention dropped; per origin the last sequence, and the number of records.
    """

    name: str
    start: int
    end: int
    records: int
    first_us: int
    last_us: int
    dropped_records: int = 0
    dropped: tuple[Dot, ...] = ()


class CheckpointState(NamedTuple):
    """The journal position that all stores have reached, and the vector there."""

    position: int
    vector: Vector


class Catalog(Protocol):
    """Small facts that must change together. One caller at a time; every call that changes is durable on return.

    Raises LogBroken when the medium fails.
    """

    def identity(self) -> DirectoryIdentity | None:
        """None in a fresh directory."""

    def set_identity(self, identity: DirectoryIdentity) -> None: ...

    def checkpoint(self) -> CheckpointState: ...

    def fanouts(self) -> dict[str, FanoutExtent]:
        """Destination → what counts of its log."""

    def cursors(self) -> dict[Name, Cursor]:
        """The durable subscriptions, and deletions that are still remembered."""

    def given_up(self) -> Vector:
        """Per origin, up to where this node gave up on records that no peer kept."""

    def terms(self) -> list[TermNote]:
        """The terms and votes that count."""

    def commit_checkpoint(
        self,
        state: CheckpointState,
        fanouts: Mapping[str, FanoutExtent],
        cursors: Sequence[Cursor] = (),
        given_up: Vector | None = None,
        terms: Sequence[TermNote] = (),
        deleted: Collection[str] = (),
        definitions: Sequence[Definition] = (),
    ) -> None:
        """The commit point of a checkpoint, all or nothing: position, vector, and what changed of the rest.

        A cursor without any stamp is forgotten. `deleted`: fanouts that have no log any more.
        """

    def base(self) -> CheckpointState:
        """Where the kept journal starts, and the vector of what was dropped before."""

    def set_base(self, state: CheckpointState) -> None: ...

    def incarnations(self) -> dict[Origin, int]:
        """This node's own runs → when they began, µs; in that order."""

    def add_incarnation(self, origin: Origin, started_us: int) -> None: ...

    def facts(self) -> dict[str, str]:
        """What this directory remembers of the mesh, by name (`qmq.storage.catalog.facts`)."""

    def set_facts(self, facts: Mapping[str, str | None]) -> None:
        """All of them or none; None forgets one."""

    def definitions(self) -> list[Definition]:
        """The definitions of the mesh, tombstones included."""

    def remove_definitions(self, keys: Iterable[Key]) -> None:
        """Forget these; for tombstones that are no longer needed."""

    def close(self) -> None: ...
