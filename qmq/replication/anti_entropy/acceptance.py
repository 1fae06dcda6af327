"""Which replicated batches this node takes: the one rule that keeps every journal of the mesh right.

    last <= have         a relay repeated it                 drop, silently
    first == have + 1    it continues what is here           take
    anything else        a hole: something went missing      the link begins again from our vector

`have` is what was decided for the batch's origin, from any sender, so loops and repeats end here without hop counts.
A batch is judged whole before anything of it is applied: checksum, structure, record types, an origin that the peers
file names, and none that claims to be this very incarnation. Pure.
"""

import struct
from collections.abc import Collection
from typing import Final

import msgpack

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind as Destination
from qmq.errors import CorruptLog, FutureVersion, MeshError
from qmq.model.dots import Origin, Vector, merge
from qmq.record_codec import Replay
from qmq.replication.protocol import values
from qmq.storage.catalog.incarnations import unpack_seals
from qmq.storage.format.batch import GAPS, MEMORY, SPARSE, BatchHead, batch_records, read_head, verify_batch
from qmq.storage.format.cursor_record import unpack_move
from qmq.storage.format.definition_record import unpack_definition
from qmq.storage.format.delete_record import unpack_delete
from qmq.storage.format.failure_records import unpack_attempts, unpack_dead
from qmq.storage.format.forgotten_record import unpack_forgotten
from qmq.storage.format.lost_record import unpack_lost
from qmq.storage.format.record import SCANT_BYTES, Record, RecordKind, unpack
from qmq.storage.format.term_record import unpack_term
from qmq.storage.repair.range_snapshot import RangeSnapshot, snapshot_batch

CHECKED: Final = frozenset(
    {RecordKind.PUBLISH, RecordKind.SETTLE, RecordKind.DEAD, RecordKind.ATTEMPTS, RecordKind.CURSOR, RecordKind.DELETE}
)
"""Kinds of which this node obeys every record."""

FACTS: Final = frozenset(
    {
        RecordKind.TERM,
        RecordKind.VOTE,
        RecordKind.SEAL,
        RecordKind.GONE,
        RecordKind.DEFINITION,
        RecordKind.FORGOTTEN,
    }
)
"""Kinds whose content is in the body only."""

KEPT: Final = frozenset({RecordKind.PUBLISH, RecordKind.DELETE, RecordKind.DEFINITION})
"""Kinds of records that can be left of a range; the last record of its snapshot may be of another kind."""

COUNTED: Final = (CHECKED | FACTS) - {RecordKind.PUBLISH, RecordKind.DEAD, RecordKind.SETTLE}
"""Kinds whose body another module unpacks; this one checks the unpacked size first."""

ELEMENTS_MAX: Final = 1_000_000
"""Of all arrays and maps in the body of one record; of that many dots is a SETTLE of some hours."""

NOT_HERE: Final = "gap"
"""Code of the MeshError that only means: subscribe again. It needs no condition."""


