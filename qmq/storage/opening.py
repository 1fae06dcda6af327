"""Recovery of a data directory: check its identity, recover the journal, bring the stores up to it.

`recover` returns the parts of which `Store` is made, and what it found. The caller locks the disk, opens the databases
and closes them when recovery fails.

Surprising: recovery carries the journal into the stores, as a checkpoint does. Only when the disk is full does it keep
the remainder in memory, in `Recovered.messages` and `Recovered.settled`.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

from qmq.definitions.table import DefinitionTable
from qmq.errors import DiskFull, StorageError
from qmq.model.cursors import Cursor, Name
from qmq.model.deletions import Deletion, Deletions
from qmq.model.dots import Dot, Vector, merge
from qmq.model.lost_ranges import LostRanges
from qmq.storage.catalog.facts import LEARNER, QUEUES_IN, UNCHECKED, stable_of
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.checkpoints.checkpoint import Checkpointer
from qmq.storage.checkpoints.compaction import Compaction
from qmq.storage.disk.disk import new_uuid
from qmq.storage.fanouts.open_logs import FanoutLogs
from qmq.storage.format.batch import BATCH_VERSION, GAPS, BatchHead, record_slices
from qmq.storage.format.cursor_record import unpack_move
from qmq.storage.format.definition_record import readable_definition
from qmq.storage.format.delete_record import deletions_of, unpack_delete
from qmq.storage.format.failure_records import unpack_dead
from qmq.storage.format.interfaces import Catalog, CheckpointState, DirectoryIdentity, Disk
from qmq.storage.format.lost_record import lost_of, unpack_lost
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import QueueStore
from qmq.storage.format.record import KIND_OFFSET, Record, RecordKind, unpack_dots, unpack_gap, unpack_record
from qmq.storage.format.settings import StoreSettings
from qmq.storage.format.term_record import StoredTerms, TermNote, is_term, unpack_term
from qmq.storage.log.journal import Journal
from qmq.storage.log.quarantine import Quarantined, load_quarantined
from qmq.storage.log.recovery import recover_journal
from qmq.storage.repair.fanout_logs import SPOOL

FORMAT_VERSION: Final = BATCH_VERSION
_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What recovery found. All of it is durable."""

    identity: DirectoryIdentity
    is_new: bool
    """The directory was empty: this node does not know what it may have promised before."""
    vector: Vector
    messages: list[tuple[Dot, Record]]
    """Unsettled queue messages that this node accepted and that are not in the queue store, in order of acceptance.

    Empty, unless the disk had no room to carry the journal into the stores. Then `settled` may have entries too.
    """
    settled: Mapping[str, Sequence[Dot]]
    """Queue → messages that are in the queue store although they are settled; the next checkpoint deletes them."""
    attempts: Mapping[Dot, int]
    """How often messages have failed, where the queue store does not have the count yet."""
    tombstones: set[Dot]
    """Settled messages that this node has not received yet."""
    torn_bytes: int
    """Bytes cut from the tail: appends that never returned."""
    quarantined: list[Quarantined]
    """Quarantined by this recovery: damage, and later batches of the same origins."""
    quarantined_before: list[Quarantined]
    lost_positions: int
    """More than 0: the log ended before the checkpoint, so the disk lost bytes that it had synced."""
    cursors: dict[Name, Cursor]
    """Durable subscriptions of fanouts, and deleted ones that are still remembered."""
    terms: list[TermNote]
    """Which node serves which owner's queue messages, and this node's votes, as far as they are durable."""
    given_up: Vector
    """Per origin, up to where this node gave up on records that no peer kept."""
    lost: LostRanges
    """Further ranges that no member has."""
    deletions: Deletions
    """Deletions of fanouts. The owner of the store adds later decisions; readers of fanouts skip what is deleted."""
    definitions: DefinitionTable
    """The definitions of the mesh. The owner of the store merges later changes; snapshots for peers read it."""


class Opened(NamedTuple):
    """The parts of a store after recovery."""

    journal: Journal
    recovered: Recovered
    checkpointer: Checkpointer
    logs: FanoutLogs
    lock: threading.RLock


