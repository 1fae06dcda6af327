"""An orderly stop: nothing new is decided, everything decided is sent, and no client can delay it for ever."""

import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import Address, ListenerSettings, NodeSettings, PeersFile, TlsSettings
from qmq.config.limits import DESCRIPTORS_KEPT
from qmq.errors import LogBroken
from qmq.node import main
from qmq.node.node import Node
from qmq.storage.store import Store, open_store
from tests.node.rig import Rig, eventually, send, subscribe
from tests.support.depths import depths


async def test_everything_that_was_decided_is_receipted_and_nothing_else_is_decided(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        for n in range(20):
            await client.send(send("/queue/q", str(n), f"r{n}"))
        await client.receipt()
        rig.alive.stop()
        async with trio.open_nursery() as nursery:

            async def go_on_sending() -> None:
                try:
                    for n in range(20, 2000):
                        await client.send(send("/queue/q", str(n), f"r{n}"))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

            nursery.start_soon(go_on_sending)
            *answers, error = await client.until_closed()
            receipts = [frame.head.headers["receipt-id"] for frame in answers]
            assert error.head.headers["error-code"] == "stopping"

    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 1 + len(receipts)


async def test_no_client_logs_in_any_more_while_others_leave(autojump_clock: MockClock) -> None:
    rig = Rig(limits={"farewell_seconds": 5.0})
    async with rig.run():
        await rig.connect()
        late = await rig.dial()
        await eventually(lambda: rig.alive.session_parts.login_path.admission.pending == 1)
        rig.alive.stop()
        await trio.sleep(0.5)
        await late.send("CONNECT\naccept-version:1.2\n\n")

        (error,) = await late.until_closed()

        assert error.head.headers["error-code"] == "stopping"


async def test_a_second_stop_waits_for_no_client(autojump_clock: MockClock) -> None:
    rig = Rig(limits={"farewell_seconds": 1000.0, "drain_seconds": 1000.0})
    async with rig.run():
        await rig.connect()
        rig.alive.stop()
        await trio.sleep(1.0)
        assert not rig.alive.ended.is_set()
        rig.alive.stop()
        with trio.fail_after(5.0):
            await rig.alive.ended.wait()


async def test_what_expires_while_the_last_checkpoint_waits_for_its_turn_holds_nothing_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        await amid_a_checkpoint(rig, monkeypatch)

        rig.alive.stop()
        with trio.fail_after(60.0):
            await rig.alive.ended.wait()

    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 1


async def test_a_disk_that_fails_while_the_last_checkpoint_waits_for_its_turn_ends_the_node(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    with pytest.raises(BaseExceptionGroup) as raised:
        async with rig.run():
            await amid_a_checkpoint(rig, monkeypatch)

            rig.alive.stop()
            rig.disk.fail_at(0)
            with trio.fail_after(60.0):
                await rig.alive.ended.wait()

    assert raised.group_contains(LogBroken)


async def amid_a_checkpoint(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow checkpoint runs; meanwhile one message is about to expire, and another waits for the next checkpoint."""
    client = await rig.connect()
    await client.send(send("/queue/q", "short-lived", "r", ttl="5000"))
    await client.receipt()
    begun = slow_checkpoints(rig.alive, monkeypatch, seconds=20.0)
    rig.alive.engine.checkpoints.schedule()
    await begun.wait()
    await client.send(send("/queue/q", "kept", "r"))
    await client.receipt()


def slow_checkpoints(node: Node, monkeypatch: pytest.MonkeyPatch, seconds: float) -> trio.Event:
    """Let each checkpoint take a while; set when one has begun."""
    begun = trio.Event()
    run_blocking = node.environment._run_blocking

    async def slowly(call: Any) -> Any:
        if getattr(call, "func", None) == node.store.checkpoint:
            begun.set()
            await trio.sleep(seconds)
        return await run_blocking(call)

    monkeypatch.setattr(node.environment, "_run_blocking", slowly)
    return begun


async def test_messages_for_a_client_that_said_goodbye_go_to_others(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        leaving, writer = await rig.connect(), await rig.connect()
        await leaving.send(subscribe("/queue/q"))
        await leaving.receipt()
        await leaving.send("DISCONNECT\nreceipt:bye\n\n")
        assert await leaving.receipt() == "bye"

        await writer.send(send("/queue/q", "job", "r"))
        await writer.receipt()
        await leaving.until_closed()
        await writer.send(subscribe("/queue/q"))

        assert await writer.messages(1) == [b"job"]


def settings_for(folder: Path, **more: object) -> NodeSettings:
    return NodeSettings.read({"name": "a", "data": folder / "data", **more})


def test_an_address_in_use_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listener = ListenerSettings(address=Address("127.0.0.1", port))

        code = main.serve(settings_for(tmp_path, stomp=(listener,)), None)

    assert code == main.EXIT_FAILED
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_a_certificate_that_cannot_be_read_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = TlsSettings(certificate=tmp_path / "none.pem", key=tmp_path / "none.key")
    listener = ListenerSettings(address=Address("127.0.0.1", 0), anonymous=True, tls=tls)

    code = main.serve(settings_for(tmp_path, stomp=(listener,)), None)

    assert code == main.EXIT_FAILED
    assert capsys.readouterr().err.startswith("qmq: ")


def test_clients_never_get_the_descriptors_that_the_journal_needs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raised = main.connections_allowed(300)
        assert raised == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300 + DESCRIPTORS_KEPT

        assert main.connections_allowed(hard + 1) == hard - DESCRIPTORS_KEPT
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_hang_up_ends_a_node_that_has_no_files_to_read_again(autojump_clock: MockClock) -> None:
    async def signals() -> AsyncIterator[int]:
        yield signal.SIGHUP

    async with Rig().run() as rig:
        await main._obey_signals(rig.alive, signals(), main.ServiceManager({}), None, reload_first=False)

        await rig.alive.ended.wait()


@pytest.fixture
def unchanged_process() -> Iterator[None]:
    """`serve` sets up a whole process; other tests run in this one."""
    handler, threshold, switch = signal.getsignal(signal.SIGHUP), gc.get_threshold(), sys.getswitchinterval()
    yield
    signal.signal(signal.SIGHUP, handler)
    gc.set_threshold(*threshold)
    gc.unfreeze()
    sys.setswitchinterval(switch)


@pytest.mark.usefixtures("unchanged_process")
def test_a_hang_up_while_a_node_starts_makes_it_read_its_files_when_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(tmp_path, stomp=(ListenerSettings(address=Address("127.0.0.1", 0)),))
    reads = []

    def read() -> tuple[NodeSettings, PeersFile | None]:
        reads.append(settings)
        os.kill(os.getpid(), signal.SIGTERM)
        return settings, None

    def hang_up_and_open(*arguments: Any, **options: Any) -> Store:
        os.kill(os.getpid(), signal.SIGHUP)
        return open_store(*arguments, **options)

    monkeypatch.setattr(main, "open_store", hang_up_and_open)

    code = main.serve(settings, None, read)

    assert (code, len(reads)) == (main.EXIT_OK, 1)


@pytest.mark.usefixtures("unchanged_process")
def test_a_retired_node_ends_with_an_exit_code_of_its_own_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refused(Node):
        """A node that a majority of its mesh refuses as soon as it runs."""

        async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            self.mesh_parts.members._leave("a, b say so")
            await super().run(task_status)

    settings = settings_for(tmp_path, stomp=(ListenerSettings(address=Address("127.0.0.1", 0)),))
    line = (
        "qmq: node a was retired from its mesh (a, b say so): "
        "a node that joins needs another name and an empty data directory\n"
    )

    with monkeypatch.context() as patched:
        patched.setattr(main, "Node", Refused)
        code = main.serve(settings, None)

    assert (code, capsys.readouterr().err) == (main.EXIT_RETIRED, line)
    assert (main.serve(settings, None), capsys.readouterr().err) == (main.EXIT_RETIRED, line)
