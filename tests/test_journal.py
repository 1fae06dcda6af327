"""From decisions to batches: what is one batch, and what must not be."""

from qmq.broker.broker import COPIES_BYTES_MAX
from qmq.broker.destination import Kind
from qmq.broker.message import Envelope, Message, Settle
from qmq.broker.outcome import Outcome
from qmq.config.limits import BODY_BYTES_CEILING, TRANSACTION_BYTES_CEILING
from qmq.dots import Dot, Origin
from qmq.journal import BATCH_BYTES_TARGET, OUTCOME_BYTES_MAX, encode_records
from qmq.storage.batch import BATCH_BYTES_MAX, batch_records, verify_batch
from qmq.storage.record import Kind as Kinds
from qmq.storage.record import priority_of

A = Origin("a", 1)


def outcome(first: int, sizes: list[int]) -> Outcome:
    out = Outcome()
    envelope = Envelope("/fanout/f", Kind.FANOUT, b"", durable=True)
    for sequence, size in enumerate(sizes, first):
        out.records.append(Message(envelope, bytes(size), A, sequence, sequence))
        out.record_bytes += size + 64
    return out


def test_one_decision_is_one_batch_however_large_a_transaction_may_be() -> None:
    (batch,) = encode_records(A, [outcome(1, [BODY_BYTES_CEILING // 2] * 3)])

    assert verify_batch(batch).count == 3


def test_what_no_transaction_can_be_is_split_into_batches_that_the_format_allows() -> None:
    sizes = [BODY_BYTES_CEILING, 10, BODY_BYTES_CEILING, 10, 10, BODY_BYTES_CEILING, 5]

    batches = encode_records(A, [outcome(1, [1]), outcome(2, sizes), outcome(9, [2])])

    records = [record for batch in batches for record in batch_records(batch)]
    assert [record.sequence for record in records] == list(range(1, 10))
    assert [len(record.body) for record in records] == [1, *sizes, 2]
    assert all(len(batch) < BATCH_BYTES_MAX for batch in batches)


def test_a_record_says_what_its_own_message_says_whatever_the_one_before_was() -> None:
    plain = Envelope("/queue/q", Kind.QUEUE, b"", durable=True)
    urgent = Envelope("/queue/q", Kind.QUEUE, b"priority:9\n", durable=True)
    out, later = Outcome(), Outcome()
    out.records += [Message(plain, b"one", A, 1, 5), Message(plain, b"two", A, 2, 5), Message(plain, b"four", A, 3, 5)]
    out.records += [Settle("/queue/q", [Dot(A, 1)], 4, 5), Message(plain, b"five", A, 5, 5)]
    later.records += [Message(plain, b"five", A, 6, 9), Message(urgent, b"five", A, 7, 9), Message(plain, b"", A, 8, 9)]

    (batch,) = encode_records(A, [out, later])

    found = [(r.sequence, r.timestamp_us, r.headers, r.body) for r in batch_records(batch) if r.kind == Kinds.PUBLISH]
    assert found == [
        (item.sequence, item.timestamp_us, item.envelope.headers, item.body)
        for item in out.records + later.records
        if isinstance(item, Message)
    ]
    assert [priority_of(record.flags) for record in batch_records(batch)] == [4, 4, 4, 4, 4, 4, 9, 4]


def test_every_batch_that_is_not_split_fits() -> None:
    # One read can end a transaction and bring the last byte of one more message.
    assert TRANSACTION_BYTES_CEILING + max(COPIES_BYTES_MAX, BODY_BYTES_CEILING) < OUTCOME_BYTES_MAX
    # Behind what gathered below the target, and with the overhead of a thousand long names.
    assert BATCH_BYTES_TARGET + OUTCOME_BYTES_MAX + 1000 * 1500 < BATCH_BYTES_MAX
