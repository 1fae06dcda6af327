"""Header blocks that were seen before: by all their bytes, and by their form.

A client that sends to very many destinations repeats all of a block but one value. The other lines are kept as a Form,
and a block of a known form is split with two searches instead of being parsed. A form that fits must give exactly
the result of a full parse of the same bytes: the value that differs is short printable ASCII without escapes,
which every version reads alike, and everything else has been parsed before.

Surprising: `memo` belongs to the next layer, as does that of a Head. What it keeps there is true for every
destination that the form is sent to, so it must be checked against the one at hand.
"""

from typing import Final

from qmq.wire.stomp.head import CachedBlock, Form
from qmq.wire.stomp.limits import Limits
from qmq.wire.stomp.runs import plain_text
from qmq.wire.stomp.version import Version

FORMS_MAX: Final = 1024
"""Of one version and one set of limits; at the bound all are forgotten and learned again."""

_MARK: Final = b"\ndestination:"


class Forms:
    """Block without its destination → form."""

    __slots__ = ("_forms",)

    def __init__(self) -> None:
        self._forms: dict[bytes, Form] = {}

    def read(self, block: bytes) -> CachedBlock | None:
        """What `block`, its receipt line cut out, says; None when no known form fits."""
        at = block.find(_MARK) + len(_MARK)
        end = block.find(b"\n", at)
        if end < 0:
            end = len(block)
        form = self._forms.get(block[:at] + block[end:])
        if form is None:
            return None
        destination = plain_text(block[at:end])
        if destination is None or "\\" in destination:
            return None
        return CachedBlock(form.head(destination), form.length)

    def learn(self, block: bytes, known: CachedBlock) -> None:
        """`block`, its receipt line cut out, was a SEND and said this; blocks of its form may follow."""
        at = block.find(_MARK) + len(_MARK)
        if at < len(_MARK) or known.head.form is not None:
            return
        end = block.find(b"\n", at)
        stem = block[:at] + (block[end:] if end >= 0 else b"")
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        form = self._forms[stem] = Form(known.head.headers, known.head.version, known.length)
        known.head.form = form


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
