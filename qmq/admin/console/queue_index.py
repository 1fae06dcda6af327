"""All queues of a node, in the orders in which pages of them are asked for: by name, by depth, by age.

A million queues cannot be sorted while a client waits, and not in one turn of the event loop. So a pass walks through
them in turns, and its result is kept: names, depths, ages, and for each order the places of the queues in it. A page is
a slice of that. The next pass begins when a page is asked for and the last result is old.

Sorting takes turns, too: `sorted_in_turns` sorts parts, divides them at common keys, and sorts what belongs together.

What a page shows of its queues is read again; only their order is that of the last pass.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from heapq import nlargest, nsmallest
from typing import Any, Final

import trio

from qmq.admin.console.first_queues import QueueIndexContext, first_us
from qmq.engine.checkpoint.queue_ages import oldest_ages_us

TURN_QUEUES: Final = 2_000
"""Looked at in one turn, about a millisecond."""

SORT_AT_ONCE: Final = 2_048
"""Sorted in one turn, a few milliseconds if none of the names is in a cache of the processor."""

SAMPLES: Final = 8
"""Of each part that was sorted."""

TURN_SECONDS: Final = 0.002
"""Between two turns of a pass, so that it takes about half of the event loop at most."""

PICK_AT_ONCE: Final = 5_000
"""Names that are compared in one turn, and matches that are sorted in one."""

BLOCK_NAMES: Final = 1_024
"""Names that are searched as one text."""

STORED_AT_ONCE: Final = 10_000

AGES_MAX: Final = 2_000
"""Queues only in the store whose age is looked up in a pass, the deepest first. Each costs a look-up by index."""

FRESH_SECONDS: Final = 4.0
"""A pass this old is recent enough."""

FRESH_FACTOR: Final = 10
"""And so is one that began less than so many times its duration ago."""

IDLE_SECONDS: Final = 120.0
"""After so long without a request the result is dropped."""

SORTS: Final = ("name", "depth", "oldest")


class Picture:
    """The result of one pass. `orders` has, by sort, the places of all queues with the smallest value first."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Sorted."""
        self.blocks: list[str] = []
        """All names again, BLOCK_NAMES in each."""
        self.columns: dict[str, array[int]] = {}
        self.orders: dict[str, array[int]] = {}
        self.taken_at = 0.0


