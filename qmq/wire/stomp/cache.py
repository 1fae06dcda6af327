"""Header blocks that were seen before: by all their bytes, and by their form."""

from qmq.wire.stomp.forms import Forms
from qmq.wire.stomp.head import CachedBlock
from qmq.wire.stomp.limits import Limits
from qmq.wire.stomp.version import Version

CACHED_BLOCK_BYTES_MAX = 1024
"""Longer blocks carry something that differs per message, and would make the cache large."""

CACHED_BLOCKS_MAX = 2048
"""Per generation, of which there are two: at most about 4 MiB of keys for each version and set of limits."""

CACHES_MAX = 16
"""Versions times the sets of limits in use; more appear only when limits are reloaded again and again."""


class HeadCache:
    """Raw header block → what it says, for one version and one set of limits; shared by connections.

    Bounded by two generations: when the young one is full it becomes the old one and the former old one is dropped.
    A block found in the old one moves to the young one, so what is in use survives a flood of blocks that are not.
    """

    __slots__ = ("forms", "old", "young")

    def __init__(self) -> None:
        self.young: dict[bytes, CachedBlock] = {}
        self.old: dict[bytes, CachedBlock] = {}
        self.forms = Forms()

    def get(self, block: bytes) -> CachedBlock | None:
        found = self.young.get(block)
        if found is None and self.old:
            found = self.old.pop(block, None)
            if found is not None:
                self.put(block, found)
        return found

    def put(self, block: bytes, cached: CachedBlock) -> None:
        if len(self.young) >= CACHED_BLOCKS_MAX:
            self.old = self.young
            self.young = {}
        self.young[block] = cached


class HeadCaches:
    """The caches of one node. Only blocks that a connection's own limits allow are ever looked up for it."""

    __slots__ = ("_caches",)

    def __init__(self) -> None:
        self._caches: dict[tuple[Version, Limits], HeadCache] = {}

    def cache(self, version: Version, limits: Limits) -> HeadCache:
        """The one cache of this version and these limits; made on first use."""
        found = self._caches.get((version, limits))
        if found is None:
            if len(self._caches) >= CACHES_MAX:
                self._caches.clear()
            found = self._caches[version, limits] = HeadCache()
        return found
