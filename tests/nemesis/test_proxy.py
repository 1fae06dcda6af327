"""The line between two nodes: cut in one direction, held up, slow, and whole again. And ports for nodes of tests: one
that a stopped node will need again is given to no other process of this machine.
"""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from qmq.testing.ports import BLOCK, free_ports
from qmq.testing.proxy import BACK, FORTH, Proxy
from tests.support.cluster_mesh import ROOT

WAIT_SECONDS = 30.0

ASK = f"from qmq.testing.ports import free_ports; print(*free_ports({BLOCK + 50}))"


class Line:
    """A caller and a callee with a proxy between them."""

    def __init__(self, proxy: Proxy, listener: socket.socket) -> None:
        self.proxy = proxy
        self.caller = socket.create_connection(proxy.address, WAIT_SECONDS)
        self.callee, _ = listener.accept()
        self.callee.settimeout(WAIT_SECONDS)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(WAIT_SECONDS)
        yield made


@pytest.fixture
def line(listener: socket.socket) -> Iterator[Line]:
    (port,) = free_ports(1)
    proxy = Proxy(port, listener.getsockname())
    made = Line(proxy, listener)
    yield made
    proxy.close()
    made.caller.close()
    made.callee.close()


def is_ended(one: socket.socket) -> bool:
    """Whether nothing but the end comes."""
    with contextlib.suppress(ConnectionError):
        return one.recv(100) == b""
    return True


def test_bytes_pass_both_ways_and_so_does_the_end(line: Line) -> None:
    line.caller.sendall(b"to")
    assert line.callee.recv(100) == b"to"
    line.callee.sendall(b"fro")
    assert line.caller.recv(100) == b"fro"

    line.callee.close()

    assert is_ended(line.caller)


@pytest.mark.parametrize("way", [FORTH, BACK])
def test_a_cut_in_one_direction_loses_what_goes_there_and_ends_the_connection_when_it_heals(
    line: Line, way: int
) -> None:
    source, sink = (line.caller, line.callee) if way == FORTH else (line.callee, line.caller)

    line.proxy.cut(way)
    source.sendall(b"lost")
    sink.sendall(b"kept")

    assert source.recv(100) == b"kept"
    line.proxy.heal()
    assert is_ended(sink)


def test_what_is_held_up_arrives_when_the_line_heals_and_the_connection_goes_on(line: Line) -> None:
    line.proxy.hold(FORTH)
    line.caller.sendall(b"late")
    line.callee.sendall(b"now")
    assert line.caller.recv(100) == b"now"
    line.callee.setblocking(False)
    with pytest.raises(BlockingIOError):
        line.callee.recv(100)
    line.callee.settimeout(WAIT_SECONDS)

    line.proxy.heal()

    assert line.callee.recv(100) == b"late"
    line.callee.sendall(b"back")
    assert line.caller.recv(100) == b"back"


def test_a_dial_while_the_line_is_held_up_gets_through_when_it_heals(line: Line, listener: socket.socket) -> None:
    line.proxy.hold()
    with socket.create_connection(line.proxy.address, WAIT_SECONDS) as caller:
        caller.sendall(b"hello")

        line.proxy.heal()

        callee, _ = listener.accept()
        with callee:
            callee.settimeout(WAIT_SECONDS)
            assert callee.recv(100) == b"hello"


def test_a_slow_line_passes_everything_in_order(line: Line) -> None:
    line.proxy.slow(100_000)
    sent = b"".join(b"%06d " % number for number in range(3000))
    sender = threading.Thread(target=line.caller.sendall, args=(sent,))
    sender.start()

    came = bytearray()
    while len(came) < len(sent):
        came += line.callee.recv(1 << 20)
    sender.join()

    assert came == sent


def test_processes_that_run_at_once_get_different_ports() -> None:
    ours = free_ports(BLOCK + 50)
    said = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    theirs = [int(word) for word in said.split()]

    assert len(set(ours)) == len(set(theirs)) == BLOCK + 50
    assert not set(ours) & set(theirs)
