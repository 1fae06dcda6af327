"""The lines between command and body: names, values, escapes. Each rule names its section of the specification.

This module knows neither connections nor limits: it is given one whole header block (the bytes from the command up to,
not including, the blank line) and says what it means. Lines end with LF; one CR before it is dropped in every version
(STOMP 1.2, "Augmented BNF": EOL; older clients on Windows do the same in 1.0 and 1.1).

Lenient where stock clients need it: a raw colon in a value is part of the value (Perl and PHP clients send it), and
blanks around names and values are kept as they are.
"""

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp.refusals import bad_escape, bad_header, bad_utf8
from qmq.wire.stomp.version import Version

V10 = Version.V10
V12 = Version.V12

# STOMP 1.2 and 1.1, "Value Encoding": what may follow a backslash. STOMP 1.0 has no escapes at all.
ESCAPES_12: dict[str, str] = {"n": "\n", "c": ":", "\\": "\\", "r": "\r"}
ESCAPES_11: dict[str, str] = {"n": "\n", "c": ":", "\\": "\\"}

# STOMP 1.2, "Augmented BNF": content-length = 1*DIGIT. Ten digits name every length that fits a limit.
CONTENT_LENGTH_DIGITS_MAX = 10


def parse_headers(text: str, version: Version) -> dict[str, str]:
    """The headers of a whole block, `receipt` and `content-length` left out, order kept, unescaped for `version`.

    Raises:
        RemoteProtocolError: `bad-header` or `bad-escape`.
    """
    headers: dict[str, str] = {}
    escaped = version is not V10 and "\\" in text
    returns = "\r" in text
    lines = text.split("\n")
    del lines[0]
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise bad_header(line)
        if returns and value.endswith("\r"):
            value = value[:-1]
        if escaped:
            name = unescape(name, version)
            value = unescape(value, version)
        # STOMP 1.2, "Repeated Header Entries": only the first counts.
        if name not in headers:
            headers[name] = value
    headers.pop("receipt", None)
    headers.pop("content-length", None)
    return headers


def unescape(text: str, version: Version) -> str:
    """STOMP 1.2, "Value Encoding": undefined escape sequences are a fatal error."""
    if version is V10:
        return text
    at = text.find("\\")
    if at < 0:
        return text
    escapes = ESCAPES_12 if version is V12 else ESCAPES_11
    parts: list[str] = []
    start = 0
    while at >= 0:
        plain = escapes.get(text[at + 1 : at + 2])
        if plain is None:
            raise bad_escape(text[at : at + 2], version)
        parts.append(text[start:at])
        parts.append(plain)
        start = at + 2
        at = text.find("\\", start)
    parts.append(text[start:])
    return "".join(parts)


def parse_content_length(raw: bytes) -> int:
    """Raises RemoteProtocolError `bad-content-length` for anything but 1 to 10 digits."""
    if not raw.isdigit() or len(raw) > CONTENT_LENGTH_DIGITS_MAX:
        raise RemoteProtocolError(
            "bad-content-length",
            "bad content-length",
            f"content-length is the number of bytes of the body: 1 to {CONTENT_LENGTH_DIGITS_MAX} digits.",
        )
    return int(raw)


def parse_receipt(raw: bytes, version: Version) -> str:
    """The value of a `receipt` header line, as the RECEIPT will name it; `raw` may end with the CR of its line."""
    try:
        text = raw.removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise bad_utf8() from None
    return unescape(text, version) if "\\" in text else text
