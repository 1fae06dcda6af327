"""A walk through a long list, such as that of all queues, which others change meanwhile."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

import trio

TURN_ITEMS: Final = 1_000
"""Looked at in one turn of the event loop, less than a millisecond."""

PART_ITEMS: Final = 250
"""Looked at together: what was read of so many is still in the first cache when it is read again."""


async def parts_of(listed: Sequence[object]) -> AsyncIterator[slice]:
    """The places of all of them. Other tasks have a turn after each TURN_ITEMS."""
    end = len(listed)
    while end:
        # From the end: what one that is dropped meanwhile leaves free is filled with one that was looked at.
        begin = max(0, end - TURN_ITEMS)
        for stop in range(end, begin, -PART_ITEMS):
            yield slice(max(begin, stop - PART_ITEMS), stop)
        await trio.lowlevel.checkpoint()
        end = min(begin, len(listed))
