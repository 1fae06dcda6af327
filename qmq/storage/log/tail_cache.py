"""The tail cache: the newest batches of the journal, in memory for links.

A link reads each batch a moment after it was appended, once for each peer. The cache saves a thread, a read and a
second checksum; a link that is further behind reads the disk. Pure; its owner locks it.
"""

from collections import deque
from typing import Final

from qmq.storage.format.batch import BatchHead

BATCHES_MAX: Final = 256
"""As many as a link may have under way; a look passes over each that is newer than what it looks for."""

BYTES_MAX: Final = 1024 * 1024


class TailCache:
    """Batches with the positions where they begin, in log order, without a gap but for heads of segments."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, BatchHead, bytes]] = deque()
        self._bytes = 0

    def add(self, position: int, head: BatchHead, data: bytes) -> None:
        """What was appended at `position`; the oldest make room for it."""
        batches = self._batches
        batches.append((position, head, data))
        self._bytes += len(data)
        while self._bytes > BYTES_MAX or len(batches) > BATCHES_MAX:
            _, _, evicted = batches.popleft()
            self._bytes -= len(evicted)

    def since(self, position: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        """Batches from the one that begins at `position` on: about `bytes_max`, but at least one. [] when that one is
        not here."""
        found: list[tuple[int, BatchHead, bytes]] = []
        for batch in reversed(self._batches):
            if batch[0] < position:
                break
            found.append(batch)
        found.reverse()
        if not found or found[0][0] != position:
            return []
        size = count = 0
        for _, _, data in found:
            size += len(data)
            if count and size > bytes_max:
                break
            count += 1
        return found[:count]
