"""Blocks that are read by their form mean what they mean read alone, and break the same rules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qmq.wire.stomp import HeadCaches, Limits, Version
from qmq.wire.stomp.cache import CACHED_BLOCK_BYTES_MAX, FORMS_MAX, HeadCache
from tests.wire.support import code, logged_in, values

VALUES = st.one_of(
    st.sampled_from(["/queue/a", "/topic/b", "/queue/c:d", "", " ", "é", "a\\cb", "a\\\\b", "x" * 200, "a\rb", "b\r"]),
    st.text("abc/.*-0123456789", max_size=20),
)
LINES = st.lists(
    st.tuples(st.sampled_from(["destination", "receipt", "destination2", "type", "x\\cy"]), VALUES),
    max_size=4,
)


@st.composite
def sends(draw: st.DrawFn) -> list[bytes]:
    """SENDs of one or two shapes, whose values differ."""
    shapes = draw(st.lists(LINES, min_size=1, max_size=2))
    frames: list[bytes] = []
    for shape in draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=8)):
        lines = [(name, draw(VALUES) if name in ("destination", "receipt") else value) for name, value in shape]
        body = draw(st.binary(max_size=5)).replace(b"\0", b"")
        length = f"content-length:{len(body)}\n" if draw(st.booleans()) else ""
        head = "".join(f"{name}:{value}\n" for name, value in lines)
        frames.append(f"SEND\n{head}{length}\n".encode() + body + b"\0")
    return frames


@settings(max_examples=400)
@given(sends(), st.sampled_from(list(Version)), st.sampled_from([2, 3, 100]))
def test_a_send_among_others_like_it_means_the_same_as_alone(
    frames: list[bytes], version: Version, headers: int
) -> None:
    limits = Limits(header_count_max=headers)
    together = logged_in(version, limits)

    found = values(together.receive(b"".join(frames)))

    for index, frame in enumerate(frames):
        isolated_mode = logged_in(version, limits)
        expected = values(isolated_mode.receive(frame))
        assert found[index : index + 1] == expected
        if not expected:
            assert (code(together), together.error_receipt) == (code(isolated_mode), isolated_mode.error_receipt)
            break


def test_a_new_destination_is_read_by_the_form_of_others() -> None:
    connection = logged_in()
    frames = connection.receive(
        b"".join(
            b"SEND\ntype:t\ndestination:/queue/%d\nreceipt:r%d\ncontent-length:1\n\n%d\0" % (n, n, n) for n in range(9)
        )
    )

    assert [frame.head.headers["destination"] for frame in frames] == [f"/queue/{n}" for n in range(9)]
    assert [(frame.receipt, frame.body) for frame in frames] == [(f"r{n}", b"%d" % n) for n in range(9)]
    assert len({id(frame.head) for frame in frames}) == 9
    assert len({id(frame.head.form) for frame in frames}) == 1
    assert list(frames[8].head.headers) == ["type", "destination"]


def test_the_same_destination_again_has_the_same_head() -> None:
    connection = logged_in()
    stream = b"".join(b"SEND\ndestination:/queue/%d\nreceipt:%d\n\n\0" % (n % 3, n) for n in range(9))

    frames = connection.receive(stream)

    assert len({id(frame.head) for frame in frames}) == 3


def test_receipts_that_count_up_under_one_destination_become_a_run() -> None:
    connection = logged_in()
    stream = [b"SEND\ndestination:/queue/%d\nreceipt:%d\n\n\0" % (0 if n else 1, n) for n in range(9)]

    frames = connection.receive(b"".join(stream)) + connection.receive(b"".join(stream))

    assert [frame.receipt for frame in frames] == [str(n) for n in range(9)] * 2


def test_forms_are_bounded() -> None:
    caches = HeadCaches()
    connection = logged_in(caches=caches)

    for n in range(FORMS_MAX + 10):
        connection.receive(b"SEND\ndestination:/queue/a\nx:%d\n\n\0" % n)

    forms = caches.cache(Version.V12, Limits()).forms
    assert forms.read(b"SEND\ndestination:/queue/b\nx:%d" % (FORMS_MAX + 9)) is not None
    assert forms.read(b"SEND\ndestination:/queue/b\nx:0") is None


@pytest.mark.parametrize("block", [b"SEND", b"SEND\nx:1", b"SEND\ndestination:", b"SEND\ndestination:a"])
def test_what_no_form_fits_is_left_to_the_long_way(block: bytes) -> None:
    assert HeadCache().forms.read(block) is None


def test_a_receipt_may_be_the_header_too_many() -> None:
    connection = logged_in(limits=Limits(header_count_max=2))

    frames = connection.receive(
        b"SEND\ndestination:/queue/a\nx:1\n\n\0SEND\ndestination:/queue/b\nx:1\nreceipt:r\n\n\0"
    )

    assert len(frames) == 1
    assert (code(connection), connection.error_receipt) == ("too-many-headers", "r")


def test_a_form_is_remembered_of_blocks_that_are_no_longer_than_those_that_are_remembered_whole() -> None:
    caches = HeadCaches()
    connection = logged_in(caches=caches)

    for padding in (CACHED_BLOCK_BYTES_MAX - 100, CACHED_BLOCK_BYTES_MAX):
        connection.receive(b"".join(b"SEND\ndestination:/queue/%d\nx:%b\n\n\0" % (n, b"p" * padding) for n in range(9)))

    forms = caches.cache(Version.V12, Limits()).forms._forms
    assert len(forms) == 1
    assert all(len(form) <= CACHED_BLOCK_BYTES_MAX for form in forms)
