"""The first queues of a node in one order, for a page that is asked for before the first pass of `queue_index` is done.

A pass makes all orders, and takes ten seconds or more for a million queues. One order, of which only the first page is
needed, is found faster: each queue is compared with the last one that has a place so far, and hardly any has a better
one. What is held meanwhile does not grow with the number of queues.

A million objects are in no cache of the processor, so most of the time is spent waiting for memory. The names have a
list of their own, and what is read of a queue is in one place (`ListedQueue`).

Queues that are only in the store are found where the store can sort them. Otherwise there is no answer here.
"""

import math
from collections.abc import Callable
from functools import partial
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Final, Protocol

from qmq.broker.queues.dispatch.queue import Queue
from qmq.engine.runtime.contexts import Engine, Tasks
from qmq.engine.runtime.listed_parts import parts_of
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.paused_queues import PausedQueues

STORED_MAX: Final = 10_000
"""Queues that the store is asked for; if most of them were drained, only a pass finds the others."""

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
    if queues.has_stored:
        if text or not ((by_name and not is_reversed) or (sort == "depth" and is_reversed)):
            return None
        rows = context.served_rows()
        asked = count
        while True:
            read = partial(rows.listing, None, asked) if by_name else partial(_deepest, rows.deepest, asked)
            found_rows = await context.environment.run_blocking(read)
            stored = {name: queues.paging.depth(name, messages, size)[0] for name, messages, size in found_rows}
            if by_name or len(found_rows) < asked:
                break
            # Some were drained since the last checkpoint. All others of the store have no more than the flattest here.
            flattest = min([messages for _, messages, _ in found_rows])
            if sum([depth >= flattest for depth in stored.values()]) >= count:
                break
            if asked >= STORED_MAX:
                return None
            asked *= 4
    # Each once: places are counted.
    elsewhere = dict.fromkeys((*stored, *context.declared_queues.texts, *context.paused_queues.names()))
    others = [name for name in elsewhere if text in name]
    if by_name:
        names = await _by_name(queues.listed_names, others, is_reversed=is_reversed, text=text, count=count)
        return [(name, 0) for name in names]
    if sort == "oldest":
        return await _by_age(context, others, is_reversed=is_reversed, text=text, count=count)
    sign = -1 if is_reversed else 1
    found = [(sign * stored.get(name, 0), name) for name in others]
    found = [place for place in found if place[1] not in queues.by_name or not queues.by_name[place[1]].is_counted]
    pick = _flatter if not is_reversed else _deeper if queues.owned.has_stored else _deeper_in_memory
    places = await _by_value(queues.listed, found, pick, _depth, sign=sign, text=text, count=count)
    return [(name, sign * value) for value, name in places]


async def _by_age(
    context: QueueIndexContext, others: list[str], *, is_reversed: bool, text: str, count: int
) -> list[tuple[str, int]]:
    """Queues without a known age are in the order of their names, so only the names of most need to be looked at."""
    queues = context.broker.queues
    now_us = context.environment.now_us()
    sign = -1 if is_reversed else 1

    def age(queue: Queue) -> int:
        """In whole seconds, 1 at least; 0 if no message in memory waits."""
        accepted_us = first_us(queue)
        return max(1, (now_us - accepted_us) // 1_000_000) if accepted_us else 0

    def older(queues: list[Queue], age: float, _name: str) -> list[Queue]:
        latest_us = now_us - age * 1_000_000 if is_reversed and age > 1 else math.inf
        return [queue for queue in queues if queue.levels and first_us(queue) <= latest_us]

    def has_no_age(name: str) -> bool:
        queue = queues.by_name.get(name)
        return queue is None or not first_us(queue)

    async def with_age() -> list[tuple[str, int]]:
        places = await _by_value(queues.listed, [], older, age, sign=sign, text=text, count=count)
        return [(name, sign * value) for value, name in places if value]

    async def without_age() -> list[tuple[str, int]]:
        names = await _by_name(
            queues.listed_names, others, is_reversed=False, text=text, count=count, is_wanted=has_no_age
        )
        return [(name, 0) for name in names]

    first, second = (with_age, without_age) if is_reversed else (without_age, with_age)
    found = await first()
    if len(found) < count:
        known = {name for name, _ in found}
        found += [one for one in await second() if one[0] not in known]
    return found[:count]


def _deepest(deepest: Callable[[int], dict[str, tuple[int, int]]], count: int) -> list[tuple[str, int, int]]:
    return [(name, *sizes) for name, sizes in deepest(count).items()]


def _depth(queue: Queue) -> int:
    return queue.held + queue.stored


# Of some queues those that may be better than the last place. One look at each: nearly all are left out, even if very
# many queues have the same depth.


def _deeper(queues: list[Queue], depth: float, name: str) -> list[Queue]:
    return [
        queue
        for queue in queues
        if (found := queue.held + queue.stored) >= depth and (found > depth or queue.name < name)
    ]


def _deeper_in_memory(queues: list[Queue], depth: float, name: str) -> list[Queue]:
    """The same if the store has no messages: one look-up less for each queue."""
    return [queue for queue in queues if (found := queue.held) >= depth and (found > depth or queue.name < name)]


def _flatter(queues: list[Queue], depth: float, name: str) -> list[Queue]:
    """The store may have more of a queue than memory."""
    return [queue for queue in queues if (found := queue.held) <= depth and (found < depth or queue.name < name)]


def first_us(queue: Queue) -> int:
    """When the first message that waits in memory was accepted: of each priority the first; about. 0: none waits."""
    first = 0
    for level in queue.levels:
        for line in (level.ready, level.tail or ()):
            for message in islice(line, 1):
                if not first or message.timestamp_us < first:
                    first = message.timestamp_us
    return first


def _read(names: list[str]) -> list[str]:
    """The same names, after all were read with little in between: so the processor waits for several at once."""
    "".join(names)
    return names


async def _by_name(
    listed: list[str],
    found: list[str],
    *,
    is_reversed: bool,
    text: str,
    count: int,
    is_wanted: Callable[[str], bool] | None = None,
) -> list[str]:
    first = nlargest if is_reversed else nsmallest
    found = first(count, dict.fromkeys(filter(is_wanted, found) if is_wanted else found))
    last = found[-1] if len(found) == count else None
    async for part in parts_of(listed):
        names = _read(listed[part])
        if last is not None:
            names = [name for name in names if name > last] if is_reversed else [name for name in names if name < last]
        found += [name for name in names if text in name and (is_wanted is None or is_wanted(name))]
        if len(found) > 2 * count:
            found = first(count, dict.fromkeys(found))
            last = found[-1] if len(found) == count else None
    return first(count, dict.fromkeys(found))


async def _by_value(
    listed: list[Queue],
    found: list[Place],
    pick: Callable[[list[Queue], float, str], list[Queue]],
    value_of: Callable[[Queue], int],
    *,
    sign: int,
    text: str,
    count: int,
) -> list[Place]:
    """`pick` leaves out queues that are certainly after the place with this value and name."""
    found = nsmallest(count, found)
    last: tuple[float, str] = found[-1] if len(found) == count else NO_PLACE
    async for part in parts_of(listed):
        found += [
            place
            for queue in pick(listed[part], sign * last[0], last[1])
            if (place := (sign * value_of(queue), queue.name)) < last and text in queue.name
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
