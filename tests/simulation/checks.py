"""The invariants, judged on what the disks hold and what clients saw. Every broken one is one line of text.

    I1   what was receipted is in every node's log, and was told to every subscriber or worked on by a consumer
    I2   nothing is in a log or was told that nobody sent, and bodies come out as they went in
    I3   of one incarnation, one node's records are a prefix of another's, byte for byte, without a hole
    I4   of one incarnation, each publisher's messages stand in the order in which it sent them
    I5   a fanout subscriber that resumes by vector is told exactly what the logs hold, once

A receipt says that the message is on one disk. So what only a wiped disk had is excused: `Excuses` is told in the
instant of the wipe, and knows then what every other disk has.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qmq.dots import Dot, Origin, Vector, merge
from qmq.storage.batch import BatchHead, batch_records
from qmq.storage.record import Kind
from tests.simulation.clients import FANOUTS
from tests.simulation.cluster import Member
from tests.simulation.ledger import Ledger, id_of

READ_BYTES = 1 << 20

TOPICS_SECONDS = 1.0
"""From here on every listener's interest has reached every node of a healthy mesh."""


@dataclass(slots=True)
class Excuses:
    """What was on a wiped disk and on no other."""

    dots: set[Dot] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)

    def wiped(self, member: Member, members: Iterable[Member]) -> None:
        """To be called just before the disk of `member` is wiped."""
        elsewhere: Vector = {}
        for other in members:
            if other is not member:
                merge(elsewhere, other.vector())
        for head, batch in batches_of(member):
            known = elsewhere.get(head.origin, 0)
            if head.last <= known:
                continue
            for record in batch_records(batch):
                if record.sequence > known:
                    self.dots.add(Dot(head.origin, record.sequence))
                    if record.kind == Kind.PUBLISH:
                        self.ids.add(id_of(record.body))


@dataclass(frozen=True, slots=True)
class Published:
    """A PUBLISH record of some journal."""

    id: str
    destination: str
    body: bytes


Log = dict[Origin, list[tuple[BatchHead, bytes]]]
"""What the journal of one node keeps, by origin, in order."""


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


def log_of(member: Member) -> Log:
    log: Log = {}
    for head, data in batches_of(member):
        log.setdefault(head.origin, []).append((head, data))
    return log


def holes(name: str, log: Log, vector: Vector) -> list[str]:
    """I3, inside one journal: what is kept has no hole and ends where the vector says."""
    wrong: list[str] = []
    for origin, batches in log.items():
        for (before, _), (after, _) in zip(batches, batches[1:], strict=False):
            if after.first != before.last + 1:
                wrong.append(f"I3 hole: {name} has {origin} up to {before.last} and then from {after.first}")
        if vector.get(origin, 0) != batches[-1][0].last:
            wrong.append(f"I3 vector: {name} says {vector.get(origin, 0)} of {origin} and has {batches[-1][0].last}")
    return wrong


def differences(logs: Mapping[str, Log]) -> list[str]:
    """I3, between journals: where two keep the same batch it is the same to the byte."""
    wrong: list[str] = []
    known: dict[tuple[Origin, int], tuple[str, bytes]] = {}
    for name, log in logs.items():
        for origin, batches in log.items():
            for head, data in batches:
                other, there = known.setdefault((origin, head.first), (name, data))
                if there != data:
                    wrong.append(f"I3 divergence: {origin} from {head.first} differs between {other} and {name}")
    return wrong


def published(logs: Iterable[Log]) -> dict[Dot, Published]:
    """Every PUBLISH record that any journal keeps."""
    found: dict[Dot, Published] = {}
    done: set[tuple[Origin, int]] = set()
    for log in logs:
        for origin, batches in log.items():
            for head, data in batches:
                if (origin, head.first) in done:
                    continue
                done.add((origin, head.first))
                for record in batch_records(data):
                    if record.kind == Kind.PUBLISH:
                        dot = Dot(origin, record.sequence)
                        found[dot] = Published(id_of(record.body), record.destination, record.body)
    return found


def inventions(records: Mapping[Dot, Published], ledger: Ledger) -> list[str]:
    """I2 and I4 in the logs."""
    wrong: list[str] = []
    where: dict[str, Dot] = {}
    last: dict[tuple[Origin, str], int] = {}
    for dot in sorted(records):
        record = records[dot]
        sent = ledger.sent.get(record.id)
        if sent is None or sent.body != record.body or sent.destination != record.destination:
            wrong.append(f"I2 log: {dot} holds {record.id} as nobody sent it")
            continue
        if record.id in where:
            wrong.append(f"I2 twice: {record.id} is both {where[record.id]} and {dot}")
        where[record.id] = dot
        line = (dot.origin, sent.publisher)
        if sent.number <= last.get(line, 0):
            wrong.append(f"I4 log: {dot} is {record.id}, after number {last[line]} of the same publisher")
        last[line] = sent.number
    return wrong


