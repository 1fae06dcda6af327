"""A machine that sleeps (a lid, a guest whose host held it still): the node's clocks count the time all the same."""

import time
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from qmq.engine.runtime.clock import system_clock
from qmq.engine.runtime.worker import Worker
from qmq.environment import Environment
from qmq.node.main import real_environment
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe

JOBS = "/queue/jobs"
AFTER = 10.0
"""The default of `takeover_after_seconds`."""
ASLEEP = 3600.0


@pytest.fixture
def real() -> Iterator[Environment]:
    with Worker("tests") as commits:
        yield real_environment(commits)


def sleep_machine(patch: pytest.MonkeyPatch) -> None:
    """From now on this machine has slept for so long; only the boot clock knows it."""
    read, read_ns = time.clock_gettime, time.clock_gettime_ns

    def has_slept(clock: int) -> bool:
        return clock == time.CLOCK_BOOTTIME

    patch.setattr(time, "clock_gettime", lambda clock: read(clock) + ASLEEP * has_slept(clock))
    patch.setattr(time, "clock_gettime_ns", lambda clock: read_ns(clock) + int(ASLEEP * 1e9) * has_slept(clock))


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts its sleep")
def test_a_real_nodes_boot_clock_counts_the_sleep_of_its_machine(
    real: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    awake = real.boot_seconds()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)

    sleep_machine(monkeypatch)

    assert before <= awake <= after
    assert real.boot_seconds() >= awake + ASLEEP


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts its sleep")
def test_a_real_nodes_wall_clock_has_not_jumped_when_its_machine_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was due meanwhile is due at once, and nothing follows by eighths."""
    now_us = system_clock()
    awake_us = now_us()

    sleep_machine(monkeypatch)

    assert now_us() >= awake_us + ASLEEP * 1e6


async def consumer(rig: MeshRig, name: str) -> Client:
    client = await rig.connect(name)
    await client.send(subscribe(JOBS, ack="client-individual"))
    await client.receipt()
    return client


async def hears_nothing(client: Client, seconds: float) -> bool:
    with trio.move_on_after(seconds):
        await client.next("MESSAGE")
        return False
    return True


@pytest.mark.parametrize("slept", [0.0, AFTER / 2 + 0.1, ASLEEP])
async def test_a_node_whose_machine_slept_hands_out_nothing_before_it_was_echoed_again(
    autojump_clock: MockClock, slept: float
) -> None:
    """Its links look as they did, trio's clock says that no time has passed, and others may serve what it has."""
    async with MeshRig("a", "b", "c").run() as rig:
        client = await rig.connect("a")
        await client.send(send(JOBS, "one", "r"))
        await client.receipt()
        a, *others = rig.nodes.values()
        await eventually(
            lambda: all(other.engine.path.durable_vector() == a.engine.path.durable_vector() for other in others)
        )
        rig.cut("a", "b")
        rig.cut("a", "c")

        rig.sleep_machine("a", slept)
        worker = await consumer(rig, "a")

        assert await hears_nothing(worker, AFTER / 4) == (slept > 0)
        rig.heal("a", "b")
        rig.heal("a", "c")
        if slept:
            assert (await worker.next("MESSAGE")).body == b"one"


@pytest.mark.parametrize(("names", "is_told"), [("ab", False), ("abc", True)])
async def test_only_where_others_may_take_over_a_node_says_that_it_was_away(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, names: str, is_told: bool
) -> None:
    async with MeshRig(*names).run() as rig:
        await trio.sleep(AFTER)
        assert "was paused" not in caplog.text

        rig.sleep_machine("a", ASLEEP)
        rig.cut("a", "b")  # a node looks around when its links change
        await trio.sleep(AFTER)

        assert ("was paused" in caplog.text) == is_told
