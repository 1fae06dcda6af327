"""What waits for one link: whose turn it is, and what happens at each bound."""

from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message, Retain
from qmq.broker.topics.retained import RetainedValues
from qmq.broker.topics.retained_sync import RetainedSync
from qmq.config.limits import BODY_BYTES_CEILING, HEADER_BYTES_CEILING
from qmq.model.dots import Origin
from qmq.replication.links.outbox import (
    MESSAGE_OVERHEAD_BYTES,
    SINGLE_ANSWER_BYTES_MAX,
    SINGLE_BYTES_MAX,
    SMALL_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TURN_BYTES,
    LinkOutbox,
    encode_send,
)
from qmq.replication.protocol.frame_table import FROM_SERVING_SIDE, decode, pack
from qmq.replication.protocol.frames import Batches, Lend, MeshFrame, ResponseFrame, Topics, Welcome
from qmq.replication.protocol.frames import Retained as Values
from qmq.replication.protocol.values import Sender

A = Origin("a", 1)


class Wakes:
    """Counts wake-ups, and keeps the frames in the order they were encoded."""

    def __init__(self) -> None:
        self.count = 0
        self.frames: list[MeshFrame] = []
        self.outbox = LinkOutbox(self.encode, self.wake)

    def wake(self) -> None:
        self.count += 1

    def encode(self, frame: MeshFrame) -> bytes:
        self.frames.append(frame)
        return type(frame).__name__.encode() + b";"


def messages(count: int, size: int = 10) -> list[Message]:
    envelope = Envelope("/topic/t", DestinationKind.TOPIC, b"", durable=False)
    return [Message(envelope, b"x" * size, A, -number - 1, 0) for number in range(count)]


def test_everything_that_is_put_wakes_the_writer_and_is_taken_once() -> None:
    wakes = Wakes()
    outbox = wakes.outbox

    outbox.put(Welcome({}))
    outbox.put_lends(messages(1))
    outbox.put_journal(Batches(1, b""))
    outbox.put_topics(messages(1))

    assert wakes.count == 4
    assert outbox.take() == b"Welcome;Lend;Batches;Topics;"
    assert outbox.take() == b""


def test_a_long_catching_up_delays_nothing_else() -> None:
    wakes = Wakes()
    for number in range(3):
        wakes.outbox.put_journal(Batches(number, b""))
    assert wakes.outbox.take() == b"Batches;"

    wakes.outbox.put(Welcome({}))

    assert wakes.outbox.take() == b"Welcome;Batches;"


def test_what_is_lent_no_more_leaves_without_a_term() -> None:
    wakes = Wakes()
    first, over, last = messages(3)
    wakes.outbox.terms = {"a": 4}
    wakes.outbox.is_lent = lambda message: message is not over
    wakes.outbox.put_lends([first, over, last])

    wakes.outbox.take()

    assert wakes.frames == [Lend([first, last], terms={"a": 4}), Lend([over], terms={})]


def test_without_another_rule_all_that_is_lent_leaves_in_its_term() -> None:
    wakes = Wakes()
    wakes.outbox.terms = {"a": 4}
    wakes.outbox.put_lends(lent := messages(2))

    wakes.outbox.take()

    assert wakes.frames == [Lend(lent, terms={"a": 4})]


