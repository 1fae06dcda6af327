"""The rows of the queue store that one node serves: its own, and those of nodes whose messages it has taken over.

The store keeps rows by the node that accepted them, and reads rows of one node at a time; this joins the results for
several nodes. Pages go through the nodes by name. Blocking, like the store itself.

Times in rows are those of the clock of the node that accepted them; times here are those of this node's clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from qmq.model.dots import Dot
from qmq.storage.format.queue_store import ANY_BYTES, QueueHead, QueueRow, QueueStore
from qmq.storage.queues.plan import NO_HEAD, expired_within, is_page_full, rows_within, sum_of

SAME_CLOCKS: Final[Mapping[str, int]] = MappingProxyType({})


class ServedRows:
    """The reads of a `QueueStore`, for all of `nodes`.

    `ahead_us`: by how much this node's clock is ahead of that of another node, if they differ.
    """

    def __init__(self, queues: QueueStore, nodes: Iterable[str], ahead_us: Mapping[str, int] = SAME_CLOCKS) -> None:
        self._queues = queues
        self.nodes = sorted(nodes)
        self._ahead_us = ahead_us

    def _ahead(self, node: str) -> int:
        return self._ahead_us.get(node, 0)

    def heads(self, queues: Sequence[str], now_us: int) -> dict[str, QueueHead]:
        """See `QueueStore.heads`."""
        found: dict[str, QueueHead] = {}
        for node in self.nodes:
            ahead_us = self._ahead(node)
            for queue, head in self._queues.heads(node, queues, now_us - ahead_us).items():
                if ahead_us and head.next_due_us:
                    head = head._replace(next_due_us=head.next_due_us + ahead_us)
                found[queue] = sum_of(found.get(queue, NO_HEAD), head)
        return found

    def page(
        self,
        queue: str,
        priority: int,
        after: Dot | None,
        now_us: int,
        limit: int,
        exact: int = 0,
        bytes_max: int = ANY_BYTES,
    ) -> list[QueueRow]:
        """See `QueueStore.page`; what comes after a row of a node that is served no more is of the nodes after it."""
        rows: list[QueueRow] = []
        if priority < 0:
            return self._exact_page(queue, priority, after, now_us, limit, exact, bytes_max)
        for node in self.nodes:
            if after is not None and node < after.origin.node:
                continue
            begin = after if after is not None and node == after.origin.node else None
            theirs_us = now_us - self._ahead(node)
            found = self._queues.page(node, queue, priority, begin, theirs_us, limit - len(rows), 0, bytes_max)
            rows = rows_within(rows + found, limit, bytes_max)
            if is_page_full(rows, limit, bytes_max):
                break
        return rows

    def _exact_page(
        self, queue: str, level: int, after: Dot | None, now_us: int, limit: int, exact: int, bytes_max: int
    ) -> list[QueueRow]:
        rows: list[QueueRow] = []
        for node in self.nodes:
            begin = after if after is not None and node == after.origin.node else None
            # Of this number, a node before that of `after` has no more rows.
            first = exact + 1 if after is not None and node < after.origin.node else exact
            theirs_us = now_us - self._ahead(node)
            rows += self._queues.page(node, queue, level, begin, theirs_us, limit, first, bytes_max)
            rows = rows_within(sorted(rows, key=attrgetter("exact")), limit, bytes_max)
        return rows

    def due(self, queue: str, after_us: int, until_us: int, limit: int) -> list[QueueRow]:
        """See `QueueStore.due`."""
        rows: list[QueueRow] = []
        for node in self.nodes:
            ahead_us = self._ahead(node)
            rows += self._queues.due(node, queue, after_us - ahead_us, until_us - ahead_us, limit)
            # Cut each time: never more than two pages are held, however many nodes there are.
            rows = sorted(rows, key=lambda row: row.due_us + self._ahead(row.dot.origin.node))[:limit]
        return rows

    def expired(self, until_us: int, limit: int, bytes_max: int) -> list[QueueRow]:
        """See `QueueStore.expired`."""
        rows: list[QueueRow] = []
        for node in self.nodes:
            # Cut each time: never more than twice `bytes_max` is held, however many nodes there are.
            found = self._queues.expired(node, until_us - self._ahead(node), limit, bytes_max)
            rows = expired_within(rows + found, limit, bytes_max, self.expires_at)
        return rows

    def expires_at(self, row: QueueRow) -> int:
        """When a row expires by our clock."""
        return row.expires_us + self._ahead(row.dot.origin.node)

    def listing(self, after: str | None, limit: int) -> list[tuple[str, int, int]]:
        """See `QueueStore.listing`."""
        found: dict[str, tuple[int, int]] = {}
        ends: list[str] = []
        for node in self.nodes:
            rows = self._queues.listing(node, after, limit)
            if len(rows) == limit:
                ends.append(rows[-1][0])  # Beyond it this node's rows are not known.
            for queue, messages, body_bytes in rows:
                known = found.get(queue, (0, 0))
                found[queue] = (known[0] + messages, known[1] + body_bytes)
        names = sorted(name for name in found if not ends or name <= min(ends))
        return [(name, *found[name]) for name in names[:limit]]

    def deepest(self, limit: int) -> dict[str, tuple[int, int]]:
        """Queue → messages and bytes of bodies, for up to `limit` of the deepest queues of each node."""
        names = {name: None for node in self.nodes for name in self._queues.deepest(node, limit)}
        return {queue: (head.messages, head.body_bytes) for queue, head in self.heads(list(names), 0).items()}

    def total(self) -> int:
        """How many rows there are."""
        return sum([self._queues.total(node) for node in self.nodes])

    def is_empty(self) -> bool:
        """Whether there is no row at all."""
        return all(self._queues.is_empty(node) for node in self.nodes)
