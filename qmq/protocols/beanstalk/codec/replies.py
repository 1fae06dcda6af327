"""Replies of the beanstalkd protocol, as bytes."""

from collections.abc import Iterable, Mapping
from typing import Final

OUT_OF_MEMORY: Final = b"OUT_OF_MEMORY\r\n"
INTERNAL_ERROR: Final = b"INTERNAL_ERROR\r\n"
DRAINING: Final = b"DRAINING\r\n"
BAD_FORMAT: Final = b"BAD_FORMAT\r\n"
UNKNOWN_COMMAND: Final = b"UNKNOWN_COMMAND\r\n"
EXPECTED_CRLF: Final = b"EXPECTED_CRLF\r\n"
JOB_TOO_BIG: Final = b"JOB_TOO_BIG\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
NOT_IGNORED: Final = b"NOT_IGNORED\r\n"
DEADLINE_SOON: Final = b"DEADLINE_SOON\r\n"
TIMED_OUT: Final = b"TIMED_OUT\r\n"
DELETED: Final = b"DELETED\r\n"
RELEASED: Final = b"RELEASED\r\n"
BURIED: Final = b"BURIED\r\n"
TOUCHED: Final = b"TOUCHED\r\n"
PAUSED: Final = b"PAUSED\r\n"
KICKED_ONE: Final = b"KICKED\r\n"
"""Of `kick-job`; that of `kick` has a number."""

Scalar = str | int | float | bool


def inserted(job: int) -> bytes:
    return b"INSERTED %d\r\n" % job


def reserved(job: int, body: bytes) -> bytes:
    return b"RESERVED %d %d\r\n%b\r\n" % (job, len(body), body)


def found(job: int, body: bytes) -> bytes:
    return b"FOUND %d %d\r\n%b\r\n" % (job, len(body), body)


def kicked(count: int) -> bytes:
    return b"KICKED %d\r\n" % count


def using(tube: str) -> bytes:
    return b"USING %b\r\n" % tube.encode()


def watching(count: int) -> bytes:
    return b"WATCHING %d\r\n" % count


def yaml_list(names: Iterable[str]) -> bytes:
    """`OK`, and a YAML list of texts."""
    return _data(b"---\n" + b"".join([b"- %b\n" % name.encode() for name in names]))


def yaml_map(facts: Mapping[str, Scalar]) -> bytes:
    """`OK`, and a YAML dictionary of scalars. A float has six digits behind its point."""
    return _data(b"---\n" + b"".join([b"%b: %b\n" % (name.encode(), _scalar(value)) for name, value in facts.items()]))


def _scalar(value: Scalar) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float):
        return b"%.6f" % value
    return str(value).encode()


def _data(text: bytes) -> bytes:
    return b"OK %d\r\n%b\r\n" % (len(text), text)
