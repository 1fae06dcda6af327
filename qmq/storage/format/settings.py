"""The settings of a store, as its opener gives them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Sync = Literal["always", "interval", "never"]
MIB = 1024 * 1024


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