class QueueIndex:
    """Pages of the last pass, which is made when it is needed."""

    def __init__(self, context: QueueIndexContext) -> None:
        self._context = context
        self._picture: Picture | None = None
        self._fresh_until = 0.0
        self._used_at = 0.0
        self._passing: trio.Event | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a pass is done, so that `picture` does not wait."""
        return self._picture is not None

    async def picture(self) -> Picture:
        """The last result, at once if there is one. An old one lets a pass begin, for later requests."""
        self._used_at = trio.current_time()
        if self._passing is None and (self._picture is None or self._used_at >= self._fresh_until):
            self._begin()
        while self._picture is None:
            assert self._passing is not None
            await self._passing.wait()
        return self._picture

    def keep(self) -> bool:
        """Make the first pass before a page is asked for, and keep its result for later; whether it begins now."""
        self._used_at = trio.current_time()
        if self._passing is not None or self._picture is not None:
            return False
        self._begin()
        return True

    def _begin(self) -> None:
        self._passing = trio.Event()
        self._context.spawn(self._pass)

    async def _pass(self) -> None:
        began = trio.current_time()
        try:
            picture = await self._take()
            old, self._picture = self._picture, picture
        finally:
            assert self._passing is not None
            self._passing.set()
            self._passing = None
        picture.taken_at = began
        now = trio.current_time()
        self._fresh_until = now + max(FRESH_SECONDS, FRESH_FACTOR * (now - began))
        if old is None:
            self._context.spawn(self._drop_when_idle)
        else:
            await trio.sleep(FRESH_SECONDS)  # for pages that are picked from it
            await _free(old.names)

    async def _drop_when_idle(self) -> None:
        """It may be large. One task for all passes until then: what it waits with must not keep their results."""
        left = IDLE_SECONDS
        while left > 0:
            await trio.sleep(left)
            left = self._used_at + IDLE_SECONDS - trio.current_time()
        kept, self._picture = self._picture, None
        assert kept is not None
        await trio.sleep(FRESH_SECONDS)
        await _free(kept.names)

    async def _take(self) -> Picture:
        turns = Turns()
        found = await self._in_memory(turns)
        await self._stored(found, turns)
        context = self._context
        special = [*context.declared_queues.texts, *context.paused_queues.names()]
        for part in _parts(len(special), TURN_QUEUES):
            for name in special[part]:
                if name not in context.broker.queues.by_name:
                    found.add(name, 0, 0)
            await turns.after(part)
        return await _picture_of(found, context.environment.now_us(), turns)

    async def _in_memory(self, turns: "Turns") -> "Found":
        queues = self._context.broker.queues
        listed, names = queues.listed, queues.listed_names
        found = Found()
        end = len(listed)
        while end:
            # From the end: what a queue that is dropped meanwhile leaves free is filled with one that was looked at.
            begin = max(0, end - TURN_QUEUES)
            part = listed[begin:end]
            found.names += names[begin:end]
            found.depths.extend([queue.held + queue.stored for queue in part])
            found.firsts_us.extend([first_us(queue) if queue.levels else 0 for queue in part])
            await turns.after(slice(begin, end))
            end = min(begin, len(listed))
        return found

    async def _stored(self, found: "Found", turns: "Turns") -> None:
        """Add the queues of the store that are not in memory, or not counted there."""
        context = self._context
        rows, queues = context.served_rows(), context.broker.queues
        if not queues.has_stored:
            return
        deepest: list[tuple[int, str]] = []
        after: str | None = None
        while page := await context.environment.run_blocking(partial(rows.listing, after, STORED_AT_ONCE)):
            for part in _parts(len(page), TURN_QUEUES):
                for name, messages, body_bytes in page[part]:
                    queue = queues.by_name.get(name)
                    if queue is None or not queue.is_counted:
                        messages = queues.paging.depth(name, messages, body_bytes)[0]
                        found.add(name, messages, 0)
                        if messages:
                            deepest.append((messages, name))
                await turns.after(part)
            after = page[-1][0]
            deepest = nlargest(AGES_MAX, deepest)
        ages_us = await oldest_ages_us(context, rows, [name for _, name in deepest], only_waiting=True)
        now_us = context.environment.now_us()
        for name, age_us in ages_us.items():
            found.add(name, 0, now_us - age_us)


class Found:
    """What a pass has found: columns, with more than one row of some queues. The largest value counts.

    Plain columns, because a dictionary of a million names grows in one long turn.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.depths = array("q")
        self.firsts_us = array("q")
        """When the oldest message that waits was accepted; 0 if none is known."""

    def add(self, name: str, messages: int, first_us: int) -> None:
        self.names.append(name)
        self.depths.append(messages)
        self.firsts_us.append(first_us)


