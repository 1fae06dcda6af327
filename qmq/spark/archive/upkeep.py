"""What keeps an archive quick to read: small files put together, unused ones removed. Needs no node."""

from typing import Any

from deltalake.exceptions import CommitFailedError

from qmq.spark.archive.table import ArchiveError, open_table


def compact(table: str, *, target_bytes: int = 256 << 20) -> dict[str, Any]:
    """Put small files of the table together. Readers of the old ones are not disturbed until `vacuum`.

    Raises ArchiveError when another one does the same.
    """
    try:
        found: dict[str, Any] = open_table(table).optimize.compact(target_size=target_bytes)
    except CommitFailedError as error:
        raise ArchiveError(f"another run has put files of {table} together meanwhile: {error}") from error
    return found


def vacuum(table: str, *, hours: int = 168, dry_run: bool = False) -> list[str]:
    """Remove files that no version of the last `hours` needs, and those of runs that died; returns their names."""
    removed: list[str] = open_table(table).vacuum(
        retention_hours=hours, dry_run=dry_run, enforce_retention_duration=hours >= 168, full=True
    )
    return removed
