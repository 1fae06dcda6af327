"""Returns freed memory to the system, where the C library would keep it.

A checkpoint moves tens of megabytes through the heap of a worker thread, in pieces of all sizes. glibc returns only
what is free at the end of such a heap, so a node would stay as large as its largest checkpoint for ever.
"""

import ctypes
from collections.abc import Callable
from typing import cast


def _find_trim() -> Callable[[int], int] | None:
    try:
        return cast(Callable[[int], int], ctypes.CDLL(None).malloc_trim)
    except (OSError, AttributeError):
        return None  # another C library, with other behaviour


_trim = _find_trim()


def give_back_memory() -> None:
    """Return free pages to the system. Blocks for some milliseconds, without holding up other threads."""
    if _trim is not None:
        _trim(0)
