"""What the broker decides and what the journal holds, in one table, both directions.

    broker                          record
    ------------------------------  ---------------------------------------------------------
    Message (fanout, durable queue) PUBLISH  destination, header block, body
    Settle                          SETTLE   destination = the queue, body = the dots
    (start of an incarnation)       START    written by the store before anything else
    DeadLetter                      DEAD     destination, header block = its message's; body = it, and what is settled
    Attempts                        ATTEMPTS destination = the queue, body = how often each message failed
    Gap                             GAP      body = the origin and how far it was given up
    Moved                           CURSOR   destination = the fanout, body = what became of the cursor
    Fact                            TERM     body = which node serves an owner's messages; VOTE: the node voted for
    Fact                            GONE     body = a range of records that are nowhere any more
    Fact                            DEFINITION body = a change of a definition
    Deleted                         DELETE   destination = the fanout, body = the vector up to which it is deleted

Records of unknown kinds are stored and relayed byte for byte and mean nothing here. Both directions are one module, so
that nothing is written that is not read.

Copies of one message, to the children of a fanout for example, have one body object, and come in one Outcome. The
journal has this body once (`storage.format.shared_bodies`) if all members can read that.
"""

from collections.abc import Callable, Mapping

from qmq.broker import fanout_deletion
from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import kind_of
from qmq.broker.messages.message import Attempts, DeadLetter, Deleted, Envelope, Fact, Message, Moved, OwnRecord, Settle
from qmq.definitions.definition import Definition
from qmq.errors import Refused
from qmq.model.deletions import Deletion
from qmq.model.dots import Dot, Origin, Vector
from qmq.storage.catalog.incarnations import Seal, unpack_seals
from qmq.storage.format.batch import BATCH_VERSION, GAPS, SHARED_VERSION, encode_batch
from qmq.storage.format.cursor_record import pack_move, unpack_move
from qmq.storage.format.definition_record import unpack_definition
from qmq.storage.format.delete_record import pack_delete, unpack_delete
from qmq.storage.format.failure_records import pack_attempts, pack_dead, unpack_attempts, unpack_dead
from qmq.storage.format.forgotten_record import unpack_forgotten
from qmq.storage.format.lost_record import unpack_lost
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.format.record import (
    EXACT,
    TIMED,
    Record,
    RecordKind,
    pack_alike,
    pack_dots,
    pack_envelope,
    pack_gap,
    pack_middle,
    pack_record,
    pack_reference,
    unpack_dots,
    with_priority,
)
from qmq.storage.format.shared_bodies import SHARED_BYTES_MIN
from qmq.storage.format.term_record import TermNote, is_term, unpack_term

PUBLISH = RecordKind.PUBLISH
BATCH_BYTES_TARGET = 1 << 20
"""A batch is closed when it reaches this; one Outcome is not split over two, so a transaction is all or nothing."""

OUTCOME_BYTES_MAX = 47 << 20
"""More than the largest transaction has, together with its dead letters and what may stand before it, and less than a
batch may have. An Outcome beyond it (a thousand large messages that die at once) is split: its records are in one
append and one sync all the same."""

LENGTH_BYTES = 4
"""What a batch's table of lengths has for each record."""

NOTHING_READY: Mapping[int, "Packing"] = {}
"""No Outcome was packed before."""

ENVELOPES_MAX = 4096
"""Envelopes of replicated records that are remembered; at the bound all are forgotten."""


def encode_group(
    origin: Origin, outcomes: list[Outcome], shares: bool = False, ready: Mapping[int, "Packing"] = NOTHING_READY
) -> list[bytes]:
    """Everything a group of commits appends, own batches and replicated ones.

    Own batches come first, so that they are few and large; only a Gap keeps its place among the replicated ones,
    because it changes which of them may follow. `shares`: every member reads shared bodies. `ready`: by the id() of an
    Outcome its records, packed before with the same `shares`.
    """
    batches: list[bytes] = []
    part: list[Outcome] = []
    for out in outcomes:
        if out.has_gap and part:
            batches += _encode_part(origin, part, shares, ready)
            part = []
        part.append(out)
    return batches + _encode_part(origin, part, shares, ready)


def _encode_part(origin: Origin, outcomes: list[Outcome], shares: bool, ready: Mapping[int, "Packing"]) -> list[bytes]:
    batches = encode_records(origin, outcomes, shares, ready)
    for out in outcomes:
        for _, _, batch in out.batches:
            batches.append(batch)
    return batches