def fanout_logs(member: Member) -> dict[str, list[tuple[Dot, str]]]:
    """What a late subscriber would read at this node, by destination."""
    found: dict[str, list[tuple[Dot, str]]] = {}
    store = member.store
    assert store is not None
    for destination in FANOUTS:
        rows: list[tuple[Dot, str]] = []
        position = store.fanout_start(destination)
        at_end = False
        while not at_end:
            read, position, at_end = store.read_fanout(destination, position, READ_BYTES)
            rows += [(Dot(origin, record.sequence), id_of(record.body)) for origin, record in read]
        found[destination] = rows
    return found


def lost_in_logs(name: str, logs: Mapping[str, list[tuple[Dot, str]]], ledger: Ledger, excuses: Excuses) -> list[str]:
    """I1, I2 and I4 for the fanout logs of one node."""
    wrong: list[str] = []
    for destination, rows in logs.items():
        ids = {message_id for _, message_id in rows}
        if len(ids) != len(rows):
            wrong.append(f"I5 log: {name} holds a message of {destination} twice")
        last: Vector = {}
        for dot, message_id in rows:
            if dot.sequence <= last.get(dot.origin, 0):
                wrong.append(f"I4 fanout: {name} has {dot} after {last[dot.origin]} in {destination}")
            last[dot.origin] = dot.sequence
            if message_id not in ledger.sent:
                wrong.append(f"I2 fanout: {name} holds {message_id}, which nobody sent")
        for message in ledger.receipted:
            if message.destination == destination and message.id not in ids and message.id not in excuses.ids:
                wrong.append(f"I1 log: {message.id}, receipted by {message.receipted_by}, is not in the log of {name}")
    return wrong


def streams_against(logs: Mapping[str, list[tuple[Dot, str]]], ledger: Ledger, excuses: Excuses) -> list[str]:
    """I1 and I5: every subscriber was told exactly the log of its fanout."""
    wrong: list[str] = []
    for stream in ledger.streams:
        kept = dict(logs[stream.destination])
        for dot, message_id in kept.items():
            if dot not in stream.seen and dot not in excuses.dots:
                sent = ledger.sent.get(message_id)
                outcome = "receipted" if sent is not None and sent.receipted_by else "unknown"
                wrong.append(f"I1 subscriber: {stream.subscriber} was never told {dot} ({message_id}, {outcome})")
        for dot, message_id in stream.seen.items():
            if dot not in kept and dot not in excuses.dots:
                wrong.append(f"I5 ghost: {stream.subscriber} was told {dot} ({message_id}), which no log holds")
    return wrong


def lost_from_queues(ledger: Ledger, excuses: Excuses) -> list[str]:
    """I1: what was receipted was worked on at least once. To be asked when the queues have run dry."""
    return [
        f"I1 queue: {message.id}, receipted by {message.receipted_by}, reached no consumer of {message.destination}"
        for message in ledger.receipted
        if message.destination.startswith("/queue/")
        and message.id not in ledger.consumed
        and message.id not in excuses.ids
    ]


def unseen_topics(ledger: Ledger) -> list[str]:
    """Without faults, and only then, a topic message reaches whoever was there when it was sent."""
    return [
        f"topic lost without a fault: {name} never got {message.id}"
        for name, seen in ledger.listeners.items()
        for message in ledger.receipted
        if message.destination.startswith("/topic/") and message.at >= TOPICS_SECONDS and message.id not in seen
    ]


def torn_transactions(records: Mapping[Dot, Published], ledger: Ledger, excuses: Excuses) -> list[str]:
    """What was sent in one transaction is in the logs as a whole or not at all. Only for journals that keep all."""
    logged = {record.id for record in records.values()}
    whole: dict[tuple[str, int], list[str]] = {}
    for message in ledger.sent.values():
        if message.transaction and not message.destination.startswith("/topic/") and message.id not in excuses.ids:
            whole.setdefault((message.publisher, message.transaction), []).append(message.id)
    return [
        f"torn transaction: of {ids} only {sorted(logged.intersection(ids))} are in the logs"
        for ids in whole.values()
        if 0 < len(logged.intersection(ids)) < len(ids)
    ]
