"""The frames table: what is packed comes back, and nothing else gets through."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.broker.destination import Kind
from qmq.broker.message import Envelope, Message
from qmq.dots import Dot, Origin
from qmq.errors import MeshError
from qmq.replication.frames import (
    FROM_FOLLOWER,
    TO_FOLLOWER,
    Ack,
    Credit,
    Gap,
    Held,
    Hole,
    Interest,
    Lend,
    MeshFrame,
    Returned,
    Settled,
    Topics,
    Welcome,
    decode,
    pack,
)
from qmq.replication.values import Sender

A, A2, B = Origin("a", 1), Origin("a", (1 << 64) - 1), Origin("b", 0)
BOTH = {**FROM_FOLLOWER, **TO_FOLLOWER}

FRAMES: list[MeshFrame] = [
    Ack(3, {A: 7, A2: 1, B: (1 << 63) - 1}, {A: 6}, (A, B)),
    Ack(0, {}, {}, None),
    Ack(0, {}, {}, ()),
    Interest({"/topic/a": True, "/topic/b.*": False, "/topic/#": True}),
    Credit([("/queue/jobs", 5), ("/queue/other", 0)]),
    Settled([Dot(A, 1), Dot(A, 3), Dot(A2, -4)]),
    Returned([(Dot(A, 2), True), (Dot(A2, -1), False), (Dot(A, 1), True)]),
    Held([Dot(A, 1)], {B: 9}),
    Welcome({A: 3}),
    Gap([(A, 3), (B, 1)]),
    Hole((A, B)),
]


def through(frame: MeshFrame, sender: Sender | None = None) -> MeshFrame:
    destination, body = pack(frame)
    return decode(BOTH, destination, body, Sender("a") if sender is None else sender)


def message(body: bytes, destination: str, kind: Kind, sequence: int, headers: bytes = b"k:v\n") -> Message:
    return Message(Envelope(destination, kind, headers, sequence > 0), body, A, sequence, 17)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_what_is_packed_comes_back(frame: MeshFrame) -> None:
    assert through(frame) == frame


def test_lent_messages_come_back_with_their_lender_as_owner_and_their_attempts() -> None:
    one = message(b"one", "/queue/jobs", Kind.QUEUE, 5)
    one.attempts = 2
    memory = message(b"\0\xff", "/queue/jobs", Kind.QUEUE, -1)

    found = through(Lend([one, memory]))

    assert isinstance(found, Lend)
    assert [(m.dot, m.body, m.attempts, m.owner, m.timestamp_us) for m in found.messages] == [
        (Dot(A, 5), b"one", 2, "a", 17),
        (Dot(A, -1), b"\0\xff", 0, "a", 17),
    ]
    assert [m.envelope.durable for m in found.messages] == [True, False]


def test_topic_messages_share_their_envelope_over_frames() -> None:
    sender = Sender("a")
    first = through(
        Topics([message(b"1", "/topic/t", Kind.TOPIC, -1), message(b"2", "/topic/u", Kind.TOPIC, -2)]), sender
    )
    second = through(Topics([message(b"3", "/topic/t", Kind.TOPIC, -3)]), sender)

    assert isinstance(first, Topics) and isinstance(second, Topics)
    assert first.messages[0].envelope is second.messages[0].envelope
    assert first.messages[0].owner is None
    assert first.messages[0].envelope.headers == b"k:v\n"


def test_elements_that_a_later_version_adds_are_ignored() -> None:
    body = msgpack.packb([{"a": [1, 3]}, "new"])

    assert decode(BOTH, "/mesh/welcome", body, Sender("a")) == Welcome({A: 3})


def test_each_direction_has_its_own_frames() -> None:
    assert not set(FROM_FOLLOWER) & set(TO_FOLLOWER)
    with pytest.raises(MeshError, match="not sent in this direction"):
        decode(FROM_FOLLOWER, "/mesh/lend", msgpack.packb([[]]), Sender("a"))


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
        ("/mesh/interest", [{"/queue/x": True}]),
        ("/mesh/interest", [{"/topic/x": 1}]),
        ("/mesh/interest", [{"/topic/x*y": True}]),
        ("/mesh/interest", [["/topic/x"]]),
        ("/mesh/credit", [["/topic/x", 1]]),
        ("/mesh/credit", [["/queue/x", -1]]),
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
        ("/mesh/lend", [[["/queue/t", b"", True, [1, -1, 0, 0, b""]]]]),
        ("/mesh/lend", [[["/queue/t", b"", True, [1, 1, 0, -1, b""]]]]),
        ("/mesh/lend", [[["/queue/t", b"", True, [1, 1, 0, 0, "text"]]]]),
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


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(MeshError):
        decode(BOTH, "/mesh/welcome", b"\x91" * 100_000 + b"\xc0", Sender("a"))