def encode_records(
    origin: Origin, outcomes: list[Outcome], shares: bool = False, ready: Mapping[int, "Packing"] = NOTHING_READY
) -> list[bytes]:
    """The own records of `outcomes`, in order of decision, as batches ready to append.

    Batches end where they would without shared bodies, so each can be written with all bodies in their places.
    """
    batches: list[bytes] = []
    items: list[OwnRecord] = []
    packed: list[bytes] = []
    size = attributes = 0
    version = BATCH_VERSION
    for out in outcomes:
        if out.has_gap:
            attributes = GAPS
        packing = ready.get(id(out))
        if packing is None:
            records, shared_bytes = _packed(out.records, shares)
        else:
            records, shared_bytes = packing.packed, packing.shared_bytes
        # Weighed as they are: what an Outcome counts while it is made leaves out names.
        record_bytes = LENGTH_BYTES * len(records) + sum(map(len, records)) + shared_bytes
        if packed and size + record_bytes > OUTCOME_BYTES_MAX:
            batches.append(_batch(origin, items, packed, attributes, version))
            items, packed, size, version = [], [], 0, BATCH_VERSION
        if record_bytes > OUTCOME_BYTES_MAX:
            # Parts of it cannot refer to each other.
            batches += _split(origin, out.records, _packed(out.records, False)[0], attributes)
            continue
        items += out.records
        packed += records
        size += record_bytes
        if shared_bytes:
            version = SHARED_VERSION
        if size >= BATCH_BYTES_TARGET:
            batches.append(_batch(origin, items, packed, attributes, version))
            items, packed, size, version = [], [], 0, BATCH_VERSION
    if packed:
        batches.append(_batch(origin, items, packed, attributes, version))
    return batches


def record_of(message: Message) -> bytes:
    """The record that publishes `message`, packed."""
    return _packed([message], False)[0][0]


def _split(origin: Origin, items: list[OwnRecord], packed: list[bytes], attributes: int) -> list[bytes]:
    """An Outcome too large for one batch, as several. Copies of one message stay together."""
    batches: list[bytes] = []
    begin = size = 0
    for end, record in enumerate(packed, 1):
        size += len(record)
        if end < len(packed) and size + len(packed[end]) <= OUTCOME_BYTES_MAX:
            body = _body_of(items[end])
            if size < BATCH_BYTES_TARGET or (body is not None and body is _body_of(items[end - 1])):
                continue
        batches.append(_batch(origin, items[begin:end], packed[begin:end], attributes, BATCH_VERSION))
        begin, size = end, 0
    return batches


def _body_of(item: OwnRecord) -> bytes | None:
    """The body in a record; copies of one message have one object."""
    if isinstance(item, Message):
        return item.body
    return item.dead_letter.body if isinstance(item, DeadLetter) else None


def _batch(origin: Origin, items: list[OwnRecord], packed: list[bytes], attributes: int, version: int) -> bytes:
    first, last = items[0], items[-1]
    return encode_batch(
        origin, packed, first.sequence, last.sequence, first.timestamp_us, last.timestamp_us, attributes, version
    )


def _packed(items: list[OwnRecord], shares: bool) -> tuple[list[bytes], int]:
    """The records of one Outcome, and the bytes of the bodies that are not repeated in them."""
    packing = Packing(items, shares)
    packing.take(len(items))
    return packing.packed, packing.shared_bytes


