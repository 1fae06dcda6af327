"""The frames table: what is packed comes back, and nothing else gets through."""

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.broker.consumers.subscription import Asks
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Envelope, Message, Retain
from qmq.broker.takeover.leases import Beat, Bid, Term
from qmq.errors import MeshError
from qmq.model.dots import Dot, Origin
from qmq.model.members import Listing, Retirement, Standing
from qmq.replication.protocol.frame_table import COMMON_FRAMES, FROM_PULLING_SIDE, FROM_SERVING_SIDE, decode, pack
from qmq.replication.protocol.frames import (
    Ack,
    Ask,
    Credit,
    Forgotten,
    Gap,
    Heard,
    HeartbeatFrame,
    Held,
    Holds,
    Hole,
    InterestPart,
    Lend,
    MembershipFrame,
    MeshFrame,
    Passed,
    PeerRequest,
    Reach,
    Release,
    Replies,
    RequestFrame,
    ResponseFrame,
    Retained,
    Returned,
    Settled,
    Topics,
    Vote,
    Waiting,
    Welcome,
)
from qmq.replication.protocol.values import Sender

A, A2, B = Origin("a", 1), Origin("a", (1 << 64) - 1), Origin("b", 0)
BOTH = {**FROM_PULLING_SIDE, **FROM_SERVING_SIDE}

FRAMES: list[MeshFrame] = [
    Ack(3, {A: 7, A2: 1, B: (1 << 63) - 1}, {A: 6}, (A, B)),
    Ack(0, {}, {}, None),
    Ack(0, {}, {}, ()),
    Credit([("/queue/jobs", 5), ("/queue/other", 0), ("/queue/jobs\0a = 'b'\x0017", 3), ("/queue/jobs\0\x0017", -1)]),
    Forgotten(["/queue/jobs", "/queue/jobs\0a = 'b'\x000"]),
    Waiting({"/queue/jobs": True, "/queue/more": False}),
    Settled([Dot(A, 1), Dot(A, 3), Dot(A2, -4)]),
    Returned(
        [
            (Dot(A, 2), Back.FAILED, None),
            (Dot(A2, -1), Back.UNSEEN, None),
            (Dot(A, 1), Back.REJECTED, Asks(5, None, "")),
        ]
    ),
    Held([Dot(A, 1)], {B: 9}),
    Welcome({A: 3}),
    Gap([(A, 3), (B, 1)]),
    Hole((A, B)),
    RequestFrame(7, PeerRequest("kind", b"what?")),
    HeartbeatFrame(Beat(5, 0, True, False, {"a": 0, "b": 3}, {"b": 4})),
    Ask(Bid("a", 4, "b", Term(3, "c"))),
    Ask(Bid("a", 1, "b")),
    Vote("a", 4, {A: 7}),
    Release("a", 3),
    Release("a", 3, {A: 7}, {"b": [Dot(A, 2)]}),
    Holds("a", 4, [Dot(A, 2), Dot(A2, 5)]),
    MembershipFrame(
        Standing(
            listing=Listing(3, frozenset({"a", "b"})),
            disk="0123",
            is_learner=True,
            retired=(Retirement(node="c", adopter="a", sealed={Origin("c", (1 << 64) - 1): 5}),),
            heard_of={"d": 1, "e": 3},
        )
    ),
    MembershipFrame(Standing(listing=Listing(0, frozenset()), disk="", is_learner=False)),
    ResponseFrame(7, b""),
    Reach(3, frozenset({A, B})),
    Reach(0, frozenset()),
    InterestPart(A2, -1, 7, 2, 1, False, {"/topic/a": True, "/topic/b.*": True}),
    InterestPart(B, 6, 7, 0, 0, True, {"/topic/#": False}),
    Heard([(A, 7), (B, -1)]),
]


def through(frame: MeshFrame, sender: Sender | None = None) -> MeshFrame:
    destination, body = pack(frame)
    return decode(BOTH, destination, body, Sender("a") if sender is None else sender)


def message(body: bytes, destination: str, kind: DestinationKind, sequence: int, headers: bytes = b"k:v\n") -> Message:
    return Message(Envelope(destination, kind, headers, sequence > 0), body, A, sequence, 17)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_what_is_packed_comes_back(frame: MeshFrame) -> None:
    assert through(frame) == frame