class Acceptance:
    """Decides on batches for the node whose incarnation is `own`.

    `members` are the names that a peers file of the mesh has, or had before the node was retired.
    """

    def __init__(self, own: Origin, members: frozenset[str], replay: Replay) -> None:
        self._own = own
        self.members = members
        self._replay = replay
        self.forgotten: Collection[Origin] = ()
        """Dead incarnations without any record left: what a peer still sends of them is known."""

    def take(self, body: bytes, have: Vector, out: Outcome) -> Vector:
        """Take what is new of a Batches frame, raise `have`, add the effects to `out`.

        Returns the origins that grew. Raises MeshError at the first batch that must not be taken; those before it
        are accepted and are in `out`.
        """
        grown: Vector = {}
        offset = 0
        while offset < len(body):
            head = _head_at(body, offset)
            batch = body[offset : offset + head.size]
            offset += head.size
            if self._is_new(head, have):
                self._apply(batch, have, out)
                grown[head.origin] = head.last
        return grown

    def take_snapshot(self, origin: Origin, after: int, snapshot: RangeSnapshot, have: Vector, out: Outcome) -> None:
        """Take what a peer's stores still hold of `origin` after `after`, unless this node has more already.

        Raises MeshError if it cannot be that range; nothing was taken then.
        """
        if origin.node not in self.members or origin == self._own:
            raise MeshError("forged-origin", f"the snapshot of {origin} cannot come from a peer")
        if have.get(origin, 0) != after:
            return
        try:
            batch = snapshot_batch(origin, after, snapshot)
            head = verify_batch(batch)
            records = batch_records(batch)
        except (CorruptLog, ValueError, TypeError, struct.error) as error:
            raise MeshError("bad-batch", f"the snapshot of {origin}: {error}") from error
        for record in records:
            if record.kind not in KEPT and record is not records[-1]:
                raise MeshError("bad-batch", f"the snapshot of {origin} has a record of kind {record.kind}")
            _check_record(record, head)
        have[origin] = head.last
        self._replay.accept(origin, records, have, out)
        out.batches.append((origin, head.last, batch))

    def check_gap(self, origin: Origin, through: int, have: Vector) -> bool:
        """Whether a peer's report that records will never come is new. Raises MeshError if it cannot be true."""
        if origin.node not in self.members:
            raise MeshError("unknown-origin", f"a gap of {origin}, whose node is not in the peers file")
        if origin == self._own:
            raise MeshError("forged-origin", f"a peer claims to know about records of {origin} better than itself")
        return through > have.get(origin, 0) and origin not in self.forgotten

    def _is_new(self, head: BatchHead, have: Vector) -> bool:
        origin = head.origin
        known = have.get(origin, 0)
        if head.last <= known or origin in self.forgotten:
            return False
        if origin.node not in self.members:
            raise MeshError("unknown-origin", f"records of {origin}, whose node is not in the peers file")
        if origin == self._own:
            raise MeshError("forged-origin", f"records {head.first}–{head.last} of {origin}, which it never wrote")
        if head.attributes & (SPARSE | MEMORY):
            raise MeshError("bad-batch", f"{head!r} does not come from a journal")
        if head.first > known + 1:
            raise MeshError(NOT_HERE, f"{head!r} came where {known + 1} was expected")
        if head.first <= known:
            # Not an error: what stores still hold of a range may end inside a batch. The next link reports it as a gap.
            raise MeshError(NOT_HERE, f"{head!r} overlaps with what is known up to {known}")
        return True

    def _apply(self, batch: bytes, have: Vector, out: Outcome) -> None:
        try:
            head = verify_batch(batch)
            records = batch_records(batch)
        except FutureVersion as error:
            raise MeshError("future-format", str(error)) from error
        except CorruptLog as error:
            raise MeshError("bad-batch", str(error)) from error
        for record in records:
            _check_record(record, head)
        given_up = self._given_up(head, records)
        have[head.origin] = head.last
        merge(have, given_up)
        # First: what cannot be applied must not be journalled, for no later start of this node could apply it either.
        self._replay.accept(head.origin, records, have, out)
        out.batches.append((head.origin, head.last, batch))

    def _given_up(self, head: BatchHead, records: list[Record]) -> Vector:
        """Ranges that this node gave up before it lost its disk, and now receives again.

        The journal counts these from the moment it holds the batch (`storage.log.journal.advance`), so `have` must too:
        a batch from below would be one that the journal cannot take.
        """
        gaps: Vector = {}
        if head.attributes & GAPS and head.origin.node == self._own.node:
            for record in records:
                if record.kind == RecordKind.GAP:
                    origin, through = _gap_of(record, head)
                    if origin == self._own:
                        raise MeshError("forged-origin", f"{head!r} gives up records of {origin}, which is running")
                    merge(gaps, {origin: through})
        return gaps