class Packing:
    """The records of one Outcome on their way to a batch. Those of a large one are packed in parts."""

    __slots__ = (
        "_before",
        "_before_bytes",
        "_before_us",
        "_items",
        "_last",
        "_middle",
        "_shares",
        "_whole",
        "_whole_at",
        "packed",
        "shared_bytes",
    )

    def __init__(self, items: list[OwnRecord], shares: bool) -> None:
        self._items = items
        self._shares = shares
        self.packed: list[bytes] = []
        self.shared_bytes = 0
        """Of the bodies that are not repeated."""
        # Neighbours mostly differ in sequence and body only: what stands between these is kept from the one before.
        self._before: Envelope | None = None
        self._before_us = self._before_bytes = -1
        self._middle = b""
        # The last body, and the record that has the body which the last reference is for.
        self._last: bytes | None = None
        self._whole: bytes | None = None
        self._whole_at = 0

    def take(self, count: int) -> None:
        """Pack the next `count`."""
        items, packed, shares = self._items, self.packed, self._shares
        before, before_us, before_bytes, middle = self._before, self._before_us, self._before_bytes, self._middle
        last, whole, whole_at, shared_bytes = self._last, self._whole, self._whole_at, self.shared_bytes
        begin = len(packed)
        for item in items[begin : begin + count]:
            sequence, now_us = item.sequence, item.timestamp_us
            if isinstance(item, Message):
                envelope = item.envelope
                body = item.body
                body_bytes = len(body)
                if body is last and shares and body_bytes >= SHARED_BYTES_MIN:
                    if body is not whole:
                        whole, whole_at = body, _last_message(items, len(packed))
                    head = envelope.packed or _pack(envelope)
                    packed.append(pack_reference(sequence, now_us, envelope.flags, head, len(packed) - whole_at))
                    shared_bytes += body_bytes
                    continue
                last = body
                if envelope is not before or body_bytes != before_bytes or now_us != before_us:
                    before, before_bytes, before_us = envelope, body_bytes, now_us
                    head = envelope.packed or _pack(envelope)
                    middle = pack_middle(now_us, PUBLISH, envelope.flags, head, body_bytes)
                packed.append(pack_alike(sequence, middle, body))
            elif isinstance(item, Settle):
                packed.append(_pack_settle(item))
            elif isinstance(item, DeadLetter):
                envelope = item.dead_letter.envelope
                head = envelope.packed or _pack(envelope)
                dead = pack_dead(item.queue, item.dot, item.dead_letter.body)
                packed.append(pack_record(sequence, now_us, RecordKind.DEAD, envelope.flags, head, dead))
            elif isinstance(item, Attempts):
                head = pack_envelope(item.queue, b"")
                counts = pack_attempts(item.counts.items())
                packed.append(pack_record(sequence, now_us, RecordKind.ATTEMPTS, 0, head, counts))
            elif isinstance(item, Moved):
                head = pack_envelope(item.move.name.destination, b"")
                packed.append(pack_record(sequence, now_us, RecordKind.CURSOR, 0, head, pack_move(item.move)))
            elif isinstance(item, Deleted):
                head = pack_envelope(item.destination, b"")
                packed.append(pack_record(sequence, now_us, RecordKind.DELETE, 0, head, pack_delete(item.before)))
            elif isinstance(item, Fact):
                packed.append(pack_record(sequence, now_us, item.kind, 0, pack_envelope("", b""), item.body))
            else:
                head = pack_envelope("", b"")
                packed.append(
                    pack_record(sequence, now_us, RecordKind.GAP, 0, head, pack_gap(item.origin, item.through))
                )
        self._before, self._before_us, self._before_bytes, self._middle = before, before_us, before_bytes, middle
        self._last, self._whole, self._whole_at, self.shared_bytes = last, whole, whole_at, shared_bytes


def _last_message(items: list[OwnRecord], before: int) -> int:
    """The place of the last message in front of the record at `before`. There is one."""
    place = before - 1
    while not isinstance(items[place], Message):
        place -= 1
    return place


def _pack(envelope: Envelope) -> bytes:
    """What the records of all messages in `envelope` share; remembered there."""
    envelope.packed = pack_envelope(envelope.destination, envelope.headers)
    envelope.flags = _flags(envelope)
    return envelope.packed


def _flags(envelope: Envelope) -> int:
    """What the stores must know of a message without reading its headers."""
    options = envelope.options
    if options is None:
        return 0
    flags = TIMED if options.is_timed else 0
    return with_priority(flags | EXACT if options.exact else flags, options.priority)


def _pack_settle(settle: Settle) -> bytes:
    head = pack_envelope(settle.queue, b"")
    return pack_record(settle.sequence, settle.timestamp_us, RecordKind.SETTLE, 0, head, pack_dots(settle.dots))


