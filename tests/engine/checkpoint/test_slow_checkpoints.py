"""A checkpoint that hangs because its database does: a condition is raised, and clients get responses."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import StorageSettings
from qmq.errors import DiskFull, LogBroken
from tests.node.rig import Rig, eventually, send
from tests.support.conditions import present

HANGS = {"checkpoint", "listing"}


def codes(rig: Rig) -> set[str]:
    return {one["code"] for one in present(rig.alive)}


async def test_while_a_checkpoint_hangs_there_is_a_condition_and_new_clients_are_answered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(storage=StorageSettings(checkpoint_bytes=4096))
    async with rig.run():
        goes_on = trio.Event()
        run_blocking = rig.alive.environment._run_blocking

        async def hang(call: Callable[[], Any]) -> Any:
            if getattr(getattr(call, "func", None), "__name__", "") in HANGS:
                await goes_on.wait()
            return await run_blocking(call)

        monkeypatch.setattr(rig.alive.environment, "_run_blocking", hang)
        sender = await rig.connect()
        for n in range(40):
            await sender.send(send("/queue/q", "x" * 1000, f"r{n}"))

        await trio.sleep(9)
        assert "checkpoint" not in codes(rig)
        await eventually(lambda: "checkpoint" in codes(rig))
        assert await rig.alive.environment.run_blocking(lambda: True)
        assert rig.alive.engine.pager._is_overrun()
        for _ in range(2):
            newcomer = await rig.connect()
            await newcomer.send(send("/control/status", "", "status"))
            assert "checkpoint" in (await newcomer.next("RECEIPT")).head.headers["status"]
        goes_on.set()

        assert [await sender.receipt() for _ in range(40)] == [f"r{n}" for n in range(40)]
        await eventually(lambda: "checkpoint" not in codes(rig))


async def test_a_checkpoint_that_found_no_room_is_tried_again_while_nothing_is_written(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        sender = await rig.connect()
        await sender.send(send("/queue/q", "x", "r"))
        assert await sender.receipt() == "r"
        with monkeypatch.context() as patch:

            def refuse(*_: object) -> None:
                raise DiskFull("no room")

            patch.setattr(rig.alive.store, "checkpoint", refuse)
            rig.alive.engine.checkpoints.schedule()
            await eventually(lambda: "checkpoint" in codes(rig))

        await eventually(lambda: "checkpoint" not in codes(rig))
        assert rig.alive.engine.checkpoints.count == 1


async def test_the_condition_about_a_checkpoint_is_not_over_when_the_node_ends_of_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rig = Rig(storage=StorageSettings(checkpoint_bytes=4096))
    with pytest.RaisesGroup(LogBroken, flatten_subgroups=True, allow_unwrapped=True):
        async with rig.run():
            run_blocking = rig.alive.environment._run_blocking

            async def fail_late(call: Callable[[], Any]) -> Any:
                if getattr(getattr(call, "func", None), "__name__", "") == "checkpoint":
                    await trio.sleep(20)
                    raise LogBroken("the queue store postgresql://host/db failed: it went away")
                return await run_blocking(call)

            monkeypatch.setattr(rig.alive.environment, "_run_blocking", fail_late)
            sender = await rig.connect()
            await sender.send(send("/queue/q", "x" * 8000))
            await trio.sleep(60)

    said = [record.getMessage() for record in caplog.records if "condition checkpoint" in record.getMessage().lower()]
    assert len(said) == 1
    assert "CONDITION checkpoint: a checkpoint has been under way" in said[0]


async def test_a_question_whose_store_fails_ends_its_connection_with_one_line_in_the_log(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    async with rig.run():

        def fail(*_: object) -> None:
            raise LogBroken("the queue store postgresql://host/db failed: it went away")

        monkeypatch.setattr(rig.alive.store.queues, "heads", fail)
        rig.alive.broker.queues.owned.has_stored = True
        client = await rig.connect()
        await client.send(send("/control/count-msgs/queue/q", "", "count"))
        await client.until_closed()

    (said,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "the queue store postgresql://host/db failed: it went away" in said.getMessage()
    assert said.exc_info is None
