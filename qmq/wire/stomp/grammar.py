"""The lines between command and body: names, values, escapes. Each rule names its section of the specification.

This module knows neither connections nor limits: it is given one whole header block (the bytes from the command up to,
not including, the blank line) and says what it means. Lines end with LF; one CR before it is dropped in every version
(STOMP 1.2, "Augmented BNF": EOL; older clients on Windows do the same in 1.0 and 1.1).

Lenient where stock clients need it: a raw colon in a value is part of the value (Perl and PHP clients send it), and
blanks around names and values are kept as they are.
"""

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp.version import Version

# STOMP 1.2 and 1.1, "Value Encoding": what may follow a backslash. STOMP 1.0 has no escapes at all.
ESCAPES_12: dict[str, str] = {"n": "\n", "c": ":", "\\": "\\", "r": "\r"}
ESCAPES_11: dict[str, str] = {"n": "\n", "c": ":", "\\": "\\"}

# STOMP 1.2, "Augmented BNF": content-length = 1*DIGIT. Ten digits name every length that fits a limit.
CONTENT_LENGTH_DIGITS_MAX = 10

SHOWN_CHARACTERS_MAX = 40


def parse_headers(text: str, version: Version) -> dict[str, str]:
    """The headers of a whole block, `receipt` and `content-length` left out, order kept, unescaped for `version`.

    Raises:
        RemoteProtocolError: `bad-header` or `bad-escape`.
    """
    headers: dict[str, str] = {}
    escaped = version != Version.V10 and "\\" in text
    returns = "\r" in text
    lines = text.split("\n")
    for at in range(1, len(lines)):
        line = lines[at]
        if returns and line.endswith("\r"):
            line = line[:-1]
        colon = line.find(":")
        if colon < 1:
            raise bad_header(line)
        name = line[:colon]
        value = line[colon + 1 :]
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
    if version == Version.V10:
        return text
    at = text.find("\\")
    if at < 0:
        return text
    escapes = ESCAPES_12 if version == Version.V12 else ESCAPES_11
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
    """The value of a `receipt` header line, as the RECEIPT will name it."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise bad_utf8() from None
    return unescape(text, version) if "\\" in text else text


def bad_utf8() -> RemoteProtocolError:
    """STOMP 1.2, "STOMP Frames": commands and headers are UTF-8."""
    return RemoteProtocolError(
        "bad-utf8", "header is not UTF-8", "Commands and headers are encoded in UTF-8; bodies may be anything."
    )


def bad_header(line: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "bad-header",
        f"header line {shown(line)} has no name and colon" if ":" not in line else "header line without a name",
        "A header line is NAME:VALUE; a blank line ends the headers and NUL ends the body.",
    )


def nul_in_headers() -> RemoteProtocolError:
    return RemoteProtocolError(
        "bad-header",
        "NUL among the headers",
        "A blank line ends the headers, also when there is no body; NUL comes after it.",
    )


def missing_nul(length: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        "missing-nul",
        f"no NUL after a body of {length} bytes",
        "The byte after the body that content-length announces is NUL.",
    )


def too_large(code: str, limit: str, most: int) -> RemoteProtocolError:
    words = code.replace("-", " ")
    return RemoteProtocolError(code, f"{words}: {limit} is {most}", f"This node accepts {limit}={most} and no more.")


def bad_escape(escape: str, version: Version) -> RemoteProtocolError:
    allowed = r"\n \c \\ \r" if version == Version.V12 else r"\n \c \\"
    return RemoteProtocolError(
        "bad-escape",
        f"undefined escape {shown(escape)}",
        f'STOMP {version.text}, "Value Encoding", allows only {allowed} in header names and values.',
    )


def shown(text: str) -> str:
    """`text` for an error message: printable ASCII in quotes, and not too long."""
    if len(text) > SHOWN_CHARACTERS_MAX:
        return ascii(text[:SHOWN_CHARACTERS_MAX]) + "..."
    return ascii(text)
