"""Space that settled messages have left in an SQLite file goes back to the file system, one bounded step at a time.

SQLite uses free pages again but keeps them: after a backlog of gigabytes the file would stay as large for ever. Files
are made so that their pages can be moved (`MOVABLE`), and a step moves the last ones of the file into gaps before them
and cuts it.
"""

import sqlite3
from typing import Final

MOVABLE: Final = "PRAGMA auto_vacuum=2"
"""To be said before the first page of a file is written."""

STEP_PAGES: Final = 512
"""4 MiB; some milliseconds in a worker thread."""

FREE_PAGES_KEPT: Final = 2048
"""16 MiB, for the messages that come next."""

FREE_PARTS_KEPT: Final = 4
"""Or one part in so many of what is in use: a store that is full most of the time is not shuffled for little."""


def give_back(connection: sqlite3.Connection) -> bool:
    """One step; whether there is more to give back. Durable as the next commit is; not inside a transaction."""
    pages, free = _value(connection, "page_count"), _value(connection, "freelist_count")
    used = pages - free
    surplus = free - max(FREE_PAGES_KEPT, used // FREE_PARTS_KEPT)
    if surplus <= 0:
        return False
    # As a script: a statement without columns is stepped once otherwise, and every step of this one frees a page.
    connection.executescript(f"PRAGMA incremental_vacuum({min(surplus, STEP_PAGES)})")
    # Only then the file is cut. Not waiting for readers: they let go soon, and there is a next time.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return surplus > STEP_PAGES


def _value(connection: sqlite3.Connection, pragma: str) -> int:
    found: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return found
