"""The error sent to the other side when it breaks a rule: a code for programs, the rule, and the value of a limit.

Nothing of what was sent is repeated as it is: shown() makes it printable ASCII first.
"""

from collections.abc import Iterable

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp.version import Version

SHOWN_CHARACTERS_MAX = 40


def shown(text: str) -> str:
    """`text` for an error message: printable ASCII in quotes, and not too long."""
    if len(text) > SHOWN_CHARACTERS_MAX:
        return ascii(text[:SHOWN_CHARACTERS_MAX]) + "..."
    return ascii(text)


def unknown_command(line: bytes, commands: Iterable[str]) -> RemoteProtocolError:
    return RemoteProtocolError(
        "unknown-command",
        f"unknown command {shown(line.decode('utf-8', 'backslashreplace'))}",
        "A frame starts with one of " + ", ".join(sorted(commands)) + ".",
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


def bad_utf8() -> RemoteProtocolError:
    """STOMP 1.2, "STOMP Frames": commands and headers are UTF-8."""
    return RemoteProtocolError(
        "bad-utf8", "header is not UTF-8", "Commands and headers are encoded in UTF-8; bodies may be anything."
    )


def missing_nul(length: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        "missing-nul",
        f"no NUL after a body of {length} bytes",
        "The byte after the body that content-length announces is NUL.",
    )


def body_not_allowed(command: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "body-not-allowed", f"{command} has no body", "Only SEND, MESSAGE and ERROR may have a body."
    )


def too_large(code: str, limit: str, most: int) -> RemoteProtocolError:
    words = code.replace("-", " ")
    return RemoteProtocolError(code, f"{words}: {limit} is {most}", f"This node accepts {limit}={most} and no more.")


def bad_escape(escape: str, version: Version) -> RemoteProtocolError:
    allowed = r"\n \c \\ \r" if version == Version.V12 else r"\n \c \\"
    # As it is where that can be read: the header that says so is escaped once by itself.
    sent = f"'{escape}'" if escape.isascii() and escape.isprintable() else shown(escape)
    return RemoteProtocolError(
        "bad-escape",
        f"undefined escape {sent}",
        f'STOMP {version.text}, "Value Encoding", allows only {allowed} in header names and values.',
    )