def recover(disk: Disk, catalog: Catalog, queues: QueueStore, node: str, settings: StoreSettings, uuid: str) -> Opened:
    """Recover everything on `disk`. Arguments and errors are those of `Store`."""
    identity = catalog.identity()
    is_new = identity is None
    if identity is None:
        identity = DirectoryIdentity(node, uuid or new_uuid(), FORMAT_VERSION)
        # Before the identity: a directory with an identity and without this fact has not lost what it promised.
        catalog.set_facts({LEARNER: "began empty"})
        catalog.set_identity(identity)
    elif identity.node != node:
        raise StorageError(
            f"this data directory belongs to node {identity.node}, not to {node}: `--node {identity.node}`"
        )
    with suppress(FileNotFoundError):
        disk.remove(SPOOL)
    quarantined_before = load_quarantined(disk)
    # A collected incarnation stays collected, even if a crash interrupted its removal.
    without = Seals.of(catalog.facts()).without
    state = _stripped(catalog.checkpoint(), without)
    base = _stripped(catalog.base(), without)
    journal, found = recover_journal(disk, node, settings, state, base, queues.position(), without)
    has_lost = queues.position() > state.position and bool(found.lost_positions or found.quarantined)
    if queues.position() < journal.start or _is_damaged(journal, queues.position(), state.position):
        _begin_empty(catalog, queues, journal, state)
    if catalog.facts().get(QUEUES_IN) != queues.kind:
        catalog.set_facts({QUEUES_IN: queues.kind})
    if journal.start > state.position:
        # The catalog is new, or older than the log: the stores take what the journal still has.
        state = CheckpointState(journal.start, journal.base())
    lock = threading.RLock()
    logs = FanoutLogs(disk, node, settings, state, catalog.fanouts())
    checkpointer = Checkpointer(
        disk=disk,
        catalog=catalog,
        queues=queues,
        journal=journal,
        logs=logs,
        settings=settings,
        node=node,
        tombstones=queues.tombstones(),
        lock=lock,
        has_lost=has_lost,
    )
    left = None
    try:
        checkpointer.carry()
    except DiskFull:
        left = checkpointer.what_is_left()
    logs.remove_left_over(deletions_of(catalog.facts()).by_name)
    cursors, given_up, lost, terms, deletions, definitions = replay_cursors(journal, catalog, logs.state.position)
    messages, attempts = _unsettled(left, node) if left is not None else ([], {})
    recovered = Recovered(
        identity=identity,
        is_new=is_new,
        vector=journal.vector(),
        messages=messages,
        settled=left.deletes if left is not None else {},
        attempts=attempts,
        tombstones=left.tombstones() if left is not None else checkpointer.stored.tombstones,
        torn_bytes=found.torn_bytes,
        quarantined=found.quarantined,
        quarantined_before=quarantined_before,
        lost_positions=found.lost_positions,
        cursors=cursors,
        terms=terms,
        given_up=given_up,
        lost=lost,
        deletions=deletions,
        definitions=definitions,
    )
    return Opened(journal, recovered, checkpointer, logs, lock)


def _begin_empty(catalog: Catalog, queues: QueueStore, journal: Journal, state: CheckpointState) -> None:
    """Let an older or damaged queue store begin again at the start of the journal.

    A damaged store begins with its intact rows; another has lost its last commits. The journal supplies what it still
    has. Of what came before it, any message may be missing, and rows that are present may be settled.

    Raises StorageError when the store has lost nothing, because the node last used another kind of store.
    """
    ends = queues.position()
    last = catalog.facts().get(QUEUES_IN, queues.kind)
    if ends >= 0 and last != queues.kind:
        raise StorageError(
            f"the queues of this node were in {last} last, and {queues.kind} has nothing newer than position {ends},"
            f" while the journal begins at {journal.start}: set storage.queue_store to what it was"
        )
    catalog.set_facts({UNCHECKED: ""})
    if ends >= 0:
        why = f"begins at {journal.start}" if ends < journal.start else "is damaged behind that"
        queues.damage.lines.append(
            f"the queue store is older than the journal: it ends at position {ends}, and the journal {why}"
        )
    begin, vector = journal.start, journal.base()
    if _is_damaged(journal, begin, state.position):
        # A damaged journal cannot be carried over again. The repair of rows reads its intact parts instead.
        begin, vector = state.position, state.vector
        _carry_settles(catalog, queues, journal, state)
    queues.missing([MissingRange(origin, 0, last) for origin, last in vector.items() if last], begin)


def _carry_settles(catalog: Catalog, queues: QueueStore, journal: Journal, state: CheckpointState) -> None:
    """Store the settles of a damaged journal's intact batches, each with a tombstone if its message may be missing.

    The journal may drop them before a peer is asked for the message, and that peer may not know of the settle.
    """
    have, missing_ends = journal.base(), journal.base()
    for batches in _pages(journal, journal.start, state.position):
        for _, head, _ in batches:
            if head.first > have.get(head.origin, 0) + 1:
                missing_ends[head.origin] = head.first - 1
            have[head.origin] = head.last
    merge(missing_ends, {origin: last for origin, last in state.vector.items() if last > have.get(origin, 0)})
    forgotten = Seals.of(catalog.facts()).forgotten
    for batches in _pages(journal, journal.start, state.position):
        deletes: dict[str, list[Dot]] = {}
        for _, _, data in batches:
            for packed in record_slices(data):
                if packed[KIND_OFFSET] in (RecordKind.SETTLE, RecordKind.DEAD):
                    queue, dots = _settled_by(unpack_record(packed))
                    deletes.setdefault(queue, []).extend(dot for dot in dots if dot.origin not in forgotten)
        tombstones = {
            dot
            for dots in deletes.values()
            for dot in dots
            if not missing_ends.get(dot.origin, 0) < dot.sequence <= state.vector.get(dot.origin, 0)
        }
        queues.apply([], deletes, tombstones, [], queues.position())