class Replay:
    """Records back into the broker: replicated ones while running, own ones at start."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._envelopes: dict[tuple[str, bytes], Envelope] = {}
        self.on_term: Callable[[TermNote], None] = _ignore_term
        """Called with every TERM that comes in, and with votes of earlier incarnations of this node."""
        self.on_seal: Callable[[str, list[Seal]], None] = _is_collected_by_none
        """Called with every SEAL that comes in, and the node that wrote it."""
        self.on_definition: Callable[[Definition], None] = _is_kept_by_none
        """Gets every change of a definition that comes in."""

    def follow(
        self,
        *,
        terms: Callable[[TermNote], None] | None = None,
        seals: Callable[[str, list[Seal]], None] | None = None,
        definitions: Callable[[Definition], None] | None = None,
    ) -> None:
        """Call these from now on with what comes in."""
        self.on_term = terms or self.on_term
        self.on_seal = seals or self.on_seal
        self.on_definition = definitions or self.on_definition

    def message_of(self, origin: Origin, record: Record) -> Message | None:
        """The message that a PUBLISH record carries; None when its destination means nothing to this version."""
        envelope = self._envelope_of(record.destination, record.headers)
        if envelope is None:
            return None
        return Message(envelope, record.body, origin, record.sequence, record.timestamp_us)

    def message_of_row(self, row: QueueRow) -> Message | None:
        """The message that a row of the queue store holds."""
        envelope = self._envelope_of(row.queue, row.headers)
        if envelope is None:
            return None
        message = Message(envelope, row.body, row.dot.origin, row.dot.sequence, row.timestamp_us)
        message.attempts = row.attempts
        return message

    def _envelope_of(self, destination: str, headers: bytes) -> Envelope | None:
        key = (destination, headers)
        envelope = self._envelopes.get(key)
        if envelope is None:
            try:
                kind = kind_of(destination)
            except Refused:
                return None
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes.clear()
            envelope = self._envelopes[key] = Envelope(destination, kind, headers, durable=True)
        return envelope

    def accept(self, origin: Origin, records: list[Record], have: Vector, out: Outcome) -> None:
        """Apply replicated records of `origin`; `have` already includes them."""
        for record in records:
            if record.kind == RecordKind.PUBLISH:
                message = self.message_of(origin, record)
                if message is not None:
                    self._broker.accept(message, out)
            elif record.kind == RecordKind.SETTLE:
                settle = Dot(origin, record.sequence)
                self._broker.accept_settles(record.destination, unpack_dots(record.body), have, settle)
            elif record.kind == RecordKind.DEAD:
                queue, dot, body = unpack_dead(record.body)
                envelope = self._envelope_of(record.destination, record.headers)
                if envelope is not None:
                    dead_letter = Message(envelope, body, origin, record.sequence, record.timestamp_us)
                    self._broker.accept(dead_letter, out)
                self._broker.accept_settles(queue, [dot], have, Dot(origin, record.sequence))
            elif record.kind == RecordKind.ATTEMPTS:
                self._broker.queues.redelivery.failed_before(unpack_attempts(record.body))
            elif record.kind == RecordKind.CURSOR:
                self._broker.durable_subscriptions.accept(unpack_move(record.destination, record.body), out)
            elif record.kind == RecordKind.DELETE:
                dot = Dot(origin, record.sequence)
                before = unpack_delete(record.body)
                fanout_deletion.accept(
                    self._broker, Deletion(record.destination, dot, record.timestamp_us, before), out
                )
            elif record.kind == RecordKind.DEFINITION:
                self.on_definition(unpack_definition(record.body))
            elif record.kind == RecordKind.FORGOTTEN:
                self._broker.dedup.forget(unpack_forgotten(record.body))
            elif record.kind == RecordKind.SEAL:
                self.on_seal(origin.node, unpack_seals(record.body))
            elif record.kind == RecordKind.GONE and origin.node == self._broker.origin.node:
                # Of an earlier life, which a peer brings back.
                span = unpack_lost(record.body)
                self._broker.durable_subscriptions.lost_ranges.add(span.origin, span.last)
            elif is_term(record.kind, origin.node, self._broker.origin.node):
                self.on_term(unpack_term(record.kind, record.body))

    def restore(self, origin: Origin, record: Record) -> None:
        """Put an owned, unsettled queue message of an earlier life back; nothing is handed out."""
        message = self.message_of(origin, record)
        if message is not None:
            self._broker.queues.intake.restore(message)


def _is_collected_by_none(writer: str, seals: list[Seal]) -> None:
    """What becomes of seals where nothing is ever forgotten."""


def _is_kept_by_none(change: Definition) -> None:
    """What becomes of definitions where none are kept."""


def _ignore_term(note: TermNote) -> None:
    """What becomes of terms on a node whose messages no other node takes over."""
