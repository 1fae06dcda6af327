"""Addresses as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:61613", Address("127.0.0.1", 61613)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        ("broker-1.example.org:7", Address("broker-1.example.org", 7)),
    ],
)
def test_an_address_is_read_and_printed_alike(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":61613", "host:65536", "host:-1", "host:+1", "host: 1", "host:٣", "::1:5", "[::1]5"]
    + ["a..b:5", ".a:5", ".:5", "x" * 64 + ":5", "a." + "x" * 64 + ":5", "ö" * 60 + ":5"]
    + ["a_ö:5", "-ö:5", "ö." * 60 + "a:5"]
    + ["[::1:5", "[x]:5", "ho st:5", "a/b:5", "x" * 254 + ":5", "host:000001", "tcp://host:5", "a\n:5"],
)
def test_what_is_no_address_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="^must "):
        parse_address(text)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_recognised(host: str) -> None:
    assert Address(host, 1).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0:0::0"])
def test_a_wildcard_is_recognised(host: str) -> None:
    assert Address(host, 1).is_wildcard


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fd00::", "localhost"])
def test_what_can_be_dialled_is_no_wildcard(host: str) -> None:
    assert not Address(host, 1).is_wildcard


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://x:80", "must have a host name or an IP address before the colon"),
        ("fd00::1:80", "must have an IPv6 address in brackets"),
        ("x:abc", "must have a port from 0 to 65535"),
    ],
)
def test_the_reason_fits_what_was_written(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org"])
def test_what_others_can_reach_is_not_loopback(host: str) -> None:
    assert not Address(host, 1).is_loopback
