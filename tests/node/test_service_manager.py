"""What systemd hears of a node."""

import os
import socket
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from qmq.node.service_manager import ServiceManager


@pytest.fixture
def heard(tmp_path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(tmp_path / "notify"))
    listening.setblocking(False)
    return listening


def all_of(heard: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(heard.recv(100))
        except BlockingIOError:
            return found


def test_it_hears_that_the_node_is_ready_and_that_it_stops(heard: socket.socket, tmp_path: Path) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")})

    manager.ready()
    manager.stopping()

    assert all_of(heard) == [b"READY=1", b"STOPPING=1"]
    heard.close()


def test_an_address_may_be_in_no_file_system() -> None:
    name = f"qmq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.setblocking(False)

        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()

        assert all_of(listening) == [b"READY=1"]


async def test_the_watchdog_hears_it_twice_in_each_period(
    heard: socket.socket, tmp_path: Path, autojump_clock: MockClock
) -> None:
    about = {"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), **about})

    with trio.move_on_after(89):
        await manager.run()

    assert all_of(heard) == [b"WATCHDOG=1"] * 3
    heard.close()


@pytest.mark.parametrize(
    "about", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}]
)
async def test_without_a_watchdog_of_this_process_it_hears_nothing(
    heard: socket.socket, tmp_path: Path, about: dict[str, str]
) -> None:
    await ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), **about}).run()
    await ServiceManager(about).run()

    assert all_of(heard) == []
    heard.close()


def test_a_manager_that_does_not_listen_stops_nothing(tmp_path: Path) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nothing")}).ready()
    ServiceManager({}).ready()
