"""The seams of storage: what it asks of a disk, of a catalog and of a queue store, and the settings it obeys.

Everything else in this package is written against these four classes, so a node can run on real files (`disk`,
`catalog`, `queue_store`) or on twins in memory that fail on demand (`memory`). All calls block and are made from
worker threads; what may be called at the same time is said per class.

Surprising: position (a place in the journal) is an int that only grows, also over restarts and dropped segments.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from qmq.dots import Dot, Origin, Vector

Sync = Literal["always", "interval", "never"]
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long sealed segments of a fanout log stay. Whichever bound is passed first drops the oldest segment."""

    age_seconds_max: int = 7 * 86400
    bytes_max: int = 10 * 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """What the operator chose. Bytes are bytes on disk."""

    sync: Sync = "always"
    """`always`: an append is durable on return. Otherwise the owner calls `Journal.sync` when it wants that."""
    segment_bytes_max: int = 64 * MIB
    reserve_bytes: int = 64 * MIB
    """Free space that only settles may use, so that queues can drain when the disk is full."""
    journal_keep_bytes: int = 1024 * MIB
    """Kept although every member has it, so that a returning peer or reader finds it."""
    journal_bytes_max: int = 10 * 1024 * MIB
    journal_age_seconds_max: int = 7 * 86400
    fanout_retention: Retention = Retention()
    fanout_prefix: str = "/fanout/"
    queue_prefix: str = "/queue/"
    software: str = "qmq"
    """Written into START records, for the reader of a dump."""


class File(Protocol):
    """One append-only file. `read` may be called by any thread at any time; the rest by one thread at a time."""

    def write(self, data: bytes) -> None:
        """Append all of `data`. OSError: how much was written is unknown."""

    def sync(self) -> None:
        """Return once all that was written survives a power cut. OSError: unknown what does."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A data directory. Paths are relative to it and use `/`. Missing files raise FileNotFoundError."""

    def lock(self) -> None:
        """Take the directory for this process until `unlock`. Raises DirectoryInUse."""

    def unlock(self) -> None: ...

    def make_directory(self, path: str) -> None:
        """With its parents, durable on return; nothing happens when it exists."""

    def create(self, path: str) -> File:
        """A new, empty file; what stood there before is replaced. Durable only after `sync_directory`."""

    def open(self, path: str) -> File:
        """An existing file, for reading and appending."""

    def names(self, directory: str) -> list[str]:
        """What is in `directory`, sorted; empty when it does not exist."""

    def rename(self, old: str, new: str) -> None:
        """Put `old` in the place of `new` in one step. Durable only after `sync_directory`."""

    def remove(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Return once the names in `path` survive a power cut."""

    def free_bytes(self) -> int: ...


class QueueRow(NamedTuple):
    """One queue message that was not settled when the checkpoint passed it."""

    dot: Dot
    queue: str
    timestamp_us: int
    flags: int
    priority: int
    headers: bytes
    body: bytes


PageKey = tuple[str, int, int, int]
"""Where a page of `load` ended; opaque to the caller."""


class QueueStore(Protocol):
    """Unsettled queue messages of all nodes. One caller at a time. Survives a crash at any moment.

    Raises LogBroken when the medium fails; the last `apply` is then all there or not at all.
    """

    def apply(
        self,
        upserts: Sequence[QueueRow],
        deletes: Iterable[Dot],
        tombstones_add: Iterable[Dot],
        tombstones_del: Iterable[Dot],
        position: int,
    ) -> None:
        """All of it or nothing, durable on return. Deleting what is not there is no error."""

    def position(self) -> int:
        """The journal position up to which this store is right; 0 at first."""

    def load(self, node: str, after: PageKey | None, limit: int) -> tuple[list[QueueRow], PageKey | None]:
        """A page of the messages that `node` accepted, and the key to ask for the next with (None: that was all).

        Order: queue, priority (high first), origin in the order this store met them, sequence.
        """

    def queues(self) -> dict[str, int]:
        """Queue → messages, of all nodes; only queues that have some."""

    def get(self, dots: Iterable[Dot]) -> dict[Dot, QueueRow]:
        """The rows among `dots` that exist."""

    def tombstones(self) -> set[Dot]:
        """Settled messages that have not come yet."""

    def close(self) -> None: ...


class Identity(NamedTuple):
    """Whose directory this is. The uuid is drawn once per directory, so a wiped disk shows."""

    node: str
    uuid: str
    format_version: int


class FanoutExtent(NamedTuple):
    """What of a fanout log counts: bytes from `start` to `end` (positions of that log) in the directory `name`."""

    name: str
    start: int
    end: int
    records: int
    first_us: int
    last_us: int


class CheckpointState(NamedTuple):
    """The journal position that all stores have reached, and the vector there."""

    position: int
    vector: Vector


class Catalog(Protocol):
    """The small facts that must change together. One caller at a time; every call that changes is durable on return.

    Raises LogBroken when the medium fails.
    """

    def identity(self) -> Identity | None:
        """None in a fresh directory."""

    def set_identity(self, identity: Identity) -> None: ...

    def checkpoint(self) -> CheckpointState: ...

    def fanouts(self) -> dict[str, FanoutExtent]:
        """Destination → what counts of its log."""

    def commit_checkpoint(self, state: CheckpointState, fanouts: Mapping[str, FanoutExtent]) -> None:
        """The commit point of a checkpoint: position, vector and the extents that changed, all or nothing."""

    def base(self) -> CheckpointState:
        """Where the kept journal starts, and the vector of what was dropped before."""

    def set_base(self, state: CheckpointState) -> None: ...

    def peers(self) -> dict[str, Vector]:
        """Peer → the last durable vector it reported and this node noted."""

    def set_peer(self, node: str, vector: Vector) -> None: ...

    def incarnations(self) -> dict[Origin, int]:
        """This node's own runs → when they began, µs; in that order."""

    def add_incarnation(self, origin: Origin, started_us: int) -> None: ...

    def close(self) -> None: ...