async def _picture_of(found: Found, now_us: int, turns: "Turns") -> Picture:
    rows = await sorted_in_turns(range(len(found.names)), turns.after, found.names.__getitem__)
    picture = Picture()
    names, depths, ages = picture.names, array("q"), array("q")
    last = ""
    for part in _parts(len(rows), TURN_QUEUES):
        for row in rows[part]:
            name, depth, first_us = found.names[row], found.depths[row], found.firsts_us[row]
            age = max(1, (now_us - first_us) // 1_000_000) if first_us else 0
            if name == last:
                depths[-1] = max(depths[-1], depth)
                ages[-1] = max(ages[-1], age)
            else:
                names.append(name)
                depths.append(depth)
                ages.append(age)
                last = name
        await turns.after(part)
    for part in _parts(len(names), BLOCK_NAMES):
        picture.blocks.append("\n".join(names[part]))
        # It takes a sixteenth of what others do with a name.
        await turns.after(slice(part.start // 16, part.stop // 16))
    picture.columns = {"depth": depths, "oldest": ages}
    for sort, column in picture.columns.items():
        packed = array("q")
        for part in _parts(len(names), TURN_QUEUES):
            # Ties go by name, backwards: the largest values are read from the end (`_in_order`).
            packed.extend([value * len(names) - place for place, value in enumerate(column[part], part.start)])
            await turns.after(part)
        places = await sorted_in_turns(range(len(names)), turns.after, packed.__getitem__)
        picture.orders[sort] = places
    await _free(found.names)
    return picture


async def _free(names: list[str]) -> None:
    """To let go of a million at once takes long."""
    while len(names) > TURN_QUEUES:
        del names[-TURN_QUEUES:]
        await trio.sleep(TURN_SECONDS)
    names.clear()


async def pick(picture: Picture, sort: str, *, is_reversed: bool, text: str, count: int) -> list[int]:
    """The places of the first `count` queues in this order whose names contain `text`. Equal ones go by name, upwards.

    Takes turns.
    """
    names = picture.names
    column = picture.columns.get(sort)
    if text:
        matching = await _matching(picture, text)
        if matching is not None:
            sign = -1 if is_reversed else 1
            if column is None:
                return matching[::sign][:count]
            return nsmallest(count, matching, key=lambda place: (sign * column[place], place))
    found: list[int] = []
    for places in _in_order(picture, sort, is_reversed=is_reversed):
        found += [place for place in places if text in names[place]] if text else places
        if len(found) >= count:
            break
        await trio.lowlevel.checkpoint()
    return found[:count]


def _in_order(picture: Picture, sort: str, *, is_reversed: bool) -> Iterator[Sequence[int]]:
    """All places, about PICK_AT_ONCE at a time."""
    order: Sequence[int] = picture.orders[sort] if sort in picture.orders else range(len(picture.names))
    column = picture.columns.get(sort)
    if is_reversed or column is None:
        for part in _parts(len(order), PICK_AT_ONCE):
            yield order[len(order) - part.stop : len(order) - part.start][::-1] if is_reversed else order[part]
        return
    # Equal queues are there by name, backwards: the largest values are read from the end.
    begin = 0
    places: list[int] = []
    while begin < len(order):
        end = begin + 1
        if end < len(order) and column[order[end]] == column[order[begin]]:
            end = bisect_right(order, column[order[begin]], end, key=column.__getitem__)
        for part in _parts(end - begin, PICK_AT_ONCE):
            places += order[end - part.stop : end - part.start][::-1]
            if len(places) >= PICK_AT_ONCE:
                yield places
                places = []
        begin = end
    yield places


async def _matching(picture: Picture, text: str) -> list[int] | None:
    """The places of all queues with `text` in their names; None for more than PICK_AT_ONCE.

    Most blocks of names are passed over as a whole, so that a million names take some 20 ms.
    """
    found: list[int] = []
    for number, block in enumerate(picture.blocks):
        if text in block:
            begin = number * BLOCK_NAMES
            names = picture.names[begin : begin + BLOCK_NAMES]
            found += [place for place, name in enumerate(names, begin) if text in name]
            if len(found) > PICK_AT_ONCE:
                return None
        if number % 16 == 0:
            await trio.lowlevel.checkpoint()
    return found


async def sorted_in_turns(
    keys: Sequence[int], turn: Callable[[slice], Awaitable[None]], key: Callable[[int], Any]
) -> "array[int]":
    """`keys` sorted by `key`; `turn` is awaited after each few thousand, with a slice as long as these are."""
    parts: list[list[int]] = []
    for span in _parts(len(keys), SORT_AT_ONCE):
        parts.append(sorted(keys[span], key=key))
        await turn(span)
    # Samples of each part are cuts that divide all keys into about as many groups of about the same size. Each part has
    # them at other places: the parts are alike, so what is at the same place in all of them is in one small group.
    step = SORT_AT_ONCE // SAMPLES
    samples = sorted([key(one) for at, part in enumerate(parts) for one in part[at * step // len(parts) :: step]])
    cuts = samples[:: max(1, len(samples) // max(1, len(parts)))][1:]
    begins = [0] * len(parts)
    result = array("I")
    for cut in [*cuts, None]:
        group: list[int] = []
        for at, part in enumerate(parts):
            end = len(part) if cut is None else bisect_left(part, cut, begins[at], key=key)
            group += part[begins[at] : end]
            begins[at] = end
        group.sort(key=key)
        result.extend(group)
        await turn(slice(0, len(group)))
    while parts:
        await turn(slice(0, len(parts.pop())))
    return result


def _parts(count: int, size: int) -> list[slice]:
    return [slice(begin, min(count, begin + size)) for begin in range(0, count, size)]


class Turns:
    """Those of one pass. Small steps share one: a pass over a few hundred queues needs no second one."""

    def __init__(self) -> None:
        self._queues = 0

    async def after(self, part: slice) -> None:
        """Leave the event loop to others when as many queues as TURN_QUEUES were looked at; `part` was one step."""
        self._queues += part.stop - part.start
        if self._queues >= TURN_QUEUES:
            self._queues = 0
            await trio.sleep(TURN_SECONDS)
