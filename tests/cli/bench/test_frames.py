"""What the generator counts, wherever the reads cut the stream, and what it sends round and round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.bench.frames import (
    BODY_MARK,
    NUMBER,
    RECEIPT_MARK,
    TURN,
    AckCutter,
    MarkCounter,
    Numbered,
    NumberReader,
    body_of,
    numbered_send,
    receipted_sends,
    sends,
)
from qmq.bench.process import usage
from qmq.wire.stomp import Connection, Frame, Role, encode_frame

CONNECT = encode_frame("CONNECT", [("accept-version", "1.2"), ("host", "here")])


def decoded(data: bytes) -> list[Frame]:
    codec = Connection(Role.SERVER)
    frames = codec.receive(CONNECT + data)
    assert codec.error is None
    return frames[1:]


def message(number: int, body: bytes = b"x") -> bytes:
    return encode_frame("MESSAGE", [("subscription", "1"), ("message-id", f"m{number}"), ("ack", str(number))], body)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in zip(ends, ends[1:], strict=False)]


def test_marks_are_counted_at_every_cut() -> None:
    data = message(1, body_of(30)) + message(2, body_of(16))

    for place in range(len(data)):
        counter = MarkCounter(BODY_MARK)
        assert sum(counter.take(piece)[0] for piece in cut(data, [place])) == 2, place


@given(places=st.lists(st.integers(0, 400), max_size=60))
def test_marks_are_counted_in_any_pieces(places: list[int]) -> None:
    data = b"".join(message(number, body_of(40)) for number in range(4))
    counter = MarkCounter(BODY_MARK)

    assert sum(counter.take(piece)[0] for piece in cut(data, [min(place, len(data)) for place in places])) == 4


@given(places=st.lists(st.integers(0, 400), max_size=60))
def test_every_message_is_acknowledged_in_any_pieces(places: list[int]) -> None:
    data = b"".join(message(number) for number in range(5))
    cutter = AckCutter()

    taken = [cutter.take(piece) for piece in cut(data, [min(place, len(data)) for place in places])]

    assert sum(count for count, _ in taken) == 5
    acks = decoded(b"".join(answer for _, answer in taken))
    assert [(frame.head.command, frame.head.headers["id"]) for frame in acks] == [("ACK", str(n)) for n in range(5)]


def test_numbers_come_back_at_every_cut() -> None:
    before, after = numbered_send("/topic/t", 100, [])
    data = b"".join(b"%b%010d%b" % (before, number, after) for number in (7, 4_000_000_000))

    for place in range(len(data)):
        reader = NumberReader()
        assert [n for piece in cut(data, [place]) for n in reader.take(piece)] == [7, 4_000_000_000], place
    assert [len(frame.body) for frame in decoded(data)] == [100, 100]


def test_a_ring_is_whole_frames_again_and_again() -> None:
    ring = sends("/topic/t", 100)
    sent = bytearray()
    while piece := ring.next_piece(5000)[:77_777]:
        sent += piece
        ring.sent_bytes += len(piece)

    frames = decoded(bytes(sent))
    assert len(frames) == ring.begun == 5000
    assert {frame.body for frame in frames} == {body_of(100)}


def test_a_ring_counts_a_frame_that_was_begun() -> None:
    ring = sends("/topic/t", 100)
    ring.sent_bytes = ring.frame_bytes + 1

    assert ring.begun == 2
    assert len(ring.next_piece(2)) == ring.frame_bytes - 1
    assert not ring.next_piece(1)


def test_numbered_frames_go_round_their_names_in_any_pieces() -> None:
    headers = [("destination", "/queue/50%-" + NUMBER), ("receipt", "n" + TURN)]
    frames = Numbered("SEND", headers, b"100 %", count=1500, first=7)
    sent = bytearray()
    while piece := frames.next_piece(4000)[:55_555]:
        sent += piece
        frames.sent_bytes += len(piece)

    found = decoded(bytes(sent))
    assert frames.begun == len(found) == 4000
    assert {frame.body for frame in found} == {b"100 %"}
    names = [f"/queue/50%-{7 + turn % 1500:09}" for turn in range(4000)]
    assert [frame.head.headers["destination"] for frame in found] == names
    assert [frame.receipt for frame in found] == [f"n{turn:09}" for turn in range(4000)]


def test_a_numbered_frame_that_was_begun_is_finished_and_no_other() -> None:
    frames = Numbered("SEND", [("destination", "/topic/" + NUMBER)], count=3)
    frames.sent_bytes = frames.frame_bytes * 1000 + 5

    assert frames.begun == 1001
    assert len(frames.next_piece(1001)) == frames.frame_bytes - 5
    assert not frames.next_piece(1000)


def test_receipts_differ_and_are_counted_apart_from_others() -> None:
    ring = receipted_sends("/queue/q", 50, 10)

    receipts = [frame.receipt for frame in decoded(bytes(ring.next_piece(10_000)))]

    assert len(set(receipts)) == 10_000
    answers = b"".join(encode_frame("RECEIPT", [("receipt-id", str(name))]) for name in [*receipts[:3], "goodbye"])
    assert MarkCounter(RECEIPT_MARK).take(answers) == (3, b"")


@pytest.mark.parametrize("window", [3, 40])
def test_receipts_of_long_frames_differ_as_far_as_their_window_and_all_of_them_fit_into_memory(window: int) -> None:
    ring = receipted_sends("/queue/q", 1 << 20, window)

    receipts = [frame.receipt for frame in decoded(bytes(ring.next_piece(10_000)))]

    assert len(receipts) == len(set(receipts)) == max(window, 16)


def test_a_process_that_has_ended_is_an_error() -> None:
    with pytest.raises(OSError, match="No such"):
        usage(1 << 22 | 1)
