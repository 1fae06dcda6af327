"""The Unix socket in the data directory of a node: its file name, and a path to it that is short enough.

The address of a Unix socket holds 107 bytes (Linux, unix(7)), and data directories may have longer paths. So a longer
path is replaced by one through an open descriptor of its directory.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "qmq.sock"
PATH_BYTES_MAX: Final = 107


@contextmanager
def socket_path(path: Path) -> Iterator[str]:
    """A path to bind or connect, valid inside the block. Raises OSError if the directory cannot be opened."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
