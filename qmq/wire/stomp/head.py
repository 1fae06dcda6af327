"""Parsed header blocks, remembered.

Most frames of a busy connection repeat the header block of the frame before, so a block is parsed once and its Head
is shared by every frame, of any connection, that carries the same bytes. `receipt` and `content-length` are not part
of a Head, because they are what differs between otherwise equal blocks; the reader cuts them out before it looks here.

Surprising: `memo` belongs to the next layer, which keeps there what it made of the headers (a checked destination, a
packed envelope). It lives and dies with the Head, so it needs no bound of its own.
"""

from qmq.wire.stomp.limits import Limits
from qmq.wire.stomp.version import Version

CACHED_BLOCK_BYTES_MAX = 1024
"""Longer blocks carry something that differs per message, and would make the cache large."""

CACHED_BLOCKS_MAX = 2048
"""Per generation, of which there are two: at most about 4 MiB of keys for each version and set of limits."""

CACHES_MAX = 16
"""Versions times the sets of limits in use; more appear only when limits are reloaded again and again."""


class Head:
    """One parsed header block, shared: treat it as immutable, except for `memo`.

    `headers` are unescaped, in the order sent, the first of repeated ones, without `receipt` and `content-length`.
    `command` is one object per command, so comparing it is cheap. `version` is the one the block was read by: always
    1.0 for CONNECT, STOMP and CONNECTED, whose headers are never unescaped.
    """

    __slots__ = ("command", "headers", "memo", "version")

    def __init__(self, command: str, headers: dict[str, str], version: Version) -> None:
        self.command = command
        self.headers = headers
        self.version = version
        self.memo: object | None = None

    def __repr__(self) -> str:
        return f"Head({self.command!r}, {self.headers!r}, {self.version.text})"


class CachedBlock:
    """What a header block says: its Head, and the length of the body that follows, -1 when the block has none."""

    __slots__ = ("head", "length")

    def __init__(self, head: Head, length: int) -> None:
        self.head = head
        self.length = length


class HeadCache:
    """Raw header block → what it says, for one version and one set of limits; shared by connections.

    Bounded by two generations: when the young one is full it becomes the old one and the former old one is dropped.
    A block found in the old one moves to the young one, so what is in use survives a flood of blocks that are not.
    """

    __slots__ = ("old", "young")

    def __init__(self) -> None:
        self.young: dict[bytes, CachedBlock] = {}
        self.old: dict[bytes, CachedBlock] = {}

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
        """The one cache of this version and these limits; made when it is first asked for."""
        found = self._caches.get((version, limits))
        if found is None:
            if len(self._caches) >= CACHES_MAX:
                self._caches.clear()
            found = self._caches[version, limits] = HeadCache()
        return found
