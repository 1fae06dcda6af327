"""Small helpers for the codec's tests: streams in any pieces, frames as comparable values."""

from collections.abc import Iterable, Mapping

from qmq.wire.stomp import Connection, Frame, HeadCaches, Limits, Role, Version

LOGINS: Mapping[Version, bytes] = {
    Version.V10: b"CONNECT\n\n\0\n",
    Version.V11: b"CONNECT\naccept-version:1.0,1.1\nhost:a\n\n\0\n",
    Version.V12: b"CONNECT\naccept-version:1.2\nhost:a\n\n\0\n",
}

GREETINGS: Mapping[Version, bytes] = {
    Version.V10: b"CONNECTED\nsession:1\n\n\0\n",
    Version.V11: b"CONNECTED\nversion:1.1\n\n\0\n",
    Version.V12: b"CONNECTED\nversion:1.2\n\n\0\n",
}

Value = tuple[str, tuple[tuple[str, str], ...], bytes, str | None]


def value(frame: Frame) -> Value:
    return frame.head.command, tuple(frame.head.headers.items()), frame.body, frame.receipt


def values(frames: Iterable[Frame]) -> list[Value]:
    return [value(frame) for frame in frames]


def logged_in(
    version: Version = Version.V12,
    limits: Limits | None = None,
    caches: HeadCaches | None = None,
    *,
    gathers: bool = False,
) -> Connection:
    """A server's side that has read a CONNECT of `version`."""
    connection = Connection(Role.SERVER, limits or Limits(), caches, gathers=gathers)
    connection.receive(LOGINS[version])
    assert connection.error is None
    assert connection.version is version
    return connection


def greeted(version: Version = Version.V12, limits: Limits | None = None) -> Connection:
    """A client's side that has read CONNECTED."""
    connection = Connection(Role.CLIENT, limits or Limits())
    connection.receive(GREETINGS[version])
    assert connection.error is None
    assert connection.version is version
    return connection


def fed(connection: Connection, pieces: Iterable[bytes]) -> list[Frame]:
    return [frame for piece in pieces for frame in connection.receive(piece)]


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def code(connection: Connection) -> str | None:
    return None if connection.error is None else connection.error.code
