"""From decisions to batches: what is one batch, and what must not be."""

import random

import pytest

from qmq.broker.consumers.outcome import BESIDE_BYTES_MAX, DEAD_LETTERS_BYTES_MAX, Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.consumers.subscription import Ack
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.limits import COPIES_BYTES_MAX
from qmq.broker.messages.message import DeadLetter, Envelope, Message, OwnRecord, Settle
from qmq.broker.messages.rules import DEAD_LETTERS, DEFAULT_RULES, QueueRules
from qmq.broker.queues.dead_letters import DEAD_LETTER_OVERHEAD_BYTES
from qmq.config.limits import BODY_BYTES_CEILING, HEADER_BYTES_CEILING, TRANSACTION_BYTES_CEILING
from qmq.errors import Refused
from qmq.model.dots import Dot, Origin
from qmq.record_codec import OUTCOME_BYTES_MAX, Packing, encode_group, encode_records
from qmq.storage.format.batch import BATCH_BYTES_MAX, HEAD_BYTES, batch_records, verify_batch
from qmq.storage.format.record import RecordKind as Kinds
from qmq.storage.format.record import priority_of
from tests.broker.rig import JOBS, SECOND_US, Client, Node, envelope, parts

A = Origin("a", 1)


def outcome(first: int, sizes: list[int]) -> Outcome:
    out = Outcome()
    envelope = Envelope("/fanout/f", DestinationKind.FANOUT, b"", durable=True)
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


BODY = b"the same for all " * 10
NAMES = ("/fanout/f", "/queue/a", "/queue/b")


def copies(out: Outcome, body: bytes, *names: str) -> None:
    """One message to each of `names`, with one body object."""
    for name in names:
        kind = DestinationKind.FANOUT if name.startswith("/fanout/") else DestinationKind.QUEUE
        known = Envelope(name, kind, b"k:v\n", durable=True)
        out.records.append(Message(known, body, A, len(out.records) + 1, 5))


def test_a_body_that_copies_share_is_written_once_if_all_members_read_that() -> None:
    out = Outcome()
    copies(out, BODY, *NAMES)
    out.records.append(Settle("/queue/a", [Dot(A, 1)], 4, 5))
    copies(out, BODY, "/queue/c")
    copies(out, bytes(200), *NAMES)
    out.records[5:] = [replaced(one, sequence) for sequence, one in enumerate(out.records[5:], 6)]

    (shared,), (plain,) = encode_records(A, [out], True), encode_records(A, [out])

    assert (verify_batch(shared).version, verify_batch(plain).version) == (2, 1)
    assert (shared.count(BODY), shared.count(bytes(200)), plain.count(BODY)) == (1, 1, 4)
    assert batch_records(shared) == batch_records(plain)


def replaced(record: OwnRecord, sequence: int) -> OwnRecord:
    assert isinstance(record, Message)
    return Message(record.envelope, record.body, A, sequence, 5)


def test_what_is_not_shared_is_written_as_before() -> None:
    """Short bodies, equal bodies of several senders, and one body in several decisions."""
    short, equal, later = Outcome(), Outcome(), Outcome()
    copies(short, b"x" * 63, *NAMES)
    for number, name in enumerate(NAMES):
        copies(equal, bytes(bytearray(BODY)), name)
        equal.records[number] = replaced(equal.records[number], number + 4)
    copies(later, BODY, NAMES[0])
    later.records[0] = replaced(later.records[0], 7)
    again = Outcome()
    copies(again, BODY, NAMES[0])
    again.records[0] = replaced(again.records[0], 8)
    outcomes = [short, equal, later, again]

    assert encode_records(A, outcomes, True) == encode_records(A, outcomes)
    assert verify_batch(encode_records(A, outcomes, True)[0]).version == 1