def test_many_messages_leave_in_turns() -> None:
    wakes = Wakes()
    wakes.outbox.put_lends(messages(10, TURN_BYTES // 2))

    wakes.outbox.take()

    first = wakes.frames[0]
    assert isinstance(first, Lend)
    assert len(first.messages) == 2


def test_topics_beyond_the_bound_are_dropped_and_counted_until_some_have_left() -> None:
    wakes = Wakes()
    size = TOPIC_BYTES_MAX // 4 - 64

    wakes.outbox.put_topics(messages(4, size))
    assert wakes.outbox.topics_dropped == 0
    wakes.outbox.put_topics(messages(1, 0))
    assert wakes.outbox.topics_dropped == 1

    wakes.outbox.take()
    wakes.outbox.put_topics(messages(1, 0))
    assert wakes.outbox.topics_dropped == 1


def test_one_topic_message_over_the_bound_passes_alone_but_none_that_no_frame_can_hold() -> None:
    wakes = Wakes()

    wakes.outbox.put_topics(messages(1, TOPIC_BYTES_MAX + 1))
    wakes.outbox.take()
    assert isinstance(wakes.frames[0], Topics)

    wakes.outbox.put_topics(messages(1, SINGLE_BYTES_MAX))
    assert wakes.outbox.topics_dropped == 1
    assert wakes.outbox.take() == b""


def test_the_largest_topic_message_that_is_not_dropped_fits_into_a_frame_and_one_byte_more_is_dropped() -> None:
    wakes = Wakes()
    largest = SINGLE_BYTES_MAX - MESSAGE_OVERHEAD_BYTES

    wakes.outbox.put_topics(messages(1, largest))
    wakes.outbox.take()
    (frame,) = wakes.frames
    decoded = decode(FROM_SERVING_SIDE, *pack(frame), Sender("a"))
    wakes.outbox.put_topics(messages(1, largest + 1))

    assert isinstance(decoded, Topics)
    assert [len(message.body) for message in decoded.messages] == [largest]
    assert wakes.outbox.topics_dropped == 1


def test_the_largest_response_that_is_sent_fits_into_a_frame_and_a_larger_one_is_not_sent() -> None:
    outbox = LinkOutbox(encode_send, lambda: None)
    small = 1 << 20
    largest = SINGLE_ANSWER_BYTES_MAX - (len(encode_send(ResponseFrame(1, bytes(small)))) - small) - 1  # of its length

    assert not outbox.put_answer(ResponseFrame(1, bytes(largest + 2)))
    assert outbox.put_answer(ResponseFrame(1, bytes(largest)))
    decoded = decode(FROM_SERVING_SIDE, *pack(ResponseFrame(1, bytes(largest))), Sender("a"))
    assert decoded == ResponseFrame(1, bytes(largest))


def test_a_message_to_be_relayed_that_no_frame_can_hold_is_dropped_and_delays_no_other() -> None:
    wakes = Wakes()

    assert wakes.outbox.put_passed("c", messages(1, SINGLE_BYTES_MAX)) == 1
    wakes.outbox.put(Welcome({}))
    assert wakes.outbox.take() == b"Welcome;"

    assert wakes.outbox.put_passed("c", messages(1)) == 0
    assert wakes.outbox.take() == b"Passed;"


def test_a_turn_with_the_largest_message_fits_into_one_frame() -> None:
    wakes = Wakes()
    headers = b"h:" + b"x" * (HEADER_BYTES_CEILING - 3) + b"\n"
    largest = Envelope("/queue/q", DestinationKind.QUEUE, headers, True)
    small = Envelope("/queue/q", DestinationKind.QUEUE, b"", True)
    lent = [Message(small, bytes(TURN_BYTES - 100), A, 1, 1), Message(largest, bytes(BODY_BYTES_CEILING), A, 2, 1)]

    wakes.outbox.put_lends(lent)
    wakes.outbox.take()
    (frame,) = wakes.frames
    decoded = decode(FROM_SERVING_SIDE, *pack(frame), Sender("a"))

    assert isinstance(decoded, Lend)
    assert [message.sequence for message in decoded.messages] == [1, 2]


def test_a_peer_that_does_not_read_overflows_and_costs_no_more() -> None:
    wakes = Wakes()
    wakes.outbox.put_bytes(b"x" * SMALL_BYTES_MAX)
    assert not wakes.outbox.overflowed

    wakes.outbox.put(Welcome({}))

    assert wakes.outbox.overflowed
    assert len(wakes.outbox.take()) == SMALL_BYTES_MAX


def test_lent_messages_that_never_left_can_be_had_back() -> None:
    wakes = Wakes()
    wakes.outbox.put_lends(messages(3, TURN_BYTES))
    wakes.outbox.take()

    assert [message.sequence for message in wakes.outbox.unsent_lends()] == [-2, -3]
    assert wakes.outbox.take() == b""


def test_what_is_lent_under_a_withdrawn_offer_is_taken_out_and_the_rest_keeps_its_order() -> None:
    outbox = Wakes().outbox
    jobs, more = (Envelope(name, DestinationKind.QUEUE, b"", durable=True) for name in ("/queue/jobs", "/queue/more"))
    lent = [Message(envelope, b"", A, sequence, 0) for sequence, envelope in enumerate((jobs, more, jobs, jobs), 1)]
    lent[3].lent_as = "a = 1\x000"
    outbox.put_lends(lent)

    assert [message.sequence for message in outbox.unlend({"/queue/jobs"})] == [1, 3]
    assert [message.sequence for message in outbox.unlend({"/queue/jobs\0a = 1\x000"})] == [4]
    assert [message.sequence for message in outbox.unsent_lends()] == [2]


def test_a_value_whose_message_is_dropped_is_sent_later() -> None:
    wakes = Wakes()
    retained = RetainedValues(10, 1 << 30)
    spread = wakes.outbox.spread = retained.spreads["b"] = RetainedSync(retained, wakes.wake)
    spread.follows(frozenset())
    assert wakes.outbox.take() == b""
    envelope = Envelope("/topic/last", DestinationKind.TOPIC, b"", durable=False)
    envelope.retain = Retain.SET
    last = Message(envelope, b"last", A, -1000, 1)
    wakes.outbox.put_topics(messages(1, TOPIC_BYTES_MAX))

    retained.put(last)
    retained.audience((), "/topic/last")
    wakes.outbox.put_topics([last])

    assert wakes.outbox.topics_dropped == 1
    assert wakes.outbox.take() == b"Topics;Retained;"
    (told,) = [frame for frame in wakes.frames if isinstance(frame, Values)]
    assert [message.body for message in told.values] == [b"last"]


def test_the_writer_goes_on_while_values_are_due() -> None:
    wakes = Wakes()
    retained = RetainedValues(10_000, 1 << 30)
    for number in range(6000):
        envelope = Envelope(f"/topic/{number:04}", DestinationKind.TOPIC, b"", durable=False)
        envelope.retain = Retain.SET
        retained.put(Message(envelope, b"", A if number < 5999 else Origin("c", 1), -number - 1, 1))
    spread = wakes.outbox.spread = RetainedSync(retained, wakes.wake)
    spread.follows(frozenset({A}))

    before = wakes.count
    assert wakes.outbox.take() == b"", "nothing of what was looked at is for this peer"
    assert wakes.count > before, "but there is more to look at"
    assert wakes.outbox.take() == b"Retained;"
    before = wakes.count
    assert wakes.outbox.take() == b""
    assert wakes.count == before
