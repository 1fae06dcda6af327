"""The first queues of a node in one order, of a million: what is held meanwhile does not grow with their number.

Each queue is compared with the last one that has a place so far, and hardly any has a better one. A million objects are
in no cache of the processor, so most of the time is spent waiting for memory. The names have a list of their own, and
what is read of a queue is in one place (`ListedQueue`).

The queues that are only in the store are sorted by the store where it can. Otherwise all of them are read, in pages.
Surprising: of those the age is known for the AGES_MAX deepest only, because each costs a look-up by index.
"""

import math
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Final

import trio

from qmq.broker.queues.dispatch.queue import Queue
from qmq.engine.checkpoint.queue_ages import oldest_ages_us
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.listed_parts import TURN_ITEMS, parts_of
from qmq.storage.queues.served_rows import ServedRows

NAME: Final = "name"
DEPTH: Final = "depth"
OLDEST: Final = "oldest"
SORTS: Final = (NAME, DEPTH, OLDEST)

DEEPEST_MAX: Final = 10_000
"""Queues that the store is asked for by depth; if most of them were drained, all are read."""

STORED_AT_ONCE: Final = 10_000
"""Read from the store in one call."""

AGES_MAX: Final = 2_000
"""Queues only in the store whose age is looked up, the deepest first."""

Place = tuple[int, str]
"""Value and name. Where the largest values come first, values have their sign turned: names of equal ones go up."""

NO_PLACE: Final = (math.inf, "")
"""After all places."""

Found = list[tuple[str, int]]
"""Names, and the values by which they are sorted: messages, or seconds; 0 by name."""


@dataclass(frozen=True, slots=True)
class QueueSearch:
    """The first `count` queues in this order whose names contain `text`. Equal ones go by name, upwards.

    With `prefix` and `after` (by name, upwards) only those whose names begin so, and come after that name.
    """

    sort: str
    is_reversed: bool
    count: int
    text: str = ""
    prefix: str = ""
    after: str = ""

    @property
    def sign(self) -> int:
        return -1 if self.is_reversed else 1

    def matching(self, names: list[str]) -> list[str]:
        """Those of `names` that it is about."""
        if self.text:
            names = [name for name in names if self.text in name]
        if self.prefix:
            names = [name for name in names if name.startswith(self.prefix)]
        return [name for name in names if name > self.after] if self.after else names

    def first(self, names: Iterable[str]) -> list[str]:
        """The first of `names`, by name, each once."""
        return (nlargest if self.is_reversed else nsmallest)(self.count, dict.fromkeys(names))


async def first_queues(engine: EngineParts, search: QueueSearch, more: list[str]) -> Found:
    """See `QueueSearch`; `more` are queues that need have neither messages nor consumers.

    Takes turns; most of the time for queues in the store is that of worker threads.
    """
    special = search.matching(more)
    if search.sort == NAME:
        stored_names = await _stored_names(engine, search)
        return [(name, 0) for name in await _by_name(engine, search, [*special, *stored_names])]
    if search.sort == OLDEST:
        return await _by_age(engine, search, special)
    queues, sign = engine.broker.queues, search.sign
    found = [(0, name) for name in special if name not in queues.by_name]
    if not queues.has_stored:
        pick = _deeper_in_memory if search.is_reversed else _flatter
    elif search.is_reversed:
        found += await _deepest_stored(engine, search)
        pick = _deeper
    else:
        found += await _flattest_stored(engine, search)
        pick = _flatter_counted
    # What is in the store of a queue that is declared counts, not the 0.
    most = {name: value for value, name in sorted(found)}
    places = [(sign * value, name) for name, value in most.items()]
    if queues.has_stored and search.is_reversed:
        # A queue that is in both is among the first by one of them, unless as many others have more.
        places = await _by_value(queues.listed, places, pick, _depth, replace(search, count=2 * search.count))
        sizes = await sizes_of(engine, [name for _, name in places])
        deepest = nsmallest(search.count, [(-depth, name) for name, (depth, _) in sizes.items()])
        return [(name, -value) for value, name in deepest]
    places = await _by_value(queues.listed, places, pick, _depth, search)
    return [(name, sign * value) for value, name in places]


