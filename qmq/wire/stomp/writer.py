"""Values to bytes. Stateless: the sender knows what a connection may send next.

Strict in what is sent: canonical escapes, `content-length` on every frame that may have a body, LF line ends, and one
LF after NUL (some clients wait for it). What cannot be sent raises LocalProtocolError, because sending it would be
our mistake; nothing is returned then.

Surprising: STOMP 1.0 has no escapes, so it cannot carry every header that 1.2 can. encode_headers() refuses such a
header; convert_headers(), which forwards other clients' headers to a 1.0 client, leaves them escaped instead.
"""

from collections.abc import Iterable

from qmq.errors import LocalProtocolError
from qmq.wire.stomp.grammar import unescape
from qmq.wire.stomp.refusals import shown
from qmq.wire.stomp.states import COMMANDS, Role
from qmq.wire.stomp.version import Version

HEARTBEAT = b"\n"
"""A bare LF. Some clients take CRLF for the start of a command."""

# STOMP 1.2, "Body": only these may have one.
BODY_COMMANDS = frozenset({"SEND", "MESSAGE", "ERROR"})

# STOMP 1.2, "Value Encoding": for 1.0's sake these are never escaped.
UNESCAPED_COMMANDS = frozenset({"CONNECT", "STOMP", "CONNECTED"})

ALL_COMMANDS = COMMANDS[Role.SERVER] | COMMANDS[Role.CLIENT]

RECEIPT_START = "RECEIPT\nreceipt-id:"
FRAME_END = "\n\n\0\n"


def encode_frame(
    command: str, headers: Iterable[tuple[str, str]], body: bytes = b"", *, version: Version = Version.V12
) -> bytes:
    """One whole frame. `headers` must not name `content-length`: it is added here.

    Raises:
        LocalProtocolError: no such command, a body where none may be, or a header that cannot be sent.
    """
    if command not in ALL_COMMANDS:
        raise LocalProtocolError("unknown-command", f"unknown command {shown(command)}")
    block = encode_headers(headers, Version.V10 if command in UNESCAPED_COMMANDS else version)
    if block.startswith(b"content-length:") or b"\ncontent-length:" in block:
        raise LocalProtocolError("bad-header", "content-length is computed, not given")
    if command in BODY_COMMANDS:
        return b"%b\n%bcontent-length:%d\n\n%b\0\n" % (command.encode(), block, len(body), body)
    if body:
        raise LocalProtocolError("body-not-allowed", f"{command} has no body")
    return b"%b\n%b\n\0\n" % (command.encode(), block)


def encode_headers(headers: Iterable[tuple[str, str]], version: Version) -> bytes:
    """Header lines in the order given, escaped as `version` says, each ended by LF.

    In 1.0 and 1.1 a CR at the end of a value is lost in transit, because the reader takes it for part of the line end.

    Raises:
        LocalProtocolError: a header without a name, with NUL, or (1.0) with LF or a colon in its name.
    """
    pairs = list(headers)
    text = "".join([f"{name}:{value}\n" for name, value in pairs])
    if not is_plain(text, len(pairs)):
        text = "".join([f"{escape_name(name, version)}:{escape(value, version)}\n" for name, value in pairs])
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError("bad-utf8", "header with a lone surrogate") from None


def encode_receipts(receipt_ids: list[str], version: Version) -> bytes:
    """One RECEIPT frame for each id, in order, made in one go; empty when there are none."""
    if not receipt_ids:
        return b""
    # NUL can be in no id, so it keeps them apart while all of them are escaped at once.
    joined = "\0".join(receipt_ids)
    if joined.count("\0") >= len(receipt_ids):
        raise LocalProtocolError("bad-header", "NUL in a receipt id")
    escaped = escape_plain(joined, version)
    try:
        return (RECEIPT_START + escaped.replace("\0", FRAME_END + RECEIPT_START) + FRAME_END).encode()
    except UnicodeEncodeError:
        raise LocalProtocolError("bad-utf8", "receipt id with a lone surrogate") from None


def convert_headers(block: bytes, from_version: Version, to_version: Version) -> bytes:
    """`block` (lines ended by LF) as a reader of `to_version` must see it; the same object when nothing changes.

    Never refuses a block that encode_headers() made: where 1.0 has no way to say something (LF, or a colon in a
    name), it stays escaped as in 1.2, and the receiver sees the escape.
    """
    if from_version == to_version or (from_version != Version.V10 and b"\\" not in block):
        return block
    lines: list[str] = []
    for line in block.decode().split("\n")[:-1]:
        raw_name, _, raw_value = line.partition(":")
        name = unescape(raw_name, from_version)
        value = unescape(raw_value, from_version)
        if to_version == Version.V10:
            name = name.replace("\n", "\\n").replace(":", "\\c")
            value = value.replace("\n", "\\n")
        lines.append(f"{escape_name(name, to_version)}:{escape(value, to_version)}\n")
    converted = "".join(lines).encode()
    return block if converted == block else converted


def is_plain(text: str, headers: int) -> bool:
    """Whether `text`, this many headers joined without a look at them, is the same in every version."""
    return (
        text.count(":") == headers
        and text.count("\n") == headers
        and "\\" not in text
        and "\r" not in text
        and "\0" not in text
        and not text.startswith(":")
        and "\n:" not in text
    )


def escape_name(name: str, version: Version) -> str:
    if not name:
        raise LocalProtocolError("bad-header", "header without a name")
    if version == Version.V10 and ":" in name:
        raise LocalProtocolError("bad-header", f"STOMP 1.0 cannot carry the colon in the header name {shown(name)}")
    return escape(name, version)


def escape(text: str, version: Version) -> str:
    if "\0" in text:
        raise LocalProtocolError("bad-header", f"NUL in the header {shown(text)}")
    return escape_plain(text, version)


def escape_plain(text: str, version: Version) -> str:
    """STOMP 1.2 and 1.1, "Value Encoding"; the backslash first, so that no escape is escaped again."""
    if version == Version.V10:
        if "\n" in text:
            raise LocalProtocolError("bad-header", "STOMP 1.0 cannot carry LF in a header")
        return text
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if "\n" in text:
        text = text.replace("\n", "\\n")
    if ":" in text:
        text = text.replace(":", "\\c")
    if version == Version.V12 and "\r" in text:
        text = text.replace("\r", "\\r")
    return text
