import pytest

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp import Version
from qmq.wire.stomp.grammar import parse_content_length, parse_headers, parse_receipt, unescape

V10, V11, V12 = Version.V10, Version.V11, Version.V12


def test_four_escapes_of_1_2() -> None:
    assert unescape(r"a\nb\cc\\d\re", V12) == "a\nb:c\\d\re"


def test_escaped_backslash_before_a_letter_is_not_an_escape() -> None:
    assert unescape(r"\\n\\\\t", V12) == r"\n\\t"


def test_1_1_has_no_escape_for_carriage_return() -> None:
    assert unescape(r"a\nb\cc\\", V11) == "a\nb:c\\"

    with pytest.raises(RemoteProtocolError) as refused:
        unescape(r"a\r", V11)

    assert refused.value.code == "bad-escape"
    assert "1.1" in refused.value.detail
    assert r"\r" not in refused.value.detail


def test_1_0_has_no_escapes() -> None:
    assert unescape(r"C:\new\temp", V10) == r"C:\new\temp"


@pytest.mark.parametrize("text", ["\\t", "a\\", "\\0", "\\N", "\\:", "\\\\\\", "x\\\N{BELL}"])
def test_undefined_escape_is_named_in_ascii_with_the_allowed_ones(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        unescape(text, V12)

    assert refused.value.code == "bad-escape"
    assert "undefined escape" in refused.value.message
    assert refused.value.message.isascii()
    assert "Value Encoding" in refused.value.detail
    assert r"\n \c \\ \r" in refused.value.detail


def test_first_of_repeated_headers_wins_and_order_is_kept() -> None:
    headers = parse_headers("SEND\nb:1\na:2\nb:3\nc:4", V12)

    assert list(headers.items()) == [("b", "1"), ("a", "2"), ("c", "4")]


def test_blanks_empty_values_and_raw_colons_belong_to_the_value() -> None:
    assert parse_headers("SEND\n k :  v \nempty:\ndestination:/queue/a:b:c", V12) == {
        " k ": "  v ",
        "empty": "",
        "destination": "/queue/a:b:c",
    }


def test_one_carriage_return_is_dropped_from_each_line_end() -> None:
    assert parse_headers("SEND\r\na:1\r\nb:2\r\r\nc:3\nd:x\ry", V10) == {"a": "1", "b": "2\r", "c": "3", "d": "x\ry"}


def test_escaped_carriage_return_at_the_end_of_a_value_is_kept() -> None:
    assert parse_headers("SEND\r\na:1\\r\r\nb:2\\r", V12) == {"a": "1\r", "b": "2\r"}


def test_names_are_unescaped_too() -> None:
    assert parse_headers("SEND\na\\cb:1", V12) == {"a:b": "1"}


def test_receipt_and_content_length_are_not_among_the_headers() -> None:
    assert parse_headers("SEND\nreceipt:1\ncontent-length:3\na:1", V12) == {"a": "1"}


@pytest.mark.parametrize("line", ["novalue", ":value", "\r", ":"])
def test_line_without_name_and_colon_is_refused(line: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        parse_headers(f"SEND\na:1\n{line}\nb:2", V12)

    assert refused.value.code == "bad-header"
    assert refused.value.message.isprintable()


def test_long_and_strange_lines_are_shown_short_and_in_ascii() -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        parse_headers("SEND\n" + "\N{SNOWMAN}\x1b" * 500, V12)

    assert refused.value.message.isascii()
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 600


@pytest.mark.parametrize(("raw", "length"), [(b"0", 0), (b"7", 7), (b"007", 7), (b"9999999999", 9999999999)])
def test_content_length_is_one_to_ten_digits(raw: bytes, length: int) -> None:
    assert parse_content_length(raw) == length


@pytest.mark.parametrize("raw", [b"", b"-1", b"+1", b" 1", b"1 ", b"1.0", b"0x1", b"1_0", b"00000000001", b"\xd9\xa1"])
def test_any_other_content_length_is_refused(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        parse_content_length(raw)

    assert refused.value.code == "bad-content-length"


def test_receipt_is_unescaped_as_the_version_says() -> None:
    assert parse_receipt(rb"a\cb", V12) == "a:b"
    assert parse_receipt(rb"a\cb", V10) == r"a\cb"

    with pytest.raises(RemoteProtocolError, match="bad-utf8"):
        parse_receipt(b"\xff", V12)
