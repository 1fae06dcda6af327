"""A run that was not learned yet is compared too, and must never be found in what a stranger sends."""

from collections.abc import Iterable

import pytest

from qmq.wire.stomp import Acks, Connection, Frame, Limits, Role, Sends
from qmq.wire.stomp.runs import NUMBER_DIGITS_MAX, learn_ack
from tests.wire.support import code, fed, logged_in, pieces_of, value, values


@pytest.mark.parametrize("count", [1, 2, 3, 4, 1000])
@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
def test_nul_bytes_are_no_frame_before_login(count: int, size: int) -> None:
    connection = Connection(Role.SERVER, Limits())

    frames = [frame for piece in pieces_of(bytes(count) + b"\n\n\0", size) for frame in connection.receive(piece)]

    assert frames == []
    assert code(connection) == "unknown-command"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 1000])
@pytest.mark.parametrize("before", [b"", b"ACK\nid:1\n\n\0ACK\nid:2\n\n\0", b"SEND\na:1\n\nx\0SEND\na:1\n\ny\0"])
def test_nul_bytes_are_no_frame_after_login(count: int, before: bytes) -> None:
    connection = logged_in()

    frames = connection.receive(before + bytes(count) + b"\n\n\0")

    assert len(frames) == before.count(b"\0")
    assert code(connection) == "unknown-command"


def one_by_one(frames: Iterable[Frame]) -> list[Frame]:
    return [one for frame in frames for one in (frame.one_by_one() if isinstance(frame, Acks | Sends) else [frame])]


def acks(numbers: Iterable[int], form: bytes = b"ACK\nid:%d\n\n\0") -> bytes:
    return b"".join(form % number for number in numbers)


@pytest.mark.parametrize(
    "form",
    [
        b"ACK\nid:%d\n\n\0",
        b"ACK\nid:%d\n\n\0\n",
        b"ACK\nid:%d\n\n\0\r\n",
        b"ACK\r\nid:%d\r\n\r\n\0",
        b"ACK\nsubscription:s\nid:%d\n\n\0\n",
        b"ACK\nid:%d\ncontent-length:0\n\n\0",
        b"ACK\nid:%d\ntransaction:t\n\n\0",
        b"NACK\nid:%d\n\n\0",
        b"ACK\nmessage-id:%d\nsubscription:s\n\n\0",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"\n\n",
        b"SEND\ndestination:/queue/q\n\nACK\nid:9\n\n\0",
        b"ACK\nid:none\n\n\0",
        b"ACK\nid:\n\n\0",
        b"ACK\nid:1234567890123456789\n\n\0",
        b"ACK\nid:5\nreceipt:r\n\n\0",
        b"ACK\nid:5\n\nbody\0",
    ],
)
def test_acks_mean_the_same_gathered_or_one_by_one(form: bytes, size: int, odd: bytes) -> None:
    data = acks(range(8, 40), form) + odd + acks(range(98, 120), form)
    plain, gathering = logged_in(), logged_in(gathers=True)

    expected = fed(plain, pieces_of(data, size))
    gathered = fed(gathering, pieces_of(data, size))

    assert values(one_by_one(gathered)) == values(expected)
    assert code(gathering) == code(plain)


def test_a_read_full_of_acks_is_two_frames_once_their_form_is_known() -> None:
    connection = logged_in(gathers=True)
    connection.receive(acks(range(8, 11)))

    run, last = connection.receive(acks(range(95, 1005)))

    assert isinstance(run, Acks)
    assert (run.head.command, len(run.numbers)) == ("ACK", 909)
    assert value(last) == ("ACK", (("id", "1004"),), b"", None)


def test_a_run_includes_ids_of_the_longest_form_and_ends_before_a_longer_one() -> None:
    frame = acks([1])
    (head,) = logged_in().receive(frame)
    run = learn_ack(frame, 0, len(frame) - 1, head.head)
    ids = [b"12", b"9" * NUMBER_DIGITS_MAX, b"9" * (NUMBER_DIGITS_MAX + 1), b"34", b"last"]

    found = run.numbers(b"".join(b"ACK\nid:%s\n\n\0" % one for one in ids), 0)

    assert found == ids[:2]


def test_acks_among_other_frames_are_searched_for_once_in_a_read() -> None:
    connection = logged_in(gathers=True)
    connection.receive(acks(range(8, 11)))

    frames = connection.receive(
        b"".join(acks([n, n + 1]) + b"BEGIN\ntransaction:%d\n\n\0" % n for n in range(10, 1000))
    )

    assert sum([isinstance(frame, Acks) for frame in frames]) <= 1
    assert len(frames) == 3 * 990


def test_no_client_gets_gathered_acks_unasked() -> None:
    connection = logged_in()

    frames = connection.receive(acks(range(100)))

    assert [type(frame) for frame in frames] == [Frame] * 100


@pytest.mark.parametrize("size", [1, 255, 256, 257, 10_000])
def test_any_number_of_heart_beats_between_frames_is_passed_over(size: int) -> None:
    frame = b"SEND\nd:1\n\n\nx\n\0"
    beats = [b"\n" * 257, b"\r\n" * 300, b"\n", b"\n\n", b"", b"\n" * 5000]

    frames = fed(logged_in(), pieces_of(frame + b"".join(each + frame for each in beats), size))

    assert [one.body for one in frames] == [b"\nx\n"] * 7


