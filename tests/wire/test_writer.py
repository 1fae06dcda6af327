import pytest

from qmq.errors import LocalProtocolError
from qmq.wire.stomp import HEARTBEAT, Version, convert_headers, encode_frame, encode_headers, encode_receipts

V10, V11, V12 = Version.V10, Version.V11, Version.V12


def test_frame_ends_with_nul_and_one_line_feed() -> None:
    assert encode_frame("RECEIPT", [("receipt-id", "7")]) == b"RECEIPT\nreceipt-id:7\n\n\0\n"


@pytest.mark.parametrize("command", ["SEND", "MESSAGE", "ERROR"])
def test_content_length_is_always_sent_where_a_body_may_be(command: str) -> None:
    assert encode_frame(command, [("a", "b")]) == command.encode() + b"\na:b\ncontent-length:0\n\n\0\n"
    assert encode_frame(command, [], b"x\0y") == command.encode() + b"\ncontent-length:3\n\nx\0y\0\n"


def test_heartbeat_is_a_bare_line_feed() -> None:
    assert HEARTBEAT == b"\n"


def test_1_2_escapes_four_characters_in_names_and_values() -> None:
    assert encode_headers([("a:b", "c\nd\re\\f:g")], V12) == b"a\\cb:c\\nd\\re\\\\f\\cg\n"


def test_1_1_escapes_three_and_1_0_none() -> None:
    assert encode_headers([("k", "a\rb\\c:d")], V11) == b"k:a\rb\\\\c\\cd\n"
    assert encode_headers([("k", "a\rb\\c:d")], V10) == b"k:a\rb\\c:d\n"


@pytest.mark.parametrize("command", ["CONNECT", "STOMP", "CONNECTED"])
def test_login_frames_are_never_escaped(command: str) -> None:
    frame = encode_frame(command, [("server", "QMQ:1\\2")], version=V12)

    assert frame == command.encode() + b"\nserver:QMQ:1\\2\n\n\0\n"


@pytest.mark.parametrize("version", [V10, V11, V12])
@pytest.mark.parametrize("header", [("a\0", "b"), ("a", "\0"), ("", "b"), ("a", "\ud800")])
def test_header_that_no_version_can_send_is_our_mistake(version: Version, header: tuple[str, str]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_headers([("fine", "1"), header], version)


@pytest.mark.parametrize("header", [("a", "b\nc"), ("a\n", "b"), ("a:b", "c"), ("", "b:c")])
def test_1_0_refuses_what_it_has_no_escape_for(header: tuple[str, str]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_headers([("fine", "1"), header], V10)


def test_colons_that_add_up_to_the_number_of_headers_do_not_hide_a_missing_name() -> None:
    with pytest.raises(LocalProtocolError):
        encode_headers([("", "x"), ("b", "y")], V12)
    with pytest.raises(LocalProtocolError):
        encode_headers([("b", "y"), ("", "x")], V12)


def test_unknown_command_body_in_the_wrong_frame_and_given_length_are_our_mistakes() -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame("PUBLISH", [])
    with pytest.raises(LocalProtocolError):
        encode_frame("ACK", [("id", "1")], b"body")
    with pytest.raises(LocalProtocolError):
        encode_frame("SEND", [("content-length", "9")], b"body")
    with pytest.raises(LocalProtocolError):
        encode_frame("SEND", [("destination", "/queue/a"), ("content-length", "9")], b"body")


@pytest.mark.parametrize("version", [V10, V11, V12])
def test_many_receipts_are_the_same_bytes_as_one_after_the_other(version: Version) -> None:
    ids = ["1", "a:b", "", "c\\d", "e\rf", "\N{SNOWMAN}"]

    one_by_one = b"".join(encode_frame("RECEIPT", [("receipt-id", each)], version=version) for each in ids)

    assert encode_receipts(ids, version) == one_by_one
    assert encode_receipts([], version) == b""


def test_receipt_id_that_cannot_be_sent_is_our_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        encode_receipts(["a", "b\0c"], V12)
    with pytest.raises(LocalProtocolError):
        encode_receipts(["a", "b\nc"], V10)
    with pytest.raises(LocalProtocolError):
        encode_receipts(["\ud800"], V12)
    assert encode_receipts(["b\nc"], V11) == b"RECEIPT\nreceipt-id:b\\nc\n\n\0\n"


@pytest.mark.parametrize("version", [V10, V11, V12])
def test_headers_without_escapes_are_the_same_object_for_every_receiver(version: Version) -> None:
    block = b"a:1\nb:/queue/x\n"

    assert convert_headers(block, V12, version) is block


def test_headers_with_escapes_are_converted_for_older_receivers() -> None:
    block = encode_headers([("k", "a:b\\c"), ("l", "x\ry"), ("m", "x\ny")], V12)

    assert convert_headers(block, V12, V12) is block
    assert convert_headers(block, V12, V11) == b"k:a\\cb\\\\c\nl:x\ry\nm:x\\ny\n"
    assert convert_headers(block, V12, V10) == b"k:a:b\\c\nl:x\ry\nm:x\\ny\n"


def test_colon_in_a_name_stays_escaped_for_1_0_so_that_the_line_still_splits_where_it_should() -> None:
    assert convert_headers(b"a\\cb:c\\cd\n", V12, V10) == b"a\\cb:c:d\n"


def test_headers_of_an_old_sender_can_be_made_canonical() -> None:
    assert convert_headers(b"k:a:b\\n\n", V10, V12) == b"k:a\\cb\\\\n\n"
    assert convert_headers(b"k:a\\cb\\\\\n", V11, V12) == b"k:a\\cb\\\\\n"
    plain = b"k:v\n"
    assert convert_headers(plain, V10, V12) is plain