def _settled_by(record: Record) -> tuple[str, list[Dot]]:
    """The queue and the messages that a record settles."""
    if record.kind == RecordKind.DEAD:
        queue, dot, _ = unpack_dead(record.body)
        return queue, [dot]
    return record.destination, unpack_dots(record.body)


def _is_damaged(journal: Journal, place: int, end: int) -> bool:
    """Whether the journal is damaged from `place` to `end`. Recovery itself scans only what follows the checkpoint."""
    for _ in _pages(journal, place, end):
        pass
    return any(place <= start < end for start, _ in journal.damage)


def _pages(journal: Journal, place: int, end: int) -> Iterator[list[tuple[int, BatchHead, bytes]]]:
    """The intact batches that begin between `place` and `end`, some at a time."""
    while place < end and (batches := journal.read(place, _READ_BYTES)):
        yield [one for one in batches if one[0] < end]
        place = batches[-1][0] + batches[-1][1].size


def _stripped(state: CheckpointState, without: Callable[[Vector], Vector]) -> CheckpointState:
    return CheckpointState(state.position, without(state.vector))


def _unsettled(left: Compaction, node: str) -> tuple[list[tuple[Dot, Record]], dict[Dot, int]]:
    """What could not be carried into the stores: the messages that `node` accepted, and how often messages failed."""
    messages: list[tuple[Dot, Record]] = []
    attempts: dict[Dot, int] = {}
    for counts in left.attempts.values():
        attempts.update(counts)
    for run in left.runs():
        if run.origin.node == node:
            for sequence, timestamp_us, _, _, headers, body in run.records:
                dot = Dot(run.origin, sequence)
                record = Record(sequence, timestamp_us, RecordKind.PUBLISH, run.flags, run.queue, headers, body)
                messages.append((dot, record))
                if run.attempts:
                    attempts[dot] = run.attempts
    # Runs of one queue may have messages of others between their own.
    messages.sort(key=itemgetter(0))
    return messages, attempts


def replay_cursors(
    journal: Journal, catalog: Catalog, position: int
) -> tuple[dict[Name, Cursor], Vector, LostRanges, list[TermNote], Deletions, DefinitionTable]:
    """The cursors by name, what this node has given up, what is gone, the terms and votes that count, the deletions
    of fanouts, and the definitions, at the end of the journal.

    That is what the catalog has of them, and what the journal says since `position`, its checkpoint. A pass of its own
    over that range: the broker keeps every cursor in memory, while what recovery makes of messages goes into stores.
    Only the records that are looked for are decoded.
    """
    cursors = catalog.cursors()
    given_up = catalog.given_up()
    facts = catalog.facts()
    lost = lost_of(facts)
    deletions = deletions_of(facts)
    terms = StoredTerms.of(catalog.terms())
    definitions = DefinitionTable(catalog.definitions(), stable_of(facts))
    while batches := journal.read(position, _READ_BYTES):
        for start, head, data in batches:
            position = start + head.size
            own_gaps = head.attributes & GAPS and head.origin.node == journal.node
            for packed in record_slices(data):
                kind = packed[KIND_OFFSET]
                if kind == RecordKind.CURSOR:
                    record = unpack_record(packed)
                    move = unpack_move(record.destination, record.body)
                    cursors.setdefault(move.name, Cursor(move.name)).apply(move)
                elif kind == RecordKind.GAP and own_gaps:
                    origin, through = unpack_gap(unpack_record(packed).body)
                    merge(given_up, {origin: through})
                elif kind == RecordKind.GONE and head.origin.node == journal.node:
                    span = unpack_lost(unpack_record(packed).body)
                    lost.add(span.origin, span.last)
                elif kind == RecordKind.DELETE:
                    record = unpack_record(packed)
                    dot = Dot(head.origin, record.sequence)
                    deletions.add(Deletion(record.destination, dot, record.timestamp_us, unpack_delete(record.body)))
                elif kind == RecordKind.DEFINITION:
                    change = readable_definition(unpack_record(packed).body)
                    if change is not None:
                        definitions.merge(change)
                elif is_term(kind, head.origin.node, journal.node):
                    terms.take(unpack_term(kind, unpack_record(packed).body))
    return cursors, given_up, lost, list(terms.values()), deletions, definitions
