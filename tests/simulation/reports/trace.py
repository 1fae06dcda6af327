"""What happened, in order, as lines with virtual times; their hash is what two runs of one seed are compared by."""

import hashlib
from collections import deque

import trio

TAIL_LINES = 60


class Trace:
    """Every line goes into the hash; the last ones are kept for the report."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.lines = 0

    def note(self, text: str) -> None:
        line = f"{trio.current_time():10.6f} {text}"
        self._hash.update(line.encode() + b"\n")
        self._tail.append(line)
        self.lines += 1

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def tail(self) -> list[str]:
        return list(self._tail)