def test_lent_messages_come_back_with_their_lender_as_owner_and_their_attempts() -> None:
    one = message(b"one", "/queue/jobs", DestinationKind.QUEUE, 5)
    one.attempts = 2
    memory = message(b"\0\xff", "/queue/jobs", DestinationKind.QUEUE, -1)

    found = through(Lend([one, memory]))

    assert isinstance(found, Lend)
    assert [(m.dot, m.body, m.attempts, m.owner, m.timestamp_us) for m in found.messages] == [
        (Dot(A, 5), b"one", 2, "a", 17),
        (Dot(A, -1), b"\0\xff", 0, "a", 17),
    ]
    assert [m.envelope.durable for m in found.messages] == [True, False]


@pytest.mark.parametrize("terms", [{"b": 3}, {}])
def test_messages_lent_for_another_owner_name_it_also_when_it_is_served_no_more(terms: dict[str, int]) -> None:
    own, other = (
        message(b"own", "/queue/jobs", DestinationKind.QUEUE, 5),
        message(b"other", "/queue/jobs", DestinationKind.QUEUE, 7),
    )
    other.envelope = own.envelope
    other.origin = B

    found = through(Lend([own, other], 0, terms, "a"))

    assert isinstance(found, Lend)
    assert found.terms == terms
    assert [(m.dot, m.owner) for m in found.messages] == [(Dot(A, 5), "a"), (Dot(B, 7), "a")]


def test_lent_messages_name_the_class_of_consumers_that_they_are_lent_to() -> None:
    plain, red, other = (message(b"m", "/queue/jobs", DestinationKind.QUEUE, sequence) for sequence in (1, 2, 3))
    other.envelope = red.envelope = plain.envelope
    red.lent_as, other.lent_as = "color = 'red'\x000", "\x0017"

    found = through(Lend([plain, red, other]))

    assert isinstance(found, Lend)
    assert [m.lent_as for m in found.messages] == ["", "color = 'red'\x000", "\x0017"]


def test_replies_come_back_and_are_not_remembered_by_their_envelope() -> None:
    sender = Sender("a")
    address = "/reply-queue/b-0000000000000001.1.2.3"

    found = through(Replies([message(b"yes", address, DestinationKind.REPLY, -1)]), sender)

    assert isinstance(found, Replies)
    assert [(m.dot, m.body, m.envelope.destination) for m in found.messages] == [(Dot(A, -1), b"yes", address)]
    assert not sender.envelopes


def test_topic_messages_share_their_envelope_over_frames() -> None:
    sender = Sender("a")
    first = through(
        Topics(
            [message(b"1", "/topic/t", DestinationKind.TOPIC, -1), message(b"2", "/topic/u", DestinationKind.TOPIC, -2)]
        ),
        sender,
    )
    second = through(Topics([message(b"3", "/topic/t", DestinationKind.TOPIC, -3)]), sender)

    assert isinstance(first, Topics) and isinstance(second, Topics)
    assert first.messages[0].envelope is second.messages[0].envelope
    assert first.messages[0].owner is None
    assert first.messages[0].envelope.headers == b"k:v\n"


def test_topic_messages_that_are_passed_on_keep_their_origin_and_share_envelopes() -> None:
    sender = Sender("c")
    sent = [message(b"1", "/topic/t", DestinationKind.TOPIC, -1), message(b"2", "/topic/t", DestinationKind.TOPIC, -4)]

    first = through(Passed("b", sent), sender)
    second = through(Passed("b", sent[:1]), sender)

    assert isinstance(first, Passed) and isinstance(second, Passed)
    assert first.target == "b"
    assert [(m.dot, m.body, m.envelope.destination) for m in first.messages] == [
        (Dot(A, -1), b"1", "/topic/t"),
        (Dot(A, -4), b"2", "/topic/t"),
    ]
    assert first.messages[0].envelope is second.messages[0].envelope


def test_relayed_replies_are_distinguished_from_topic_messages() -> None:
    address = "/reply-queue/b-0000000000000001.1.2.3"

    found = through(Passed("b", [message(b"yes", address, DestinationKind.REPLY, -1)]), Sender("c"))

    assert isinstance(found, Passed)
    assert [(m.dot, m.envelope.kind, m.envelope.destination) for m in found.messages] == [
        (Dot(A, -1), DestinationKind.REPLY, address)
    ]


