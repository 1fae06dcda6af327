"""What the checks read: everything that is on the disks of the nodes, and the losses that are allowed.

The stores are those of each node's present or last run, and the product's own readers read them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from qmq.broker.messages.rules import DEAD_LETTERS
from qmq.model.dots import Dot, Origin
from qmq.storage.format.batch import BATCH_MAGIC, BatchHead, batch_records, claimed_end, read_head
from qmq.storage.format.record import RecordKind
from qmq.storage.format.segment import scan
from tests.simulation.cluster import Member
from tests.simulation.ledger import Sent, id_of

READ_BYTES = 1 << 20
FAR_US = 1 << 60

Log = dict[Origin, list[tuple[BatchHead, bytes]]]
"""What the journal of one node keeps, by origin, in order."""

Rows = Mapping[str, list[tuple[Dot, str]]]
"""Fanout → what one node's log of it holds, in order: dots and message ids."""


Held = dict[Dot, str]
"""What is on one disk: records, each with the id of the message that it publishes, or "" when it is of another kind."""


@dataclass(frozen=True, slots=True)
class Loss:
    """In one instant, what was on the disk of `node`, or in its memory if that is all it has, and is not any more."""

    node: str
    dots: frozenset[Dot]
    was_on_disk: bool


@dataclass(slots=True)
class AllowedLosses:
    """Exactly the records that were on lost disks and on no other disk."""

    dots: set[Dot] = field(default_factory=set)
    ids: dict[str, Dot] = field(default_factory=dict)
    """Message → the record of it that was lost; of one that was sent again, the last that was."""
    losses: list[Loss] = field(default_factory=list)
    hidden: list[tuple[Member, Held]] = field(default_factory=list)
    """What only one disk has, and only in the journal: no reader has met the damage in its stores yet."""

    @property
    def nodes(self) -> set[str]:
        """The nodes that lost anything."""
        return {loss.node for loss in self.losses}

    def disks_of(self, message: Sent) -> int:
        """How many nodes had a lost message on their disk, and lost it. A node without a disk is no copy."""
        dot = self.ids[message.id]
        return len({loss.node for loss in self.losses if loss.was_on_disk and dot in loss.dots})

    def lost(self, member: Member, members: Iterable[Member], records: Held) -> None:
        """Call this in the instant in which `member` has lost `records` from its disk."""
        self._lose(member, nowhere_else(member, members, records), records)

    def hide(self, member: Member, members: Iterable[Member], records: Held) -> None:
        """Call this in the instant in which the stores of `member` have lost `records`, and its journal still has
        them."""
        self.hidden.append((member, nowhere_else(member, members, records)))

    def look(self) -> None:
        """Move records that were hidden and are lost by now."""
        still: list[tuple[Member, Held]] = []
        for member, records in self.hidden:
            if not member.up:
                still.append((member, records))  # for good, if it has left the mesh
                continue
            kept = {dot for _, batch in batches_of(member) for dot, _ in records_of(batch)}
            dropped = {dot: message_id for dot, message_id in records.items() if dot not in kept}
            if dropped:
                self._lose(member, dropped, dropped)
            if len(dropped) < len(records):
                still.append((member, {dot: message_id for dot, message_id in records.items() if dot in kept}))
        self.hidden = still

    def _lose(self, member: Member, only: Held, records: Held) -> None:
        self.losses.append(Loss(member.name, frozenset(records), not member.is_forgetful))
        self.dots |= only.keys()
        self.ids.update({message_id: dot for dot, message_id in only.items() if message_id})


def nowhere_else(member: Member, members: Iterable[Member], records: Held) -> Held:
    """Those of `records` that no other member has, or once had and let go for good."""
    others = [(other.vector(), other.gone) for other in members if other is not member]
    forgotten = {origin for other in members for origin in other.forgotten()}
    return {
        dot: message_id
        for dot, message_id in records.items()
        # What is forgotten all had, or it could not have been forgotten anywhere.
        if dot.origin not in forgotten
        and not any(dot.sequence <= vector.get(dot.origin, 0) and dot not in gone for vector, gone in others)
    }


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


def held_by(member: Member, members: Iterable[Member]) -> Held:
    """What the disk of a node has that is up: its journal, and its stores, where records are that have left it."""
    held = dict(stored(member, [other.name for other in (*members, member)]))
    for _, batch in batches_of(member):
        held.update(records_of(batch))
    return held


def records_of(batch: bytes) -> Iterator[tuple[Dot, str]]:
    """The records of a batch, as `Held` wants them."""
    head = read_head(batch)
    assert head is not None
    for record in batch_records(batch):
        yield Dot(head.origin, record.sequence), id_of(record.body) if record.kind == RecordKind.PUBLISH else ""


def destroyed(batches: Iterable[bytes], before: bytes, after: bytes) -> Held:
    """What no reader finds any more where it stood in a file, of `batches` that may stand in others.

    That is what has changed in a byte, and what a damaged batch says it reaches over: bodies may look like batches, so
    nothing inside one may count, and a write that went astray may have put the head of a long one before short ones.
    It may also have put a copy elsewhere; what is found of that is luck.
    """
    claimed: list[tuple[int, int]] = []
    first = before.find(BATCH_MAGIC)
    for found in scan(after[first:]):
        if found.head is None:
            claimed.append((first + found.start, first + claimed_end(after[first:], found.start)))

    def is_gone(batch: bytes) -> bool:
        place = before.find(batch)
        while place >= 0:
            if after[place : place + len(batch)] != batch or any(start <= place < end for start, end in claimed):
                return True
            place = before.find(batch, place + 1)
        return False

    return {dot: message_id for batch in batches if is_gone(batch) for dot, message_id in records_of(batch)}


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
                    if record.kind == RecordKind.PUBLISH and record.destination != DEAD_LETTERS:
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
            read, position, at_end = store.fanout_page(destination, position, READ_BYTES)[:3]
            rows += [(Dot(origin, record.sequence), id_of(record.body)) for origin, record in read]
        found[destination] = rows
    return found