@pytest.mark.parametrize(
    "form",
    [
        b"SEND\nd:1\n\n%b\0",
        b"SEND\nd:1\n\n%b\0\n",
        b"SEND\nd:1\ncontent-length:%d\n\n%b\0",
        b"SEND\nd:1\ncontent-length:%d\n\n%b\0\n",
        b"SEND\r\nd:1\r\ncontent-length:%d\r\n\r\n%b\0\r\n",
        b"SEND\nd:1\nreceipt:r\n\n%b\0",
        b"SEND\nd:1\nreceipt:r\ncontent-length:%d\n\n%b\0",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize(
    "odd",
    [
        [],
        [b"longer than the others"],
        [b""],
        # As if another frame of the same kind began within a body.
        [b"\0SEND\nd:1\n\nx", b"a\0SEND\nd:1\ncontent-length:6\n\nbcdefg", b"\0\0\0\0\0\0"],
    ],
)
def test_sends_mean_the_same_gathered_or_one_by_one(form: bytes, size: int, odd: list[bytes]) -> None:
    bodies = [*[b"body%02d" % n for n in range(20)], *odd, *[b"BODY%02d" % n for n in range(20)], b"", b"", b""]
    data = b"".join(form % ((len(body), body) if b"%d" in form else (body,)) for body in bodies)
    plain, gathering = logged_in(), logged_in(gathers=True)

    expected = fed(plain, pieces_of(data, size))
    gathered = fed(gathering, pieces_of(data, size))

    assert values(one_by_one(gathered)) == values(expected)
    assert code(gathering) == code(plain)


@pytest.mark.parametrize(
    "form",
    [
        b"SEND\nd:1\nreceipt:%b\n\n%b\0",
        b"SEND\nreceipt:%b\nd:1\n\n%b\0\n",
        b"SEND\nd:1\ncontent-length:6\nreceipt:%b\n\n%b\0",
        b"SEND\nd:1\nreceipt:%b\ncontent-length:6\n\n%b\0\n",
        b"SEND\nreceipt:%b\nd:1\ncontent-length:6\n\n%b\0\n\n",
        b"SEND\r\nd:1\r\nreceipt:%b\r\ncontent-length:6\r\n\r\n%b\0",
        b"SEND\nd:1\nreceipt:%b\nreceipt:1\n\n%b\0",
    ],
)
@pytest.mark.parametrize("size", [1, 40, 97, 10_000])
@pytest.mark.parametrize(
    ("receipt", "body"),
    [
        (b"r-99", b"body.."),
        (b"", b"......"),
        (b"long" * 50, b"body.."),
        (b"a\\cb", b"body.."),
        (b"\xc3\xa4", b"body.."),
        (b"\t", b"body.."),
        (b"r-1\n\nx", b"body.."),
        (b"r-1\nx:y", b"body.."),
        (b"r-1", b"sixteen is more"),
        (b"r-1", b"\0SEND\n"),
        (b"r-1", b"\0\0\0\0\0\0"),
        (b"r\0", b"body.."),
    ],
)
def test_sends_that_ask_for_receipts_mean_the_same_gathered_or_one_by_one(
    form: bytes, size: int, receipt: bytes, body: bytes
) -> None:
    regular = [(b"r-%d" % n, b"body%02d" % n) for n in range(5, 30)]
    data = b"".join(form % one for one in [*regular, (receipt, body), *regular[::-1]])
    plain, gathering = logged_in(), logged_in(gathers=True)

    expected = fed(plain, pieces_of(data, size))
    gathered = fed(gathering, pieces_of(data, size))

    assert values(one_by_one(gathered)) == values(expected)
    assert code(gathering) == code(plain)


@pytest.mark.parametrize("length", [b"", b"content-length:1\n"])
def test_a_read_full_of_sends_that_differ_in_their_receipt_is_two_frames(length: bytes) -> None:
    connection = logged_in(gathers=True)
    form = b"SEND\nd:1\n" + length + b"receipt:%d\n\n%d\0"
    connection.receive(b"".join(form % (n, 0) for n in range(6)))

    run, last = connection.receive(b"".join(form % (n, n % 10) for n in range(100, 200)))

    assert isinstance(run, Sends)
    assert run.bodies == [b"%d" % (n % 10) for n in range(99)]
    assert run.receipts == [str(n) for n in range(100, 199)]
    assert (last.receipt, last.body) == ("199", b"9")


@pytest.mark.parametrize("length", [b"", b"content-length:1\n"])
def test_a_read_full_of_alike_sends_is_two_frames_once_their_form_is_known(length: bytes) -> None:
    connection = logged_in(gathers=True)
    frame = b"SEND\nd:1\n" + length + b"\n%b\0"
    connection.receive(frame % b"a" * 6)

    run, last = connection.receive(b"".join(frame % b"%d" % (n % 10) for n in range(100)))

    assert isinstance(run, Sends)
    assert run.bodies == [b"%d" % (n % 10) for n in range(99)]
    assert value(last) == value(run.one_by_one()[9])


@pytest.mark.parametrize("before", [b"", b"SEND\na:1\n\nx\0" * 4])
def test_a_body_without_a_length_is_bounded_in_a_run_too(before: bytes) -> None:
    limits = Limits(body_bytes_max=10)
    connection = logged_in(limits=limits, gathers=True)

    frames = fed(connection, [before, b"SEND\na:1\n\n%b\0" % (b"x" * 10) + b"SEND\na:1\n\n%b\0" % (b"x" * 11) * 3])

    assert [one.body for one in one_by_one(frames)][-1] == b"x" * 10
    assert code(connection) == "body-too-large"


def test_no_client_gets_gathered_sends_unasked() -> None:
    connection = logged_in()

    frames = connection.receive(b"SEND\na:1\n\nx\0" * 100)

    assert [type(frame) for frame in frames] == [Frame] * 100