def test_what_a_topic_message_does_to_the_last_value_travels_with_it() -> None:
    sent = [message(b"1", "/topic/t", DestinationKind.TOPIC, -number) for number in (1, 2, 3)]
    sent[1].envelope.retain, sent[2].envelope.retain = Retain.SET, Retain.REMOVE

    found = through(Topics(sent))

    assert isinstance(found, Topics)
    assert [m.envelope.retain for m in found.messages] == [Retain.NO, Retain.SET, Retain.REMOVE]


def test_last_values_come_back_with_their_origin_from_any_node() -> None:
    one = message(b"\0one", "/topic/t", DestinationKind.TOPIC, -5)
    one.origin, one.envelope.retain = B, Retain.SET
    gone = message(b"", "/topic/u", DestinationKind.TOPIC, -6, b"")
    gone.envelope.retain = Retain.REMOVE

    found = through(Retained([one, gone]), Sender("c"))

    assert isinstance(found, Retained)
    assert [
        (m.envelope.destination, m.envelope.headers, m.envelope.retain, m.dot, m.timestamp_us, m.body)
        for m in found.values
    ] == [
        ("/topic/t", b"k:v\n", Retain.SET, Dot(B, -5), 17, b"\0one"),
        ("/topic/u", b"", Retain.REMOVE, Dot(A, -6), 17, b""),
    ]


def test_elements_that_a_later_version_adds_are_ignored() -> None:
    body = msgpack.packb([{"a": [1, 3]}, 7, "new"])

    assert decode(BOTH, "/mesh/welcome", body, Sender("a")) == Welcome({A: 3})


def test_the_clock_of_the_sender_rides_along_and_may_be_missing() -> None:
    for table, frame in (
        (FROM_PULLING_SIDE, Ack(1, {}, {}, None, sent_us=5)),
        (FROM_SERVING_SIDE, Welcome({}, sent_us=5)),
        (FROM_SERVING_SIDE, Lend([], sent_us=5)),
    ):
        destination, body = pack(frame)
        told = decode(table, destination, body, Sender("a"))
        assert isinstance(told, (Ack, Welcome, Lend)) and told.sent_us == 5

        fields = msgpack.unpackb(body)
        with pytest.raises(MeshError, match="a number"):
            decode(table, destination, msgpack.packb([*fields[:-1], -1]), Sender("a"))


def test_each_direction_has_its_own_frames() -> None:
    assert set(FROM_PULLING_SIDE) & set(FROM_SERVING_SIDE) == set(COMMON_FRAMES)
    with pytest.raises(MeshError, match="not sent in this direction"):
        decode(FROM_PULLING_SIDE, "/mesh/lend", msgpack.packb([[]]), Sender("a"))


