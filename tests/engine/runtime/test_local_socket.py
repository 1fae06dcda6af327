"""The Unix socket in the data directory: which users may connect, and what happens to a file in its place."""

import socket
import stat
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from qmq.engine.runtime import local_socket
from qmq.engine.runtime.local_socket import LocalListener
from qmq.unix_socket import PATH_BYTES_MAX, SOCKET_NAME, socket_path


def connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_path(path) as short:
        client.connect(short)
    return client


async def test_only_the_user_of_the_node_can_open_the_socket(tmp_path: Path) -> None:
    listener = LocalListener(tmp_path / SOCKET_NAME)

    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600
    with connected(tmp_path / SOCKET_NAME) as client:
        pipe = await listener.accept()
        client.send(b"hello")
        assert await pipe.receive_some(100) == b"hello"
        pipe.close()
    listener.close()


async def test_a_process_of_another_user_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = LocalListener(tmp_path / SOCKET_NAME)
    monkeypatch.setattr(local_socket, "peer_user", lambda connected: 4242)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.accept)
        with connected(tmp_path / SOCKET_NAME) as client:
            await wait_all_tasks_blocked()
            assert client.recv(1) == b""
        nursery.cancel_scope.cancel()
    listener.close()


async def test_the_socket_file_of_a_killed_node_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / SOCKET_NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(path))

    listener = LocalListener(path)

    connected(path).close()
    listener.close()
    assert not path.exists()


async def test_another_file_in_its_place_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / SOCKET_NAME
    path.write_text("precious")

    with pytest.raises(OSError, match=rf"cannot listen on {path}: a file that is no socket"):
        LocalListener(path)

    assert path.read_text() == "precious"


async def test_a_data_directory_may_have_a_longer_path_than_an_address_holds(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * PATH_BYTES_MAX)
    directory.mkdir()

    listener = LocalListener(directory / SOCKET_NAME)

    connected(directory / SOCKET_NAME).close()
    listener.close()
    assert list(directory.iterdir()) == []
