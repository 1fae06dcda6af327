"""What the broker decides and what the journal holds, in one table, both directions.

    broker                          record
    ------------------------------  ---------------------------------------------------------
    Message (fanout, durable queue) PUBLISH  destination, header block, body
    Settle                          SETTLE   destination = the queue, body = the dots
    (start of an incarnation)       START    written by the store before anything else
    Gap                             GAP      body = the origin and how far it was given up

Records of unknown kinds are stored and relayed byte for byte and mean nothing here.
"""

from qmq.broker.broker import Broker
from qmq.broker.destination import kind_of
from qmq.broker.message import Envelope, Message, Settle
from qmq.broker.outcome import Outcome
from qmq.dots import Origin, Vector
from qmq.errors import Refused
from qmq.storage.batch import GAPS, encode_batch
from qmq.storage.record import Kind, Record, pack_dots, pack_envelope, pack_gap, pack_record, unpack_dots

BATCH_BYTES_TARGET = 1 << 20
"""A batch is closed when it reaches this; one Outcome is never split over two, so a transaction is all or nothing."""

ENVELOPES_MAX = 4096
"""Envelopes of replicated records that are remembered; at the bound all are forgotten."""


def encode_group(origin: Origin, outcomes: list[Outcome]) -> list[bytes]:
    """Everything a group of commits appends, own batches and replicated ones.

    Own batches come first, so that they are few and large; only a Gap keeps its place among the replicated ones,
    because it changes which of them may follow.
    """
    batches: list[bytes] = []
    part: list[Outcome] = []
    for out in outcomes:
        if out.has_gap and part:
            batches += _encode_part(origin, part)
            part = []
        part.append(out)
    return batches + _encode_part(origin, part)


def _encode_part(origin: Origin, outcomes: list[Outcome]) -> list[bytes]:
    batches = encode_records(origin, outcomes)
    for out in outcomes:
        for _, _, batch in out.batches:
            batches.append(batch)
    return batches


def encode_records(origin: Origin, outcomes: list[Outcome]) -> list[bytes]:
    """The own records of `outcomes`, in order of decision, as batches ready to append."""
    batches: list[bytes] = []
    packed: list[bytes] = []
    size = first = last = first_us = last_us = attributes = 0
    for out in outcomes:
        if out.has_gap:
            attributes = GAPS
        for item in out.records:
            if not packed:
                first, first_us = item.sequence, item.timestamp_us
            last, last_us = item.sequence, item.timestamp_us
            if isinstance(item, Message):
                envelope = item.envelope
                head = envelope.packed
                if not head:
                    head = envelope.packed = pack_envelope(envelope.destination, envelope.headers)
                packed.append(pack_record(last, last_us, Kind.PUBLISH, 0, head, item.body))
            elif isinstance(item, Settle):
                packed.append(_pack_settle(item))
            else:
                head = pack_envelope("", b"")
                packed.append(pack_record(last, last_us, Kind.GAP, 0, head, pack_gap(item.origin, item.through)))
        size += out.record_bytes
        if packed and size >= BATCH_BYTES_TARGET:
            batches.append(encode_batch(origin, packed, first, last, first_us, last_us, attributes))
            packed = []
            size = 0
    if packed:
        batches.append(encode_batch(origin, packed, first, last, first_us, last_us, attributes))
    return batches


def _pack_settle(settle: Settle) -> bytes:
    head = pack_envelope(settle.queue, b"")
    return pack_record(settle.sequence, settle.timestamp_us, Kind.SETTLE, 0, head, pack_dots(settle.dots))


class Replay:
    """Records back into the broker: replicated ones while running, own ones at start."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._envelopes: dict[tuple[str, bytes], Envelope] = {}

    def message_of(self, origin: Origin, record: Record) -> Message | None:
        """The message that a PUBLISH record carries; None when its destination means nothing to this version."""
        key = (record.destination, record.headers)
        envelope = self._envelopes.get(key)
        if envelope is None:
            try:
                kind = kind_of(record.destination)
            except Refused:
                return None
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes.clear()
            envelope = self._envelopes[key] = Envelope(record.destination, kind, record.headers, durable=True)
        return Message(envelope, record.body, origin, record.sequence, record.timestamp_us)

    def accept(self, origin: Origin, records: list[Record], have: Vector, out: Outcome) -> None:
        """Apply replicated records of `origin`; `have` already includes them."""
        for record in records:
            if record.kind == Kind.PUBLISH:
                message = self.message_of(origin, record)
                if message is not None:
                    self._broker.accept(message, out)
            elif record.kind == Kind.SETTLE:
                self._broker.accept_settles(unpack_dots(record.body), have)

    def restore(self, origin: Origin, record: Record) -> None:
        """Put an owned, unsettled queue message of an earlier life back; nothing is handed out."""
        message = self.message_of(origin, record)
        if message is not None:
            self._broker.queues.restore(message)