@pytest.mark.parametrize(
    ("destination", "fields"),
    [
        ("/mesh/ack", [0, {}, {}]),
        ("/mesh/ack", [-1, {}, {}, None]),
        ("/mesh/ack", [True, {}, {}, None]),
        ("/mesh/ack", [0, [], {}, None]),
        ("/mesh/ack", [0, {"a": [1]}, {}, None]),
        ("/mesh/ack", [0, {"A!": [1, 1]}, {}, None]),
        ("/mesh/ack", [0, {"a" * 33: [1, 1]}, {}, None]),
        ("/mesh/ack", [0, {"": [1, 1]}, {}, None]),
        ("/mesh/ack", [0, {"a": [1, -1]}, {}, None]),
        ("/mesh/ack", [0, {"a": [1, 1 << 63]}, {}, None]),
        ("/mesh/ack", [0, {"a": [1, 1.0]}, {}, None]),
        ("/mesh/ack", [0, {}, {}, ["a"]]),
        ("/mesh/credit", [["/topic/x", 1]]),
        ("/mesh/credit", [["/queue/x", -(1 << 63)]]),
        ("/mesh/waiting", [{"/topic/x": True}]),
        ("/mesh/waiting", [{"/queue/x": 1}]),
        ("/mesh/waiting", [["/queue/x"]]),
        ("/mesh/credit", [["/queue/x\0a = 1", 1]]),
        ("/mesh/credit", [["/queue/x\0a =\0000", 1]]),
        ("/mesh/credit", [["/queue/x\0a = 1\0-1", 1]]),
        ("/mesh/credit", [["/topic/x\0a = 1\0000", 1]]),
        ("/mesh/forgotten", [["/topic/x"]]),
        ("/mesh/forgotten", ["/queue/x"]),
        ("/mesh/lend", [[["/queue/t", b"", True, [1, 1, 0, 0, b""], 0, "a = 1"]]]),
        ("/mesh/credit", [["/queue/x"]]),
        ("/mesh/credit", [["/queue/" + "x" * 2000, 1]]),
        ("/mesh/settled", [[["a", 1]]]),
        ("/mesh/settled", [[["a", 1, ["x"]]]]),
        ("/mesh/settled", [[[1, 1, [1]]]]),
        ("/mesh/returned", [["a", 1, 2, 1]]),
        ("/mesh/held", [[]]),
        ("/mesh/welcome", []),
        ("/mesh/welcome", {}),
        ("/mesh/topics", [[["/topic/t", b"", False, [1, -1, 0, 0]]]]),
        ("/mesh/topics", [[["/topic/t", b"", False, [1, 1, 0, 0, b""]]]]),
        ("/mesh/topics", [[["/topic/t", "", False, [1, -1, 0, 0, b""]]]]),
        ("/mesh/topics", [[["/queue/t", b"", False, [1, -1, 0, 0, b""]]]]),
        ("/mesh/topics", [[["/topic/t", b"a:b", False, [1, -1, 0, 0, b""]]]]),
        ("/mesh/topics", [[["/topic/t", b"a:b\n\nx:y\n", False, [1, -1, 0, 0, b""]]]]),
        ("/mesh/topics", [[["/topic/t", b"\n", False, [1, -1, 0, 0, b""]]]]),
        ("/mesh/topics", [[["/topic/t", b"a:\0\n", False, [1, -1, 0, 0, b""]]]]),
        ("/mesh/topics", [[["/topic/t", b"", False, [1, -1, 0, 0, b""], 3]]]),
        ("/mesh/retained", [["/topic/t", b"", "a", 1, -1, 0, 1]]),
        ("/mesh/retained", [["/topic/t", b"", "a", 1, -1, 0, 0, b""]]),
        ("/mesh/retained", [["/topic/t", b"", "a", 1, 1, 0, 1, b""]]),
        ("/mesh/retained", [["/topic/t", b"", "a", 1, -1, 1 << 63, 1, b""]]),
        ("/mesh/retained", [["/topic/t.*", b"", "a", 1, -1, 0, 1, b""]]),
        ("/mesh/retained", [["/queue/t", b"", "a", 1, -1, 0, 1, b""]]),
        ("/mesh/retained", [["/topic/t", b"a:b", "a", 1, -1, 0, 1, b""]]),
        ("/mesh/retained", [["/topic/t", b"", "A", 1, -1, 0, 1, b""]]),
        ("/mesh/lend", [[["/queue/t", b"", True, [1, -1, 0, 0, b""]]]]),
        ("/mesh/lend", [[["/queue/t", b"", True, [1, 1, 0, -3, b""]]]]),
        ("/mesh/lend", [[["/queue/t", b"", True, [1, 1, 0, 0, "text"]]]]),
        ("/mesh/reach", [0, ["a"]]),
        ("/mesh/reach", [-1, []]),
        ("/mesh/wants", ["a", 1, -2, 0, 0, 0, True, {}]),
        ("/mesh/wants", ["a", 1, 0, -1, 0, 0, True, {}]),
        ("/mesh/wants", ["a", 1, 0, 1, 0, 0, 1, {}]),
        ("/mesh/wants", ["a", 1, 0, 1, 0, 0, True, {"/queue/x": True}]),
        ("/mesh/wants", ["A", 1, 0, 1, 0, 0, True, {}]),
        ("/mesh/wants", ["a", 1, 0, 1, 0, 0, True]),
        ("/mesh/heard", [["a", 1]]),
        ("/mesh/heard", [["a", 1, -2]]),
        ("/mesh/passed", ["b", "a", [["/queue/t", b"", False, [1, -1, 0, 0, b""]]]]),
        ("/mesh/passed", ["b", "A", []]),
        ("/mesh/passed", ["b", "a", [["/reply-queue/x", b"", False, [1, -1, 0, 0, b""]]], True]),
        ("/mesh/replies", [[["/reply-queue/x", b"", False, [1, -1, 0, 0, b""]]]]),
        ("/mesh/replies", [[["/reply-queue/a.g.1", b"", False, [1, -1, 0, 0, b""]]]]),
        ("/mesh/passed", ["", "a", []]),
        ("/mesh/journal", [b""]),
        ("/queue/x", []),
    ],
)
def test_anything_that_the_table_does_not_list_is_refused(destination: str, fields: object) -> None:
    with pytest.raises(MeshError) as refused:
        decode(BOTH, destination, msgpack.packb(fields), Sender("a"))

    assert refused.value.code == "bad-frame"
    assert refused.value.message


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(destination=st.sampled_from(sorted(BOTH)), value=VALUES)
def test_any_value_is_a_frame_or_one_mesh_error(destination: str, value: object) -> None:
    try:
        decode(BOTH, destination, msgpack.packb(value), Sender("a"))
    except MeshError as error:
        assert error.code == "bad-frame"


