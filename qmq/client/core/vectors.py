"""How far a fanout stream has come: the vector made of message-ids, and its `qmq-resume` header.

A message-id of a fanout is `NODE-INCARNATION-SEQUENCE` and each origin's messages come in order, so one number per
origin says exactly what was seen. The header has a bound on the node's side; when it would grow over it, the oldest
incarnations of each node are left out of it, not of the vector: the node sends those again, and `advance` drops them.
"""

from collections.abc import Mapping

from qmq.model.dots import parse_origin

HEADER_BYTES_MAX = 7168
"""Of the header's value; a node takes 8 KiB for one header line unless configured otherwise."""

ENTRIES_MAX = 1024
"""Of the header; what a node takes at most."""

ORIGINS_MAX = 8192
"""Kept at all: one is added by each restart of a node. Beyond it the oldest is forgotten, and may be repeated if
it is still within the fanout's retention."""

SEQUENCE_DIGITS_MAX = 19


class Progress:
    """A vector that only grows. Keys are origins as they are written.

    >>> seen = parse_progress("a-000000000000001f=6")
    >>> seen.advance("a-000000000000001f-7"), seen.advance("a-000000000000001f-7")
    (True, False)
    >>> str(seen)
    'a-000000000000001f=7'
    """

    __slots__ = ("_last",)

    def __init__(self, last: Mapping[str, int] | None = None) -> None:
        self._last = dict(last or {})

    def advance(self, message_id: str) -> bool:
        """Take one message into account; False when it was seen before. An id of another kind is always new."""
        origin, _, digits = message_id.rpartition("-")
        if not (origin and digits.isascii() and digits.isdigit() and len(digits) <= SEQUENCE_DIGITS_MAX):
            return True
        sequence = int(digits)
        known = self._last.get(origin)
        if known is None:
            if len(self._last) >= ORIGINS_MAX:
                del self._last[next(iter(self._last))]
        elif sequence <= known:
            return False
        self._last[origin] = sequence
        return True

    def pass_over(self, gap: Mapping[str, tuple[int, int]]) -> bool:
        """Take a gap notice into account: nothing of it will come. False when all of it was known before."""
        is_news = False
        for origin, (_, last) in gap.items():
            if last > self._last.get(origin, 0):
                is_news = self.advance(f"{origin}-{last}")
        return is_news

    def copy(self) -> "Progress":
        return Progress(self._last)

    def header(self) -> str:
        """The value of `qmq-resume`; empty when nothing was seen."""
        entries = [f"{origin}={sequence}" for origin, sequence in self._by_age()]
        size = 0
        kept: list[str] = []
        for entry in entries[:ENTRIES_MAX]:
            size += len(entry) + 1
            if size > HEADER_BYTES_MAX:
                break
            kept.append(entry)
        return ",".join(kept)

    def _by_age(self) -> list[tuple[str, int]]:
        """Entries, the newest incarnation of every node before the second newest of any."""
        ranks: dict[str, int] = {}
        ranked: list[tuple[int, str, int]] = []
        for origin, sequence in reversed(self._last.items()):
            node = origin.rpartition("-")[0]
            rank = ranks[node] = ranks.get(node, -1) + 1
            ranked.append((rank, origin, sequence))
        ranked.sort(key=lambda entry: entry[0])
        return [(origin, sequence) for _, origin, sequence in ranked]

    def __str__(self) -> str:
        """Everything, as `parse_progress` reads it."""
        return ",".join(f"{origin}={sequence}" for origin, sequence in self._last.items())


def parse_progress(text: str) -> Progress:
    """The inverse of `str(progress)`. Raises ValueError."""
    last: dict[str, int] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        origin, _, digits = entry.partition("=")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= SEQUENCE_DIGITS_MAX):
            raise ValueError(f"not a position of a fanout: {entry!r}")
        parse_origin(origin)
        last[origin] = int(digits)
    return Progress(last)


def parse_gap(text: str) -> dict[str, tuple[int, int]]:
    """The header `qmq-gap`: origin → (first, last) of the sequences that are not kept any more.

    Unknown parts are left out: a later node may send more.

    >>> parse_gap("a-1=3-9, later")
    {'a-1': (3, 9)}
    """
    gap: dict[str, tuple[int, int]] = {}
    for entry in text.split(","):
        origin, _, span = entry.strip().partition("=")
        first, _, last = span.partition("-")
        if origin and all(part.isascii() and part.isdigit() and len(part) <= 19 for part in (first, last)):
            gap[origin] = (int(first), int(last))
    return gap
