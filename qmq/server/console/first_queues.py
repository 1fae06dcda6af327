"""The first queues of a node in one order, for a page that is asked for before the first pass of `queue_index` is done.

A pass makes all orders, and takes ten seconds or more for a million queues. One order, of which only the first page is
needed, is found faster: each queue is compared with the last one that has a place so far, and hardly any has a better
one. What is held meanwhile does not grow with the number of queues.

A million objects are in no cache of the processor, so most of the time is spent waiting for memory. The names have a
list of their own, and what is read of a queue is in one place (`ListedQueue`).

Queues that are only in the store are found where the store can sort them. Otherwise there is no answer here.
"""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Final, Protocol

import trio

from qmq.broker.queues.dispatch.queue import Queue
from qmq.server.definitions.declared_queues import DeclaredQueues
from qmq.server.definitions.paused_queues import PausedQueues
from qmq.server.runtime.contexts import Engine, Tasks

TURN_QUEUES: Final = 1_000
"""Looked at in one turn, a fraction of a millisecond. Other tasks have a turn after each."""

PART_QUEUES: Final = 250
"""Looked at together: what was read of so many is still in the first cache when it is read again."""

Place = tuple[int, str]
"""Value and name. Where the largest values come first, values have their sign turned: names of equal ones go up."""

NO_PLACE: Final = (math.inf, "")
"""After all places."""


class QueueIndexContext(Engine, Tasks, Protocol):
    declared_queues: DeclaredQueues
    paused_queues: PausedQueues


async def first_queues(
    context: QueueIndexContext, sort: str, *, is_reversed: bool, text: str, count: int
) -> list[tuple[str, int]] | None:
    """The first `count` queues whose names contain `text`, with the values of this order; None if only a pass finds
    them.
    """
    queues = context.broker.queues
    by_name = sort == "name"
    stored: dict[str, int] = {}
    if queues.stored_names.count or queues.owned.has_stored:
        if text or not ((by_name and not is_reversed) or (sort == "depth" and is_reversed)):
            return None
        rows = context.served_rows()
        read = partial(rows.listing, None, count) if by_name else partial(_deepest, rows.deepest, count)
        for name, messages, body_bytes in await context.environment.run_blocking(read):
            stored[name] = queues.paging.depth(name, messages, body_bytes)[0]
    special = [*context.declared_queues.texts, *context.paused_queues.names()]
    if by_name:
        others = [name for name in (*stored, *special) if text in name]
        names = await _by_name(queues.listed_names, others, is_reversed=is_reversed, text=text, count=count)
        return [(name, 0) for name in names]
    sign = -1 if is_reversed else 1
    found = [(sign * stored.get(name, 0), name) for name in {**stored, **dict.fromkeys(special)} if text in name]
    found = [place for place in found if place[1] not in queues.by_name or not queues.by_name[place[1]].is_counted]
    now_us = context.environment.now_us()
    values: Callable[[Sequence[Queue]], list[int]] = partial(ages, now_us=now_us)
    if sort == "depth":
        values = depths if queues.owned.has_stored else depths_in_memory
    places = await _by_value(queues.listed, queues.listed_names, found, values, sign=sign, text=text, count=count)
    return [(name, sign * value) for value, name in places]


def _deepest(deepest: Callable[[int], dict[str, tuple[int, int]]], count: int) -> list[tuple[str, int, int]]:
    return [(name, *sizes) for name, sizes in deepest(count).items()]


def depths(queues: Sequence[Queue]) -> list[int]:
    """Messages of each."""
    return [queue.held + queue.stored for queue in queues]


def depths_in_memory(queues: Sequence[Queue]) -> list[int]:
    """The same if the store has none: one look-up less for each queue."""
    found: list[int] = []
    each = iter(queues)
    # A number above 256 is an object of its own. Read five at a time, with little in between: so the processor waits
    # for several at once.
    for a, b, c, d, e in zip(each, each, each, each, each, strict=False):
        found += (a.held, b.held, c.held, d.held, e.held)
    return [*found, *[queue.held for queue in queues[len(found) :]]]


def ages(queues: Sequence[Queue], now_us: int) -> list[int]:
    """Of the oldest message in memory that waits, in whole seconds, 1 at least; 0 if none is known."""
    levels = [queue.levels for queue in queues]
    if not any(levels):
        return [0] * len(queues)
    firsts_us = [first_us(queue) if queue.levels else 0 for queue in queues]
    return [max(1, (now_us - one_us) // 1_000_000) if one_us else 0 for one_us in firsts_us]


def first_us(queue: Queue) -> int:
    """When the first message that waits in memory was accepted: of each priority the first; about. 0: none waits."""
    first = 0
    for level in queue.levels:
        for line in (level.ready, level.fresh or ()):
            for message in islice(line, 1):
                if not first or message.timestamp_us < first:
                    first = message.timestamp_us
    return first


async def _parts(listed: Sequence[object]) -> AsyncIterator[slice]:
    """The places of all of them. Other tasks have a turn after each TURN_QUEUES."""
    end = len(listed)
    while end:
        # From the end: what a queue that is dropped meanwhile leaves free is filled with one that was looked at.
        begin = max(0, end - TURN_QUEUES)
        for stop in range(end, begin, -PART_QUEUES):
            yield slice(max(begin, stop - PART_QUEUES), stop)
        await trio.lowlevel.checkpoint()
        end = min(begin, len(listed))


def _read(names: list[str]) -> list[str]:
    """The same names, after all were read with little in between: so the processor waits for several at once."""
    "".join(names)
    return names


async def _by_name(listed: list[str], found: list[str], *, is_reversed: bool, text: str, count: int) -> list[str]:
    first = nlargest if is_reversed else nsmallest
    found = first(count, dict.fromkeys(found))
    last = found[-1] if len(found) == count else None
    async for part in _parts(listed):
        names = _read(listed[part])
        if last is not None:
            names = [name for name in names if name > last] if is_reversed else [name for name in names if name < last]
        found += [name for name in names if text in name] if text else names
        if len(found) > 2 * count:
            found = first(count, dict.fromkeys(found))
            last = found[-1] if len(found) == count else None
    return first(count, dict.fromkeys(found))


async def _by_value(
    listed: list[Queue],
    names: list[str],
    found: list[Place],
    values: Callable[[Sequence[Queue]], list[int]],
    *,
    sign: int,
    text: str,
    count: int,
) -> list[Place]:
    found = nsmallest(count, found)
    last: tuple[float, str] = found[-1] if len(found) == count else NO_PLACE
    best_of = max if sign < 0 else min
    async for part in _parts(listed):
        column = values(listed[part])
        best = sign * best_of(column)
        # Hardly any part has a better place. If all of it are equal, as ages often are, its names decide.
        if best > last[0]:
            continue
        if best == last[0] and column.count(column[0]) == len(column) and min(_read(names[part])) >= last[1]:
            continue
        found += [
            place
            for at, value in enumerate(column, part.start)
            if sign * value <= last[0] and text in names[at] and (place := (sign * value, names[at])) < last
        ]
        if len(found) > 2 * count:
            found = _smallest(count, found)
            last = found[-1] if len(found) == count else NO_PLACE
    return _smallest(count, found)


def _smallest(count: int, found: list[Place]) -> list[Place]:
    """Each queue once: one that was dropped and made again, or that is in the store as well, is there twice."""
    places: dict[str, int] = {}
    for value, name in found:
        places[name] = min(value, places.get(name, value))
    return nsmallest(count, [(value, name) for name, value in places.items()])