@given(destination=st.sampled_from(sorted(BOTH)), body=st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_one_mesh_error(destination: str, body: bytes) -> None:
    try:
        decode(BOTH, destination, body, Sender("a"))
    except MeshError as error:
        assert error.code == "bad-frame"


@given(frame=st.sampled_from(FRAMES), data=st.data())
def test_a_frame_with_a_changed_byte_is_a_frame_or_one_mesh_error(frame: MeshFrame, data: st.DataObject) -> None:
    destination, body = pack(frame)
    at = data.draw(st.integers(0, len(body) - 1))
    changed = body[:at] + bytes([data.draw(st.integers(0, 255))]) + body[at + 1 :]
    try:
        decode(BOTH, destination, changed, Sender("a"))
    except MeshError as error:
        assert error.code == "bad-frame"


def test_a_release_names_as_many_messages_as_consumers_may_have() -> None:
    release = Release("a", 3, {A: 7}, {"b": [Dot(A, sequence) for sequence in range(1, 300_001)]})

    assert through(release) == release


@pytest.mark.parametrize("error", [TypeError, OverflowError])
@pytest.mark.parametrize("destination", sorted(BOTH))
def test_what_compiled_code_raises_for_a_value_of_another_type_is_a_mesh_error(
    destination: str, error: type[Exception]
) -> None:
    def raises(fields: list[object], sender: Sender) -> MeshFrame:
        raise error("str object expected; got bytes")

    row = BOTH[destination]._replace(check=raises)

    with pytest.raises(MeshError) as refused:
        decode({destination: row}, destination, msgpack.packb([0] * row.fields_min), Sender("a"))

    assert refused.value.code == "bad-frame"


@pytest.mark.parametrize("name", [b"n", 1, None, (1, 2)])
def test_a_name_of_another_type_is_refused(name: object) -> None:
    for fields in ([{name: 1}, 1, {b"a": 0}], [{name: [1, 2]}, 1], [{name: {}}, 0]):
        with pytest.raises(MeshError):
            decode(BOTH, "/mesh/welcome", msgpack.packb(fields), Sender("a"))


def test_a_map_as_the_key_of_a_map_is_refused() -> None:
    with pytest.raises(MeshError):
        decode(BOTH, "/mesh/welcome", b"\x92\x81\x81\x01\x01\x01\x00", Sender("a"))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(MeshError):
        decode(BOTH, "/mesh/welcome", b"\x91" * 100_000 + b"\xc0", Sender("a"))


@pytest.mark.parametrize(
    ("destination", "element"),
    [
        # Each bound and each kind of element; the element that takes most memory at the bound that allows most.
        ("/mesh/held", b"\x80"),
        ("/mesh/topics", b"\x90"),
        ("/mesh/question", b"\x05"),
        ("/mesh/ack", b"\x90"),
    ],
)
def test_a_frame_of_millions_of_elements_is_refused_while_it_is_unpacked(destination: str, element: bytes) -> None:
    bound = BOTH[destination].bound
    each = bound.elements_max // 2
    many = bound.body_bytes_max // (each + 5) - 1
    body = b"\xdd" + many.to_bytes(4, "big") + (b"\xdd" + each.to_bytes(4, "big") + element * each) * many
    tracemalloc.start()

    with pytest.raises(MeshError, match=f"over {bound.elements_max} elements|exceeds max_array_len"):
        decode(BOTH, destination, body, Sender("a"))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 160 << 20


@pytest.mark.parametrize("destination", sorted(BOTH))
def test_a_frame_that_is_no_batch_is_bounded_by_its_kind(destination: str) -> None:
    bound = BOTH[destination].bound.body_bytes_max

    with pytest.raises(MeshError, match=f"is over {bound}"):
        decode(BOTH, destination, bytes(bound + 1), Sender("a"))