def test_batches_end_at_the_same_records_with_and_without_shared_bodies() -> None:
    body = bytes(9 << 20)
    outcomes: list[Outcome] = []
    for first in (1, 4, 7):
        out = Outcome()
        copies(out, body, *NAMES)
        out.records[:] = [replaced(record, first + place) for place, record in enumerate(out.records)]
        outcomes.append(out)
    huge = Outcome()
    copies(huge, body, *NAMES, "/queue/c", "/queue/d", "/queue/e")
    huge.records[:] = [replaced(record, 10 + place) for place, record in enumerate(huge.records)]

    shared, plain = encode_records(A, [*outcomes, huge], True), encode_records(A, [*outcomes, huge])

    heads = [verify_batch(data) for data in shared]
    assert [(head.first, head.last) for head in heads] == [(head.first, head.last) for head in map(verify_batch, plain)]
    assert {head.version for head in heads if head.last < 10} == {2}
    assert {head.version for head in heads if head.first >= 10} == {1}


@pytest.mark.parametrize("seed", range(50))
def test_records_in_any_order_read_the_same_with_and_without_shared_bodies(seed: int) -> None:
    rng = random.Random(seed)
    bodies = [rng.randbytes(70) for _ in range(3)]
    out = Outcome()
    for sequence in range(1, 30):
        if rng.random() < 0.3:
            out.records.append(Settle("/queue/a", [Dot(A, 1)], sequence, 5))
        else:
            copies(out, rng.choice(bodies), rng.choice(NAMES))

    (shared,), (plain,) = encode_records(A, [out], True), encode_records(A, [out])

    assert len(shared) < len(plain)
    assert batch_records(shared) == batch_records(plain)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_records_that_are_packed_in_parts_are_the_same(seed: int, shares: bool) -> None:
    rng = random.Random(seed)
    bodies = [rng.randbytes(70) for _ in range(2)]
    out = Outcome()
    for sequence in range(1, 30):
        if rng.random() < 0.2:
            out.records.append(Settle("/queue/a", [Dot(A, 1)], sequence, 5))
        else:
            copies(out, rng.choice(bodies), rng.choice(NAMES))

    packing = Packing(out.records, shares)
    while len(packing.packed) < len(out.records):
        packing.take(rng.randrange(1, 9))

    assert encode_group(A, [out], shares, {id(out): packing}) == encode_records(A, [out], shares)


@pytest.mark.parametrize("body_bytes", [1 << 20, 200])
def test_a_batch_after_one_with_shared_bodies_is_of_version_1_again(body_bytes: int) -> None:
    """Whether that one ended because it was large enough, or because the next decision did not fit."""
    first = Outcome()
    copies(first, bytes(body_bytes), *NAMES)

    batches = encode_records(A, [first, outcome(4, [OUTCOME_BYTES_MAX - 300])], True)

    assert [verify_batch(data).version for data in batches] == [2, 1]


def test_a_record_says_what_its_own_message_says_whatever_the_one_before_was() -> None:
    plain = Envelope("/queue/q", DestinationKind.QUEUE, b"", durable=True)
    urgent = Envelope("/queue/q", DestinationKind.QUEUE, b"priority:9\n", durable=True)
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


def test_what_dies_at_once_is_weighed_with_the_names_of_its_queues() -> None:
    # As when a consumer of eighty queues leaves: many small messages, long names, no transaction.
    queue, target = "/queue/" + "q" * 248, "/queue/" + "d" * 248
    letter = Envelope(target, DestinationKind.QUEUE, b"dead-letter-from:%b\n" % queue.encode(), durable=True)
    out = Outcome()
    for sequence in range(1, 65_001):
        out.records.append(DeadLetter(Message(letter, b"x", A, sequence, 1), queue, Dot(A, sequence)))

    batches = encode_records(A, [out])

    assert sum(verify_batch(batch).count for batch in batches) == 65_000
    assert all(len(batch) < BATCH_BYTES_MAX for batch in batches)


def test_every_batch_that_is_not_split_fits() -> None:
    # With the overhead of long names.
    decided = BESIDE_BYTES_MAX + TRANSACTION_BYTES_CEILING + DEAD_LETTERS_BYTES_MAX
    assert decided + 1000 * 1500 < OUTCOME_BYTES_MAX < BATCH_BYTES_MAX - HEAD_BYTES
    assert max(COPIES_BYTES_MAX, BODY_BYTES_CEILING + HEADER_BYTES_CEILING) < OUTCOME_BYTES_MAX
    assert BODY_BYTES_CEILING + HEADER_BYTES_CEILING + DEAD_LETTER_OVERHEAD_BYTES <= DEAD_LETTERS_BYTES_MAX