async def sizes_of(engine: EngineParts, names: list[str]) -> dict[str, tuple[int, int]]:
    """Queue → unsettled messages that this node serves and bytes of their bodies; 0 if none is known."""
    depth = engine.broker.queues.paging.depth
    if not engine.broker.queues.has_stored:
        # A console asks for rows again and again, and a thread takes longer than they do.
        return {name: depth(name, 0, 0) for name in names}
    heads = await engine.environment.run_blocking(engine.served_rows().heads, names, 0)
    stored = {name: (head.messages, head.body_bytes) for name, head in heads.items()}
    return {name: depth(name, *stored.get(name, (0, 0))) for name in names}


async def stored_pages(engine: EngineParts, text: str = "") -> AsyncGenerator[list[Place], None]:
    """The queues of the store that are not in memory, or not counted there: messages and names, by name.

    Only those with `text` in their names. Some were drained since the last checkpoint: they have 0 messages.
    """
    rows, queues = engine.served_rows(), engine.broker.queues

    def read(after: str | None) -> tuple[list[tuple[str, int, int]], str | None]:
        page = rows.listing(after, STORED_AT_ONCE)
        return [one for one in page if text in one[0]], page[-1][0] if page else None

    page, after = await engine.environment.run_blocking(read, None)
    while after is not None:
        for begin in range(0, len(page), TURN_ITEMS):
            yield [
                (queues.paging.depth(name, messages, body_bytes)[0], name)
                for name, messages, body_bytes in page[begin : begin + TURN_ITEMS]
                if name not in queues.by_name or not queues.by_name[name].is_counted
            ]
            await trio.lowlevel.checkpoint()
        page, after = await engine.environment.run_blocking(read, after)


async def _stored_names(engine: EngineParts, search: QueueSearch) -> list[str]:
    """The first of the store by name."""
    if not engine.broker.queues.has_stored:
        return []
    if not search.text and not search.is_reversed:
        return await engine.environment.run_blocking(_listed_names, engine.served_rows(), search)
    found: list[str] = []
    async with aclosing(stored_pages(engine, search.text)) as pages:
        async for page in pages:
            found = search.first([*found, *[name for _, name in page]])
            if len(found) == search.count and not search.is_reversed:
                break
    return found


def _listed_names(rows: ServedRows, search: QueueSearch) -> list[str]:
    after = max(search.after, search.prefix)
    # The store lists names after a given one, and the prefix itself may be a name.
    heads = rows.heads([search.prefix], 0) if search.prefix > search.after else ()
    return search.matching([*heads, *[name for name, _, _ in rows.listing(after or None, search.count)]])


async def _deepest_stored(engine: EngineParts, search: QueueSearch) -> list[Place]:
    """Depths and names of the deepest of the store, with what memory has of these."""
    queues, rows = engine.broker.queues, engine.served_rows()
    asked = search.count
    while not search.text and asked <= DEEPEST_MAX:
        stored = await engine.environment.run_blocking(rows.deepest, asked)
        found = [(queues.paging.depth(name, *sizes)[0], name) for name, sizes in stored.items()]
        # Some were drained since the last checkpoint. All others of the store have no more than the flattest here.
        flattest = min([messages for messages, _ in stored.values()], default=0)
        if len(stored) < asked or sum([depth >= flattest for depth, _ in found]) >= search.count:
            return found
        asked *= 4
    found = []
    async for page in stored_pages(engine, search.text):
        found = nsmallest(search.count, [*found, *page], key=lambda place: (-place[0], place[1]))
    return found


async def _flattest_stored(engine: EngineParts, search: QueueSearch) -> list[Place]:
    """Depths and names of the flattest of the store, and of queues in memory that are not counted there."""
    queues = engine.broker.queues
    found: list[Place] = []
    async for page in stored_pages(engine, search.text):
        found = nsmallest(search.count, [*found, *page])
    async for part in parts_of(queues.listed):
        names = search.matching([queue.name for queue in queues.listed[part] if not queue.is_counted])
        if names:
            found += [(depth, name) for name, (depth, _) in (await sizes_of(engine, names)).items()]
            found = nsmallest(search.count, dict.fromkeys(found))
    return found


