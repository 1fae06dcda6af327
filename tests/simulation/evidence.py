"""What the checks look at: everything that the disks of the nodes hold, and what is excused from being there.

Read from the stores of the nodes' present or last lives, with the product's own readers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import trio

from qmq.broker.rules import DEAD_LETTERS
from qmq.dots import Dot, Origin, Vector, merge
from qmq.storage.batch import BatchHead, batch_records
from qmq.storage.record import Kind
from tests.simulation.cluster import Member
from tests.simulation.ledger import Sent, id_of

READ_BYTES = 1 << 20
FAR_US = 1 << 60

Log = dict[Origin, list[tuple[BatchHead, bytes]]]
"""What the journal of one node keeps, by origin, in order."""

Rows = Mapping[str, list[tuple[Dot, str]]]
"""Fanout → what one node's log of it holds, in order: dots and message ids."""


@dataclass(slots=True)
class Excuses:
    """What was on a disk that is gone and on no other."""

    dots: set[Dot] = field(default_factory=set)
    ids: dict[str, float] = field(default_factory=dict)
    """Message → when it was lost, in virtual seconds; the last of its attempts that was, where it was sent again."""
    losses: list[float] = field(default_factory=list)
    """When a disk was lost."""

    def losses_of(self, message: Sent) -> int:
        """How many disks were lost between the sending of a message and its own loss."""
        return sum(message.at <= at <= self.ids[message.id] for at in self.losses)

    def losing(self, member: Member, members: Iterable[Member]) -> None:
        """To be called just before `member` loses what is on its disk."""
        self.losses.append(trio.current_time())
        elsewhere: Vector = {}
        for other in members:
            if other is not member:
                merge(elsewhere, other.vector())
        forgotten = {origin for other in members for origin in other.forgotten()}
        for head, batch in batches_of(member):
            if head.origin in forgotten:
                continue  # all had it, or it could not have been forgotten anywhere
            known = elsewhere.get(head.origin, 0)
            if head.last <= known:
                continue
            for record in batch_records(batch):
                if record.sequence > known:
                    self.dots.add(Dot(head.origin, record.sequence))
                    if record.kind == Kind.PUBLISH:
                        self.ids[id_of(record.body)] = trio.current_time()
        # What has left its journal is in its stores, and where journals are short perhaps nowhere else.
        for dot, message_id in stored(member, [other.name for other in (*members, member)]):
            if dot.origin not in forgotten and dot.sequence > elsewhere.get(dot.origin, 0):
                self.dots.add(dot)
                self.ids[message_id] = trio.current_time()


@dataclass(frozen=True, slots=True)
class Published:
    """A PUBLISH record of some journal."""

    id: str
    destination: str
    body: bytes


def batches_of(member: Member) -> list[tuple[BatchHead, bytes]]:
    """Everything that a journal keeps."""
    if member.store is None:
        return []
    journal = member.store.journal
    position = journal.start
    found: list[tuple[BatchHead, bytes]] = []
    while read := journal.read(position, READ_BYTES):
        for start, head, data in read:
            found.append((head, bytes(data)))
            position = start + head.size
    return found


def stored(member: Member, nodes: Iterable[str]) -> Iterator[tuple[Dot, str]]:
    """Messages in the fanout logs and the queue store of `member`, of whichever of `nodes`."""
    store = member.store
    if store is None:
        return
    for rows in fanout_logs(member, store.fanouts()).values():
        yield from rows
    for node in set(nodes):
        for queue, count, _ in store.queues.listing(node, None, 1000):
            head = store.queues.heads(node, [queue], FAR_US).get(queue)
            for priority in () if head is None else head.priorities:
                for row in store.queues.page(node, queue, priority, None, FAR_US, count):
                    yield row.dot, id_of(row.body)


def log_of(member: Member) -> Log:
    log: Log = {}
    for head, data in batches_of(member):
        log.setdefault(head.origin, []).append((head, data))
    return log


def published(logs: Iterable[Log]) -> dict[Dot, Published]:
    """Every PUBLISH record that any journal keeps, but those of dead letters, which nodes write themselves."""
    found: dict[Dot, Published] = {}
    done: set[tuple[Origin, int]] = set()
    for log in logs:
        for origin, batches in log.items():
            for head, data in batches:
                if (origin, head.first) in done:
                    continue
                done.add((origin, head.first))
                for record in batch_records(data):
                    if record.kind == Kind.PUBLISH and record.destination != DEAD_LETTERS:
                        dot = Dot(origin, record.sequence)
                        found[dot] = Published(id_of(record.body), record.destination, record.body)
    return found


def fanout_logs(member: Member, destinations: Iterable[str]) -> dict[str, list[tuple[Dot, str]]]:
    """What a late subscriber would read at this node, by destination."""
    found: dict[str, list[tuple[Dot, str]]] = {}
    store = member.store
    assert store is not None
    for destination in destinations:
        rows: list[tuple[Dot, str]] = []
        position = store.fanout_start(destination)
        at_end = False
        while not at_end:
            read, position, at_end = store.read_fanout(destination, position, READ_BYTES)
            rows += [(Dot(origin, record.sequence), id_of(record.body)) for origin, record in read]
        found[destination] = rows
    return found