def letters_in(out: Outcome) -> list[Message]:
    return [part for record in out.records for part in parts(record) if isinstance(part, Message)]


MIB = 1 << 20
LARGE = bytes(MIB)


def node_with(count: int) -> tuple[Node, Client]:
    """A node whose only client has that many messages of a MiB each in hand."""
    node = Node()
    client = node.client()
    client.subscribe(ack=Ack.CLIENT, credit=count)
    for _ in range(count):
        node.send(LARGE)
    return node, client


def commit(client: Client, *held: HeldFrame) -> Outcome:
    client.begin()
    for one in held:
        client.hold(one)
    return client.commit()


def test_a_transaction_that_buries_more_than_a_batch_has_room_for_is_refused_as_a_whole() -> None:
    node, client = node_with(60)
    first = HeldFrame(envelope=envelope("/queue/first"), body=b"1")

    with pytest.raises(Refused) as refused:
        commit(client, first, HeldFrame(delivery=client.inbox[-1], is_ack=False, why=Back.REJECTED))

    assert refused.value.code == "transaction-too-large"
    assert node.depth("/queue/first") == 0 and len(node.queues.deliveries) == 60


def test_a_transaction_that_buries_what_fits_is_one_batch() -> None:
    node, client = node_with(60)
    sends = [HeldFrame(envelope=envelope("/queue/more"), body=LARGE) for _ in range(15)]

    out = commit(client, *sends, HeldFrame(delivery=client.inbox[15], is_ack=False, why=Back.REJECTED))

    (batch,) = encode_records(A, [out])
    assert len([letter for letter in letters_in(out) if letter.envelope.destination == DEAD_LETTERS]) == 16
    assert verify_batch(batch).count == len(out.records)


def test_what_a_transaction_has_settled_or_dead_lettered_is_not_weighed_with_a_later_nack() -> None:
    node, client = node_with(60)
    bury = [HeldFrame(delivery=client.inbox[at], is_ack=False, why=Back.REJECTED) for at in (59, 59, 58)]

    out = commit(client, HeldFrame(delivery=client.inbox[57]), *bury)

    assert len(letters_in(out)) == 2
    assert not node.queues.deliveries


def test_a_transaction_gives_back_as_much_as_its_client_has_in_hand() -> None:
    node, client = node_with(60)

    out = commit(client, HeldFrame(delivery=client.inbox[-1], is_ack=False))

    assert len(encode_records(A, [out])) == 1
    assert not letters_in(out)


def test_what_a_transaction_drops_beyond_its_batch_is_dropped_by_the_next_message() -> None:
    rules = QueueRules(messages_max=20, overflow="drop-oldest", dead_letter="/queue/dead", keeps_dropped=True)
    node = Node(rules_of=lambda name: rules if name == JOBS else DEFAULT_RULES)
    client = node.client()
    for _ in range(20):
        node.send(LARGE * 3)

    out = commit(client, *[HeldFrame(envelope=envelope(), body=b"small") for _ in range(20)])

    assert len(encode_records(A, [out])) == 1
    assert 20 < node.depth() < 40
    node.send(b"next")
    assert node.depth() == 20
    assert node.depth("/queue/dead") == 21


def test_what_expires_while_a_transaction_is_applied_gets_its_letter_later() -> None:
    rules = QueueRules(dead_letter="/queue/dead", keeps_dropped=True)
    node = Node(rules_of=lambda name: rules if name == JOBS else DEFAULT_RULES)
    client = node.client()
    client.subscribe(credit=1)
    node.send(b"first")
    for _ in range(60):
        node.send(LARGE, headers=b"ttl:500\n")
    node.now_us += SECOND_US

    out = commit(client, HeldFrame(delivery=client.inbox[0]))

    assert len(encode_records(A, [out])) == 1
    assert client.bodies == [b"first"]
    node.later(2 * SECOND_US)
    assert node.depth("/queue/dead") == 60