async def _by_age(engine: EngineParts, search: QueueSearch, special: list[str]) -> Found:
    """Queues without a known age are in the order of their names, so only the names of most need to be looked at."""
    queues, sign, text, count = engine.broker.queues, search.sign, search.text, search.count
    ages, others = await _stored_ages(engine, text, count)
    now_us = engine.environment.now_us()

    def age(queue: Queue) -> int:
        """In whole seconds, 1 at least; 0 if no message in memory waits."""
        accepted_us = _first_us(queue)
        return max(1, (now_us - accepted_us) // 1_000_000) if accepted_us else 0

    def older(queues: list[Queue], age: float, _name: str) -> list[Queue]:
        latest_us = now_us - age * 1_000_000 if search.is_reversed and age > 1 else math.inf
        return [queue for queue in queues if queue.levels and _first_us(queue) <= latest_us]

    def has_no_age(name: str) -> bool:
        queue = queues.by_name.get(name)
        return name not in ages and (queue is None or not _first_us(queue))

    async def with_age() -> Found:
        places = await _by_value(
            queues.listed, [(sign * value, name) for name, value in ages.items()], older, age, search
        )
        return [(name, sign * value) for value, name in places if value]

    async def without_age() -> Found:
        by_name = QueueSearch(NAME, is_reversed=False, count=count, text=text)
        names = await _by_name(engine, by_name, [*special, *others], has_no_age)
        return [(name, 0) for name in names]

    first, second = (with_age, without_age) if search.is_reversed else (without_age, with_age)
    found = await first()
    if len(found) < count:
        known = {name for name, _ in found}
        found += [one for one in await second() if one[0] not in known]
    return found[:count]


async def _stored_ages(engine: EngineParts, text: str, count: int) -> tuple[dict[str, int], list[str]]:
    """Ages in seconds of the deepest queues of the store, and the first names there, with so many more."""
    names: list[str] = []
    deepest: list[Place] = []
    floor = 0
    if engine.broker.queues.has_stored:
        async for page in stored_pages(engine, text):
            names += [name for _, name in page[: max(0, count + AGES_MAX - len(names))]]
            deepest += [place for place in page if place[0] > floor]
            if len(deepest) > 2 * AGES_MAX:
                deepest = nlargest(AGES_MAX, deepest)
                floor = deepest[-1][0]
    found = [name for _, name in nlargest(AGES_MAX, deepest)]
    if not found:
        return {}, names
    rows = engine.served_rows()
    ages_us = await oldest_ages_us(engine.broker, engine.environment, rows, found, only_waiting=True)
    return {name: max(1, age_us // 1_000_000) for name, age_us in ages_us.items()}, names


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
    return [queue for queue in queues if (found := queue.held) <= depth and (found < depth or queue.name < name)]


def _flatter_counted(queues: list[Queue], depth: float, name: str) -> list[Queue]:
    """The same if the store has more of some queues. Those that are not counted yet were looked up there."""
    return [queue for queue in _flatter(queues, depth, name) if queue.is_counted]


def _first_us(queue: Queue) -> int:
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
    engine: EngineParts,
    search: QueueSearch,
    others: list[str],
    is_wanted: Callable[[str], bool] | None = None,
) -> list[str]:
    """The first of the queues in memory and `others`."""
    listed = engine.broker.queues.listed_names
    found = search.first(filter(is_wanted, others))
    last = found[-1] if len(found) == search.count else None
    async for part in parts_of(listed):
        names = _read(listed[part])
        if last is not None:
            names = [name for name in names if name > last] if search.is_reversed else [n for n in names if n < last]
        found += filter(is_wanted, search.matching(names)) if is_wanted else search.matching(names)
        if len(found) > 2 * search.count:
            found = search.first(found)
            last = found[-1] if len(found) == search.count else None
    return search.first(found)


async def _by_value(
    listed: list[Queue],
    found: list[Place],
    pick: Callable[[list[Queue], float, str], list[Queue]],
    value_of: Callable[[Queue], int],
    search: QueueSearch,
) -> list[Place]:
    """`pick` leaves out queues that are certainly after the place with this value and name."""
    sign, text, count = search.sign, search.text, search.count
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
