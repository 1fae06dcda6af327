"""A run that was not learned yet is compared too, and must never be found in what a stranger sends."""

import pytest

from qmq.wire.stomp import Connection, Limits, Role
from tests.wire.support import code, logged_in, pieces_of


@pytest.mark.parametrize("count", [1, 2, 3, 4, 1000])
@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
def test_nul_bytes_are_no_frame_before_login(count: int, size: int) -> None:
    connection = Connection(Role.SERVER, Limits())

    frames = [frame for piece in pieces_of(bytes(count) + b"\n\n\0", size) for frame in connection.receive(piece)]

    assert frames == []
    assert code(connection) == "unknown-command"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 1000])
@pytest.mark.parametrize("before", [b"", b"ACK\nid:1\n\n\0ACK\nid:2\n\n\0", b"SEND\na:1\n\nx\0SEND\na:1\n\ny\0"])
def test_nul_bytes_are_no_frame_after_login(count: int, before: bytes) -> None:
    connection = logged_in()

    frames = connection.receive(before + bytes(count) + b"\n\n\0")

    assert len(frames) == before.count(b"\0")
    assert code(connection) == "unknown-command"
