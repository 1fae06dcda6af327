"""What one client with one message at a time costs, counted in turns of tasks: no figure of a clock."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from tests.node.rig import Rig, send
from tests.protocols.beanstalk.rig import running

pytestmark = pytest.mark.trio

MESSAGES: Final = 20


class Steps(trio.abc.Instrument):
    """How often each task of the node had its turn."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.startswith("qmq."):
            self.of[task.name.rpartition(".")[0].rpartition(".")[2]] += 1


@contextmanager
def counted() -> Iterator[Counter[str]]:
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    yield steps.of
    trio.lowlevel.remove_instrument(steps)


async def at_once(call: Callable[[], Any], *, is_lone: bool = False) -> Any:
    """The disk of this node is quick."""
    assert is_lone
    return call()


async def test_a_lone_send_wakes_its_session_and_the_commits_and_no_other_task(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send("/queue/a", "first", "r"))
        await client.receipt()
        await trio.sleep(1)
        monkeypatch.setattr(rig.alive.environment, "run_commit", at_once)

        with counted() as steps:
            for number in range(MESSAGES):
                await client.send(send("/queue/a", str(number), "r"))
                await client.receipt()

    assert steps.pop("CommitPath") == MESSAGES
    # The simulated network wakes a reader twice: when bytes leave the other side, and when they have come.
    assert steps.pop("ClientSession") == 2 * MESSAGES
    assert steps.total() < 5, "tasks that have nothing to do with a message"


async def test_a_job_that_waits_is_reserved_in_the_turn_in_which_it_is_asked_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as rig:
        client = await rig.client()
        for _ in range(MESSAGES + 1):
            await client.put()
        await client.reserve()
        await trio.sleep(1)
        monkeypatch.setattr(rig.alive.environment, "run_commit", at_once)

        with counted() as steps:
            for _ in range(MESSAGES):
                job, _ = await client.reserve()
                assert await client.ask(f"delete {job}") == b"DELETED"

    assert steps.pop("CommitPath") == MESSAGES, "only what is deleted is written"
    # Two for each command, as above; and a take leaves a turn to others now and then.
    assert 4 * MESSAGES <= steps.pop("ClientSession") < 5 * MESSAGES
    assert steps.total() < 5, "tasks that have nothing to do with a job"
