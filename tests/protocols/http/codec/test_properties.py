"""What holds for every stream: cut anywhere it means the same, and nothing but a refusal is raised."""

from hypothesis import given, settings
from hypothesis import strategies as st

from qmq.protocols.http.codec import HttpLimits
from tests.protocols.http.codec.support import SMALL, chunked, outcome, post, request

REQUESTS = st.sampled_from(
    [
        request("GET /a HTTP/1.1"),
        request("GET /a HTTP/1.1", "x: 1"),
        request("GET /a%2Fb?c=d HTTP/1.1", "x: 1", "x: 2"),
        post(b""),
        post(b"one"),
        post(b"\r\n\r\n" * 9),
        post(b"two", "Expect: 100-continue"),
        chunked(),
        chunked(b"a", b"bc" * 20),
        b"\r\n" + request(),
        request("GET / HTTP/1.1", "Connection: close"),
        request("GET / HTTP/1.0"),
        # Refused:
        request("GET / HTTP/1.1", "x: 1\r\n 2"),
        request("GET / HTTP/1.1", "x: \r1"),
        request("GET / HTTP/1.1", "x: \n1"),
        request("GET / HTTP/1.1", "x: " + "x" * 190),
        request("GET /" + "x" * 40 + " HTTP/1.1"),
        post(b"x" * 1001),
        chunked(b"x" * 1001),
        chunked(b"a", end=b"0\r\nx: 1\r\n\r\n"),
        b"\r\n\r\n",
    ]
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    pieces = [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return [piece for piece in pieces if piece]


@settings(max_examples=150, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=4), st.lists(st.integers(0, 1 << 16), max_size=6))
def test_stream_means_the_same_however_it_is_cut(parts: list[bytes], places: list[int]) -> None:
    data = b"".join(parts)
    whole = outcome([data], SMALL)

    assert outcome(cut(data, places), SMALL) == whole
    assert outcome([data[at : at + 1] for at in range(len(data))], SMALL) == whole


@settings(max_examples=300, deadline=None)
@given(
    st.lists(REQUESTS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from([*b"\r\n\t :/%0;,\0a\x80"])), max_size=4),
    st.lists(st.integers(0, 1 << 16), max_size=4),
)
def test_damaged_stream_is_refused_or_read_the_same_however_it_is_cut(
    parts: list[bytes], damages: list[tuple[int, int]], places: list[int]
) -> None:
    data = bytearray(b"".join(parts))
    for place, octet in damages:
        data[place % len(data)] = octet
    whole = outcome([bytes(data)], SMALL)

    assert outcome(cut(bytes(data), places), SMALL) == whole
    assert outcome([bytes(data[at : at + 1]) for at in range(len(data))], SMALL) == whole


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.booleans())
def test_any_bytes_are_refused_or_wait(pieces: list[bytes], begins_well: bool) -> None:
    outcome([b"POST / HTTP/1.1\r\n", *pieces] if begins_well else pieces, HttpLimits())
