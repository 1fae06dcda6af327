"""Headers of the PROXY protocol: what they say, what is refused, and that no byte of the client is taken."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.wire.proxy_protocol import BODY_BYTES_MAX, SIGNATURE, ProxiedClient, bytes_missing, read_header

TCP4, TCP6, UDP4, UNIX = 0x11, 0x21, 0x12, 0x31
IPV4 = bytes([203, 0, 113, 7, 10, 0, 0, 1]) + pack(">HH", 40_000, 61613)
IPV6 = bytes.fromhex("20010db8" + "00" * 11 + "07") + bytes(16) + pack(">HH", 40_000, 61613)
CLIENT = ProxiedClient("203.0.113.7", 40_000)


def binary(body: bytes, family: int = TCP4, command: int = 0x21) -> bytes:
    return SIGNATURE + pack(">BBH", command, family, len(body)) + body


def value(kind: int, data: bytes) -> bytes:
    return pack(">BH", kind, len(data)) + data


def tls(common_name: bytes, *, client: int = 0x03, unverified: int = 0) -> bytes:
    inner = value(0x21, b"TLSv1.3") + value(0x22, common_name)
    return value(0x20, pack(">BI", client, unverified) + inner)


SAID = [
    (b"PROXY TCP4 203.0.113.7 10.0.0.1 40000 61613\r\n", CLIENT),
    (b"PROXY TCP6 2001:db8::7 ::1 40000 61613\r\n", ProxiedClient("2001:db8::7", 40_000)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
    (binary(IPV4), CLIENT),
    (binary(IPV6, TCP6), ProxiedClient("2001:db8::7", 40_000)),
    (binary(b"", 0, 0x20), None),
    (binary(IPV4, TCP4, 0x20), None),
    (binary(b"anything", 0), None),
    (binary(bytes(216), UNIX), None),
    (binary(IPV4 + value(0x04, b"padding") + tls(b"ann")), CLIENT._replace(common_name="ann")),
    (binary(IPV4 + tls("Søren".encode(), client=0x05)), CLIENT._replace(common_name="Søren")),
    (binary(IPV4 + tls(b"ann", client=0x01)), CLIENT),
    (binary(IPV4 + tls(b"ann", unverified=1)), CLIENT),
]


def received(stream: bytes) -> bytes:
    """The header as a reader takes it, that many bytes at a time as it may."""
    taken = b""
    while missing := bytes_missing(taken):
        assert len(stream) >= len(taken) + missing, "it wants more than there is"
        taken += stream[len(taken) : len(taken) + missing]
    return taken


@pytest.mark.parametrize(("header", "said"), SAID)
def test_a_header_names_the_client_and_no_byte_behind_it_is_taken(header: bytes, said: ProxiedClient | None) -> None:
    assert received(header + b"CONNECT\n\n\0") == header

    assert read_header(header) == said


@pytest.mark.parametrize(
    "header",
    [
        b"CONNECT\naccept-version:1.2\n\n\0",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 40000\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 65536 61613\r\n",
        b"PROXY TCP4 203.0.113.256 10.0.0.1 40000 61613\r\n",
        b"PROXY TCP4 2001:db8::7 ::1 40000 61613\r\n",
        b"PROXY TCP6 203.0.113.7 10.0.0.1 40000 61613\r\n",
        b"PROXY TCP4 203.0.113.7 nowhere 40000 61613\r\n",
        b"PROXY  TCP4 203.0.113.7 10.0.0.1 40000 61613\r\n",
        b"PROXY UNKNOWNLY 203.0.113.7\r\n",
        b"PROXY TCP4 " + b"1" * 100 + b"\r\n",
        binary(IPV4, UDP4),
        binary(IPV4, TCP4, 0x22),
        binary(IPV4, TCP4, 0x11),
        binary(IPV4[:-1]),
        binary(IPV4, TCP6),
        binary(IPV4 + b"\x20\x00"),
        binary(IPV4 + b"\x20\x00\x05\x01"),
        binary(IPV4 + value(0x20, b"\x07")),
        binary(IPV4 + tls(b"\xff")),
        binary(IPV4 + value(0x04, bytes(BODY_BYTES_MAX))),
    ],
)
def test_a_wrong_header_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_header(received(header))


@given(header=st.sampled_from([header for header, _ in SAID]), cut=st.integers(0, 300))
def test_a_header_that_is_cut_anywhere_is_never_complete(header: bytes, cut: int) -> None:
    assert bytes_missing(header[: min(cut, len(header) - 1)]) > 0


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda data: SIGNATURE + data))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        if not bytes_missing(data):
            read_header(data)
    except ValueError as refused:
        assert str(refused)
