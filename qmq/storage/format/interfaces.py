"""The interfaces of storage: disk, file, catalog and queue store, and the settings of a store.

All other modules of this package use these interfaces. So a node can run on real files (`disk`, `catalog`, `queues`) or
on in-memory implementations that fail on demand (`memory`). All calls block and are made from worker threads; each
class says which calls may run at the same time.

Surprising: position (a place in the journal) is an int that only grows, also over restarts and dropped segments.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from typing import Final, Literal, NamedTuple, Protocol

from qmq.cursors import Cursor, Name
from qmq.definitions.definition import Definition, Key
from qmq.dots import Dot, Origin, Vector
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.term_record import TermNote

Sync = Literal["always", "interval", "never"]
MIB = 1024 * 1024
SEQUENCE_MAX = (1 << 63) - 1
NO_SPACE: Final = (ENOSPC, EDQUOT)
"""Error numbers of a disk without room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long sealed segments of a fanout log stay. Whichever bound is passed first drops the oldest segment."""

    age_seconds_max: int = 7 * 86400
    bytes_max: int = 10 * 1024 * MIB


def no_times(headers: bytes, timestamp_us: int) -> tuple[int, int]:
    """The default of `StoreSettings.times_of`: messages have no due time and no expiry."""
    return 0, 0


def no_clock() -> float:
    """Time stands still."""
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
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
    times_of: Callable[[bytes, int], tuple[int, int]] = no_times
    """(header block, timestamp µs) → (due µs, expires µs), 0 = none. Only called for records with the TIMED flag."""
    software: str = "qmq"
    """Written into START records, for the reader of a dump."""
    clock: Callable[[], float] = no_clock
    """Seconds, for any thread: how long syncs take is measured by it."""


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
    """Times before `before_us` count as `by_us` later, so that nothing looks too old by a clock that is in doubt."""

    before_us: int = 0
    by_us: int = 0

    def of(self, time_us: int) -> int:
        """The time that counts."""
        return time_us + self.by_us if time_us < self.before_us else time_us


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


class QueueRow(NamedTuple):
    """One queue message that was not settled when the checkpoint passed it. Times are µs since 1970."""

    dot: Dot
    queue: str
    timestamp_us: int
    flags: int
    priority: int
    """0–9, as in `flags`."""
    due_us: int
    """Not to be delivered before; 0 = at once."""
    expires_us: int
    """Of no use from then on; 0 = never."""
    headers: bytes
    body: bytes
    attempts: int = 0
    """Deliveries that have failed."""


NO_ATTEMPTS: Final[Mapping[str, Mapping[Dot, int]]] = {}


class QueueHead(NamedTuple):
    """What the store holds of one queue, of the messages that one node accepted."""

    messages: int
    body_bytes: int
    priorities: tuple[int, ...]
    """Those that have rows, high first."""
    next_due_us: int
    """The smallest due time after the asked one; 0 = none."""


class RowDamage:
    """The damaged rows that were read since a queue store was opened; only grows."""

    __slots__ = ("lines", "met")

    def __init__(self) -> None:
        self.lines: list[str] = []
        """Text for the operator; bounded."""
        self.met = 0


class QueueStore(Protocol):
    """Unsettled queue messages of all nodes. Survives a crash at any moment.

    `apply`, `give_back` and `close` by one caller at a time. The other methods may be called by any thread at any time:
    they do not wait for an `apply` under way, and see what the last finished one left.

    A row with a wrong checksum is never returned. It stays in the store, and the messages that it may have been become
    one of `missing_ranges`, until `repair` replaces it.

    Raises LogBroken when the medium fails; an `apply` is then complete or not done at all. If the file itself is
    damaged, that is `Malformed`, and the next opening quarantines the file.
    """

    @property
    def kind(self) -> str:
        """`sqlite`, `postgresql`, `memory`."""

    @property
    def damage(self) -> RowDamage:
        """The damaged rows so far. Does not block."""

    def apply(
        self,
        upserts: Sequence[QueueRow],
        deletes: Mapping[str, Sequence[Dot]],
        tombstones_add: Collection[Dot],
        tombstones_del: Collection[Dot],
        position: int,
        attempts: Mapping[str, Mapping[Dot, int]] = NO_ATTEMPTS,
    ) -> None:
        """All of it or nothing, durable on return; `upserts` first, then `attempts`, then `deletes` (queue → dots).

        `attempts` (queue → dot → deliveries that have failed) raises what the rows say, and means nothing to dots that
        are not here. Deleting what is not there is no error, and a row that is there already stays as it is: a dot
        names one message for ever. The same goes for tombstones. Raises DiskFull, where the medium can tell; nothing
        has changed then.
        """

    def give_back(self) -> bool:
        """Return some of the space of deleted messages to the file system, in one short step; True if there is more.

        Called by the caller of `apply`, never during it. Raises DiskFull; nothing has changed then.
        """

    def missing_ranges(self) -> list[MissingRange]:
        """The missing ranges that are stored or that reads have found, and that are not repaired yet."""

    def missing(self, missing_ranges: Sequence[MissingRange], position: int) -> None:
        """Store these durably: apart from them the store is complete up to `position`. By the caller of `apply`."""

    def repair(self, missing: MissingRange, rows: Sequence[QueueRow], left: "MissingRange | None") -> None:
        """Add `rows`, shorten `missing` to `left`, and remove the damaged row.

        A row that exists already is not changed. If `missing` is a single message and a checkpoint has settled it
        meanwhile, nothing is restored. By the caller of `apply`. All or nothing, durable on return. Raises DiskFull;
        nothing has changed then.
        """

    def position(self) -> int:
        """The journal position up to which this store is complete; 0 at first, negative in a rebuilt store."""

    def nodes(self) -> list[str]:
        """The nodes whose messages may be here."""

    def is_empty(self, node: str) -> bool:
        """Whether no message that `node` accepted is here."""

    def heads(self, node: str, queues: Sequence[str], now_us: int) -> dict[str, QueueHead]:
        """What is here of `queues`; those without a row are absent. Nothing is counted, so it costs little."""

    def page(self, node: str, queue: str, priority: int, after: Dot | None, now_us: int, limit: int) -> list[QueueRow]:
        """Up to `limit` rows of that priority whose due time is not after `now_us`, in order of acceptance.

        That is: origins in the order this store met them, and each by sequence. Only what comes after `after`, which
        need not be here (any more); nothing comes after a dot whose origin this store has never met. Fewer than
        `limit` means that there are no more.
        """

    def skip(self, node: str, queue: str, priority: int, count: int) -> tuple[Dot | None, int]:
        """Where a `page` of that priority begins which leaves out the first `count` rows, also those that are not due.

        That is: the `after` of that page, and how many rows are left out; fewer than `count` if there are fewer. No
        body is read.
        """

    def due(self, node: str, queue: str, after_us: int, until_us: int, limit: int) -> list[QueueRow]:
        """Up to `limit` rows with `after_us` < due time <= `until_us`, by due time."""

    def expired(self, node: str, until_us: int, limit: int, bytes_max: int) -> list[QueueRow]:
        """Rows of all queues with 0 < expiry <= `until_us`, by expiry.

        The last one is the `limit`-th, or the first with which headers and bodies come to `bytes_max`; when neither
        is so, there are no more.
        """

    def listing(self, node: str | None, after: str | None, limit: int) -> list[tuple[str, int, int]]:
        """(queue, messages, bytes of bodies), up to `limit` queues that come after `after`, by name.

        Of what `node` accepted, or of all nodes; queues without a message are left out.
        """

    def deepest(self, node: str, limit: int) -> list[str]:
        """The `limit` queues with most messages that `node` accepted, the deepest first, equal ones by name.

        It reads the counters of all queues of the store, and no message.
        """

    def tombstones(self) -> set[Dot]:
        """Settled messages that have not arrived yet."""

    def origins(self) -> list[Origin]:
        """The origins whose messages are here."""

    def unsettled(self, origin: Origin, after: int, through: int, limit: int) -> list[tuple[int, str, int]]:
        """(sequence, queue, attempts) of up to `limit` rows with `after` < sequence <= `through`, by sequence.

        It reads each queue of the origin, bodies included, so only repairs call it.
        """

    def unsettled_rows(self, origin: Origin, after: int, through: int, bytes_max: int) -> list[QueueRow]:
        """The rows there, by sequence: about `bytes_max` of headers and bodies, but at least one if there is one."""

    def close(self) -> None: ...


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

    def peers(self) -> dict[str, Vector]:
        """Peer → the last durable vector it reported and this node noted."""

    def set_peer(self, node: str, vector: Vector) -> None: ...

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
