"""The first queues of a node in one order, for a page that is asked for before the first pass of `queue_index` is done.

A pass makes all orders, and takes ten seconds or more for a million queues. One order, of which only the first page is
needed, is found faster: each queue is compared with the last one that has a place so far, and hardly any has a better
one. What is held meanwhile does not grow with the number of queues.

Queues that are only in the store are found where the store can sort them. Otherwise there is no answer here.
"""

from collections.abc import Callable, Sequence
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

Place = tuple[int, str]
"""Value and name. Where the largest values come first, values have their sign turned: names of equal ones go up."""


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
        names = await _by_name(queues.listed, others, is_reversed=is_reversed, text=text, count=count)
        return [(name, 0) for name in names]
    sign = -1 if is_reversed else 1
    found = [(sign * stored.get(name, 0), name) for name in {**stored, **dict.fromkeys(special)} if text in name]
    found = [place for place in found if place[1] not in queues.by_name or not queues.by_name[place[1]].is_counted]
    now_us = context.environment.now_us()
    values = depths if sort == "depth" else partial(ages, now_us=now_us)
    places = await _by_value(queues.listed, found, values, sign=sign, text=text, count=count)
    return [(name, sign * value) for value, name in places]


def _deepest(deepest: Callable[[int], dict[str, tuple[int, int]]], count: int) -> list[tuple[str, int, int]]:
    return [(name, *sizes) for name, sizes in deepest(count).items()]


def depths(queues: Sequence[Queue]) -> list[int]:
    """Messages of each."""
    return [queue.held + queue.stored for queue in queues]


def ages(queues: Sequence[Queue], now_us: int) -> list[int]:
    """Of the oldest message in memory that waits, in whole seconds, 1 at least; 0 if none is known."""
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


async def _by_name(listed: list[Queue], found: list[str], *, is_reversed: bool, text: str, count: int) -> list[str]:
    first = nlargest if is_reversed else nsmallest
    found = first(count, dict.fromkeys(found))
    last = found[-1] if len(found) == count else None
    end = len(listed)
    while end:
        # From the end: what a queue that is dropped meanwhile leaves free is filled with one that was looked at.
        begin = max(0, end - TURN_QUEUES)
        part = listed[begin:end]
        if last is None:
            names = [queue.name for queue in part]
        elif is_reversed:
            names = [name for queue in part if (name := queue.name) > last]
        else:
            names = [name for queue in part if (name := queue.name) < last]
        found += [name for name in names if text in name] if text else names
        if len(found) > 2 * count or begin == 0:
            found = first(count, dict.fromkeys(found))
            last = found[-1] if len(found) == count else None
        await trio.lowlevel.checkpoint()
        end = min(begin, len(listed))
    return first(count, dict.fromkeys(found))


async def _by_value(
    listed: list[Queue],
    found: list[Place],
    values: Callable[[Sequence[Queue]], list[int]],
    *,
    sign: int,
    text: str,
    count: int,
) -> list[Place]:
    found = nsmallest(count, found)
    last = found[-1] if len(found) == count else None
    end = len(listed)
    while end:
        begin = max(0, end - TURN_QUEUES)
        part = listed[begin:end]
        pairs = zip(values(part), part, strict=True)
        if last is None:
            places = [(sign * value, queue.name) for value, queue in pairs]
        else:
            most, name = sign * last[0], last[1]
            if sign < 0:
                places = [
                    (-value, queue.name)
                    for value, queue in pairs
                    if value >= most and (value > most or queue.name < name)
                ]
            else:
                places = [
                    (value, queue.name)
                    for value, queue in pairs
                    if value <= most and (value < most or queue.name < name)
                ]
        found += [place for place in places if text in place[1]] if text else places
        if len(found) > 2 * count:
            found = _smallest(count, found)
            last = found[-1] if len(found) == count else None
        await trio.lowlevel.checkpoint()
        end = min(begin, len(listed))
    return _smallest(count, found)


def _smallest(count: int, found: list[Place]) -> list[Place]:
    """Each queue once: one that was dropped and made again, or that is in the store as well, is there twice."""
    places: dict[str, int] = {}
    for value, name in found:
        places[name] = min(value, places.get(name, value))
    return nsmallest(count, [(value, name) for name, value in places.items()])