def _head_at(body: bytes, offset: int) -> BatchHead:
    try:
        head = read_head(body, offset)
    except FutureVersion as error:
        raise MeshError("future-format", str(error)) from error
    except CorruptLog as error:
        raise MeshError("bad-batch", str(error)) from error
    if head is None or offset + head.size > len(body):
        raise MeshError("bad-batch", "a batch is truncated")
    return head


def _check_record(record: Record, head: BatchHead) -> None:
    """A checksum proves only that the bytes are what the origin wrote; this checks that they are valid records."""
    kind = record.kind
    # Also of kinds that this version does not know: the index of a segment counts them, too.
    if (
        type(record.sequence) is not int
        or type(record.timestamp_us) is not int
        or not 0 <= record.timestamp_us <= values.SEQUENCE_MAX
        or type(record.destination) is not str
        or type(record.headers) is not bytes
        or type(record.body) is not bytes
    ):
        raise MeshError("bad-batch", f"record {record.sequence} of {head.origin} has fields of the wrong type")
    try:
        if kind in COUNTED and len(record.body) > SCANT_BYTES:
            unpack(record.body, ELEMENTS_MAX)
        if kind == RecordKind.SETTLE:
            values.check_dots(unpack(record.body, ELEMENTS_MAX))
        elif kind in CHECKED:
            _check_body(record)
        elif kind in FACTS:
            _check_fact(kind, record.body)
    except (CorruptLog, ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        # The compiled build raises TypeError if a field is not of its annotated type.
        raise MeshError("bad-batch", f"record {record.sequence} of {head.origin}: {error}") from error
    except MeshError as error:
        raise MeshError("bad-batch", f"record {record.sequence} of {head.origin}: {error.message}") from error


def _check_body(record: Record) -> None:
    """What the checkpoint will read must be readable: there it is too late to refuse."""
    if record.kind == RecordKind.DEAD:
        queue, dot, _ = unpack_dead(record.body)
        values.name_of(queue, Destination.QUEUE)
        values.name_of(record.destination, Destination.QUEUE)
        values.origin_of(*dot.origin)
    elif record.kind == RecordKind.ATTEMPTS:
        for dot in unpack_attempts(record.body):
            values.origin_of(*dot.origin)
    elif record.kind == RecordKind.CURSOR:
        values.check_move(unpack_move(record.destination, record.body))
    elif record.kind == RecordKind.DELETE:
        values.name_of(record.destination, Destination.FANOUT)
        values.check_vector(unpack_delete(record.body))


def _check_fact(kind: int, body: bytes) -> None:
    """The catalog will hold it for ever, and every start reads it: there it is too late to refuse."""
    if kind == RecordKind.SEAL:
        values.check_vector({seal.origin: seal.last for seal in unpack_seals(body)})
    elif kind == RecordKind.GONE:
        span = unpack_lost(body)
        values.check_vector({span.origin: span.last})
    elif kind == RecordKind.FORGOTTEN:
        for dot in unpack_forgotten(body):
            values.origin_of(*dot.origin)
    elif kind == RecordKind.DEFINITION:
        change = unpack_definition(body)
        for version in (change.version, change.replaced):
            if version is not None:
                values.check_vector({version.origin: version.sequence})
                values.number(version.time_us)
                values.number(version.counter)
                values.number(version.clock_us)
    else:
        term = unpack_term(kind, body)
        values.node_name(term.owner)
        values.number(term.number)
        values.node_name(term.server)


def _gap_of(record: Record, head: BatchHead) -> tuple[Origin, int]:
    try:
        fields = values.array(msgpack.unpackb(record.body), 3)
        return values.origin_of(fields[0], fields[1]), values.number(fields[2])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MeshError("bad-batch", f"gap {record.sequence} of {head.origin}: {error}") from error
    except MeshError as error:
        raise MeshError("bad-batch", f"gap {record.sequence} of {head.origin}: {error.message}") from error
