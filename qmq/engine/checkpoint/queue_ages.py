"""How old the oldest message of each queue is that waits or is in flight, by the time when its node accepted it.

In memory these are the first of each level, and those in flight. What is only in the queue store is found by its
index, page by page: the first rows may be settled and still be there until the next checkpoint. Nothing is loaded.

Surprising: the first of a level is not always its oldest. A message that was delayed is behind what came meanwhile, and
one with an exact number is behind all lower ones. To look at every message would take too long.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from qmq.broker.broker import Broker
from qmq.broker.messages.message import Message
from qmq.broker.queues.dispatch.queue import Queue
from qmq.environment import Environment
from qmq.model.dots import Dot
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.queues.served_rows import ServedRows

ROUNDS_MAX: Final = 10
"""Pages of one queue, each of twice as many rows as the one before. After the last the age is at least what it says."""


class BacklogSearch(NamedTuple):
    """Rows of `queue` with this priority behind `after`; None: of every priority, and from the first on."""

    queue: str
    priority: int | None
    after: Dot | None
    exact: int = 0


async def oldest_ages_us(
    broker: Broker, environment: Environment, rows: ServedRows, names: Sequence[str], *, only_waiting: bool = False
) -> dict[str, int]:
    """Queue → age of its oldest message, for those of `names` that have one.

    With `only_waiting` what consumers have, here or on peers, is left out: there may be a million of these messages,
    and they are in no order.
    """
    now_us = environment.now_us()
    found: dict[str, int] = {}
    searches: list[BacklogSearch] = []
    in_memory: dict[str, list[Message]] = {}
    for by_dot in () if only_waiting else broker.queues.owned.lent.values():
        for message in by_dot.values():
            in_memory.setdefault(message.envelope.destination, []).append(message)
    for name in names:
        queue = broker.queues.by_name.get(name)
        if queue is None or not queue.is_counted:
            searches.append(BacklogSearch(name, None, None))
        else:
            searches += [
                BacklogSearch(name, level.priority, level.after, level.after_exact)
                for level in queue.levels
                if level.behind
            ]
        if queue is not None:
            in_memory.setdefault(name, []).extend(_first_waiting(queue))
            if not only_waiting:
                in_memory[name] += _in_flight(queue)
        for message in in_memory.get(name, ()):
            _note(broker, found, name, message.origin.node, message.timestamp_us)
    limit = 1
    for _ in range(ROUNDS_MAX):
        if not searches:
            break
        pages = await environment.run_blocking(_read, rows, searches, now_us, limit)
        searches = []
        for search, page in pages:
            left = next((row for row in page if _is_only_stored(broker, row)), None)
            if left is not None:
                _note(broker, found, search.queue, left.dot.origin.node, left.timestamp_us)
            elif len(page) == limit:
                searches.append(search._replace(after=page[-1].dot, exact=page[-1].exact))
        limit *= 2
    return {name: max(0, now_us - accepted_us) for name, accepted_us in found.items()}


def _first_waiting(queue: Queue) -> Iterable[Message]:
    """The first message that waits in each part of the queue and is not settled."""
    for level in queue.levels:
        for line in (level.ready, level.tail or ()):
            waiting = next((message for message in line if not message.settled), None)
            if waiting is not None:
                yield waiting


def _in_flight(queue: Queue) -> Iterable[Message]:
    """All own messages that consumers here have, and that are not settled."""
    for delivery in queue.in_flight():
        if delivery.message.owner is None and not delivery.message.settled:
            yield delivery.message


def _note(broker: Broker, found: dict[str, int], queue: str, node: str, timestamp_us: int) -> None:
    """A message that `node` has accepted then, by its clock."""
    accepted_us = timestamp_us + (broker.clocks.apart_us(node) or 0)
    found[queue] = min(found.get(queue, accepted_us), accepted_us)


def _read(
    rows: ServedRows, searches: list[BacklogSearch], now_us: int, limit: int
) -> list[tuple[BacklogSearch, list[QueueRow]]]:
    anywhere = [search.queue for search in searches if search.priority is None]
    heads = rows.heads(anywhere, now_us) if anywhere else {}
    wanted: list[BacklogSearch] = []
    for search in searches:
        if search.priority is not None:
            wanted.append(search)
        elif search.queue in heads:
            wanted += [search._replace(priority=priority) for priority in heads[search.queue].priorities]
    return [(one, rows.page(one.queue, one.priority or 0, one.after, now_us, limit, one.exact)) for one in wanted]


def _is_only_stored(broker: Broker, row: QueueRow) -> bool:
    """Whether the message of the row is not settled, and not in memory, where it was looked at already."""
    queues = broker.queues
    if row.dot.sequence in queues.owned.by_origin.get(row.dot.origin, {}):
        return False
    return not queues.paging.is_settled(row.queue, row.dot)
