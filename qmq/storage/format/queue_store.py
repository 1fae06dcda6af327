"""The interface of the queue store: the database of unsettled queue messages.

Implementations are SQLite and PostgreSQL (`qmq.storage.queues`), and a fake for tests. As with all of
storage, calls block and are made from worker threads.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from qmq.model.dots import Dot, Origin
from qmq.storage.format.batch import Unpacked
from qmq.storage.format.missing_range import MissingRange


class QueueRow(NamedTuple):
    """One queue message that was not settled when the checkpoint passed it. Times are µs since 1970."""

    dot: Dot
    queue: str
    timestamp_us: int
    flags: int
    priority: int
    """The level (`qmq.model.levels`): 0–9 as in `flags`, or that plus EXACT_LEVEL."""
    due_us: int
    """Not to be delivered before; 0 = at once."""
    expires_us: int
    """Of no use from then on; 0 = never."""
    headers: bytes
    body: bytes
    attempts: int = 0
    """Deliveries that have failed."""
    exact: int = 0
    """In a level with exact numbers: that of the message."""


class RowRun(NamedTuple):
    """Messages of one partition on their way into the store, with what they share said once.

    A message that is delayed, expires, has an exact number or has failed is a run of one. Fields are as in `QueueRow`.
    """

    origin: Origin
    queue: str
    flags: int
    priority: int
    records: list[Unpacked]
    """The messages. Kind, flags and destination are those of the run, and are not read."""
    due_us: int = 0
    expires_us: int = 0
    attempts: int = 0
    exact: int = 0


ANY_BYTES: Final = 1 << 62
"""No bound."""

UNSETTLED_ROWS: Final = 1000
UNSETTLED_BYTES: Final = 4 * 1024 * 1024
"""What is read at once of all messages of an origin (`unsettled_rows`): rows, and their headers and bodies."""

NO_ATTEMPTS: Final[Mapping[str, Mapping[Dot, int]]] = {}


class QueueHead(NamedTuple):
    """What the store holds of one queue, of the messages that one node accepted."""

    messages: int
    body_bytes: int
    priorities: tuple[int, ...]
    """The levels that have rows, those that are delivered first in front."""
    next_due_us: int
    """The smallest due time after the asked one; 0 = none."""


class RowDamage:
    """The damaged rows that were read since a queue store was opened; only grows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        """Text for the operator; bounded."""
        self.met = 0


class QueueStore(Protocol):
    """Unsettled queue messages of all nodes. Survives a crash at any moment.

    `apply`, `give_back` and `close` by one caller at a time. The other methods may be called by any thread at any time:
    they do not wait for an `apply` under way, and see what the last finished one left.

    A row with a wrong checksum is never returned. The messages that it may have been become `missing_ranges`, and the
    next change removes it.

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
        upserts: Sequence[RowRun],
        deletes: Mapping[str, Sequence[Dot]],
        tombstones_add: Collection[Dot],
        tombstones_del: Collection[Dot],
        position: int,
        attempts: Mapping[str, Mapping[Dot, int]] = NO_ATTEMPTS,
    ) -> None:
        """All of it or nothing, durable on return; `upserts` first, then `attempts`, then `deletes` (queue → dots).

        `attempts` (queue → dot → deliveries that have failed) raises what the rows say, and means nothing to dots that
        are not here. Deleting what is not there is no error, and a row that is there already stays as it is: a dot
        names one message for ever. The same goes for tombstones. Raises DiskFull, where the medium reports
        that; nothing has changed then.
        """

    def give_back(self) -> bool:
        """Return some of the space of deleted messages to the file system, in one short step; True if there is more.

        Called by the caller of `apply`, never during it. Raises DiskFull; nothing has changed then.
        """

    def missing_ranges(self) -> list[MissingRange]:
        """The missing ranges that are stored or that reads have found, and that are not repaired yet."""

    def missing(self, missing_ranges: Sequence[MissingRange], position: int) -> None:
        """Store these durably: apart from them the store is complete up to `position`. By the caller of `apply`."""

    def repair(self, missing: MissingRange, rows: Sequence[QueueRow], left: MissingRange | None) -> None:
        """Add `rows`, and shorten `missing` to `left`.

        A row that exists already is not changed. If `missing` is a single message and a checkpoint has settled it
        meanwhile, nothing is restored. By the caller of `apply`. All or nothing, durable on return. Raises DiskFull;
        nothing has changed then.
        """

    def position(self) -> int:
        """The journal position up to which this store is complete; 0 at first, negative in a rebuilt store."""

    def is_empty(self, node: str) -> bool:
        """Whether no message that `node` accepted is here."""

    def heads(self, node: str, queues: Sequence[str], now_us: int) -> dict[str, QueueHead]:
        """What is here of `queues`; those without a row are absent. Nothing is counted, so it costs little."""

    def page(
        self,
        node: str,
        queue: str,
        priority: int,
        after: Dot | None,
        now_us: int,
        limit: int,
        exact: int = 0,
        bytes_max: int = ANY_BYTES,
    ) -> list[QueueRow]:
        """Up to `limit` rows of that level whose due time is not after `now_us`, in order of acceptance.

        That is: origins in the order this store met them, and each by sequence. Only what comes after `after`, which
        need not be here (any more); nothing comes after a dot whose origin this store has never met. It ends with the
        first row with which headers and bodies come to `bytes_max`. Fewer rows and bytes mean that there are no more.

        In a level with exact numbers rows are ordered by these first. `after` is then a row with the number `exact`;
        if it is None, the page begins with the first row of that number.
        """

    def skip(self, node: str, queue: str, priority: int, count: int) -> tuple[Dot | None, int, int]:
        """Where a `page` of that level begins which leaves out the first `count` rows, also those that are not due.

        That is: the `after` and `exact` of that page, and how many rows are left out; fewer than `count` if there are
        fewer. No body is read.
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

    def total(self, node: str) -> int:
        """How many messages are here that `node` accepted. It reads the counters of all queues, and no message."""

    def tombstones(self) -> set[Dot]:
        """Settled messages that have not arrived yet."""

    def origins(self) -> list[Origin]:
        """The origins whose messages are here."""

    def unsettled(
        self, origin: Origin, after: int, through: int, limit: int, bytes_max: int = UNSETTLED_BYTES
    ) -> list[QueueRow]:
        """The first rows with `after` < sequence <= `through`, by sequence: at most `limit`.

        As `page`, it ends with the first row with which headers and bodies come to `bytes_max`; fewer rows and bytes
        mean that there are no more. It asks each queue of the origin where it begins, so only repairs call it.
        """

    def close(self) -> None: ...


def unsettled_rows(queues: QueueStore, origin: Origin, after: int, through: int) -> Iterator[QueueRow]:
    """All rows of `origin` with `after` < sequence <= `through`, by sequence. A checkpoint may come in between."""
    while rows := queues.unsettled(origin, after, through, UNSETTLED_ROWS):
        yield from rows
        after = rows[-1].dot.sequence
