"""Long work in turns: others of this thread go on between two parts of it."""

from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")


async def in_turns(items: Iterable[T], at_once: int) -> AsyncIterator[list[T]]:
    """Parts of `items`, as these are at the first one, each of `at_once` at most. Between two is a checkpoint: what the
    items say may have changed meanwhile.
    """
    rows = list(items)
    for begin in range(0, len(rows), at_once):
        if begin:
            await trio.lowlevel.checkpoint()
        yield rows[begin : begin + at_once]
