"""Returns the space of settled messages in an SQLite file to the file system, one bounded step at a time.

SQLite uses free pages again but keeps them, so the file would stay as large as the largest backlog. Files are created
with movable pages (`MOVABLE`). A step moves the last pages of the file into gaps before them, and cuts the file.
"""

import sqlite3
from typing import Final

MOVABLE: Final = "PRAGMA auto_vacuum=2"
"""Execute it before the first page of a file is written."""

STEP_PAGES: Final = 512
"""4 MiB; some milliseconds in a worker thread."""

FREE_PAGES_KEPT: Final = 2048
"""16 MiB, for the next messages."""

FREE_PARTS_KEPT: Final = 4
"""Or one part in so many of the used pages: a store that is mostly full is not reordered for little."""


def give_back(connection: sqlite3.Connection) -> bool:
    """Do one step; return whether more can be returned. Durable with the next commit; not inside a transaction."""
    pages, free = _value(connection, "page_count"), _value(connection, "freelist_count")
    used = pages - free
    surplus = free - max(FREE_PAGES_KEPT, used // FREE_PARTS_KEPT)
    if surplus <= 0:
        return False
    # A script: otherwise a statement without columns is stepped once, and each step of this one frees one page.
    connection.executescript(f"PRAGMA incremental_vacuum({min(surplus, STEP_PAGES)})")
    # This cuts the file. It does not wait for readers; the next step cuts what they hold now.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return surplus > STEP_PAGES


def _value(connection: sqlite3.Connection, pragma: str) -> int:
    found: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return found
