"""Sockets as pipes: what a real connection does between two reads."""

import os
import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from qmq.engine.runtime.sockets import SocketPipe, real_network
from tests.storage.rig import no_descriptor_left

READ_BYTES = 500


async def test_a_connection_that_is_silent_at_first_is_not_taken_for_closed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe = SocketPipe(ours, "here")
        read: list[bytes] = []

        async def receive() -> None:
            read.append(await pipe.receive_some(READ_BYTES))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            assert read == []
            theirs.send(b"late")

        assert read == [b"late"]


async def test_a_pause_after_exactly_one_full_read_is_not_taken_for_the_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe = SocketPipe(ours, "here")
        theirs.send(bytes(READ_BYTES))
        read = [await pipe.receive_some(READ_BYTES)]

        async def receive() -> None:
            read.append(await pipe.receive_some(READ_BYTES))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            theirs.send(b"more")

        assert read == [bytes(READ_BYTES), b"more"]


async def test_the_end_of_a_connection_is_an_empty_read() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        pipe = SocketPipe(ours, "here")
        theirs.close()

        assert await pipe.receive_some(READ_BYTES) == b""


async def test_a_connection_to_a_peer_needs_one_descriptor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        only_one = os.dup(listening.fileno())
        with no_descriptor_left():
            os.close(only_one)
            pipe = await real_network().connect(host, port, None, host)
        accepted, _ = listening.accept()

        with accepted:
            await pipe.send_all(b"x")
            assert accepted.recv(1) == b"x"
            accepted.send(b"y")
            assert await pipe.receive_some(READ_BYTES) == b"y"
        pipe.close()


async def test_an_address_where_nothing_listens_is_named_with_the_reason() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]

        with pytest.raises(OSError, match=f"^cannot connect to 127.0.0.1:{port}: Connection refused$"):
            await real_network().connect("127.0.0.1", port, None, "b")


async def test_both_sides_send_at_once_and_a_node_notices_a_client_whose_host_is_down() -> None:
    listener = await real_network().listen("127.0.0.1", 0, None)
    dialled = await real_network().connect(*listener.address, None, "")
    accepted = await listener.accept()

    for pipe in (dialled, accepted):
        assert pipe._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # type: ignore[attr-defined]
    assert accepted._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)  # type: ignore[attr-defined]

    for closing in (dialled, accepted, listener):
        closing.close()
