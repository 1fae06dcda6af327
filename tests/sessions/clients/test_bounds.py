"""Bounds of docs/guarantees.md that are times, with the defaults: how long after a cut nodes hold the same again, and
how long after a node fell silent its queue messages are handed out. On virtual time, so they are exact.
"""

import pytest
import trio
from trio.testing import MockClock

from qmq.config import MeshSettings
from tests.node.mesh_rig import MeshRig, host_of, isolate, rejoin
from tests.node.rig import Client, eventually, send, subscribe

DEFAULTS = MeshSettings()
CONVERGED_SECONDS = DEFAULTS.redial_seconds_max + 0.2
"""The rest is for logging in and for what is missing."""
TAKEN_OVER_SECONDS = DEFAULTS.takeover_after_seconds + 5
JOBS, NEWS = "/queue/jobs", "/fanout/news"
BACKLOG = 60


def mesh_of(names: str) -> MeshRig:
    return MeshRig(*names, mesh={"redial_seconds_min": DEFAULTS.redial_seconds_min})


async def publish(rig: MeshRig, name: str, destination: str, number: int, **headers: str) -> Client:
    """So many messages of that node, the last one receipted."""
    client = await rig.connect(name)
    bodies = [f"{name} {each}" for each in range(number)]
    await client.send(*(send(destination, body, **headers) for body in bodies[:-1]))
    await client.send(send(destination, bodies[-1], "r", **headers))
    await client.receipt()
    return client


def all_same(rig: MeshRig) -> bool:
    first, *others = rig.nodes.values()
    return all(other.engine.path.durable_vector() == first.engine.path.durable_vector() for other in others)


@pytest.mark.parametrize(
    ("names", "lasts"),
    [
        # How long a cut lasts decides when it is dialled again; how many nodes there are, how much is dialled.
        *(("abc", lasts) for lasts in (1.0, 7.9, 22.3, 49.7, 56.3, 129.7)),
        *((names, lasts) for names in ("ab", "abcde") for lasts in (7.9, 56.3)),
    ],
)
async def test_when_a_cut_heals_all_nodes_hold_the_same_within_two_seconds(
    autojump_clock: MockClock, names: str, lasts: float
) -> None:
    rig = mesh_of(names)
    async with rig.run():
        isolate(rig, "a")
        for name in names[:2]:
            await publish(rig, name, NEWS, BACKLOG, receipt_level="fsync")
        await trio.sleep(lasts)
        assert not all_same(rig)

        rejoin(rig, "a")
        healed_at = trio.current_time()

        await eventually(lambda: all_same(rig))
        assert trio.current_time() - healed_at <= CONVERGED_SECONDS


def silence(rig: MeshRig, name: str, how: str) -> None:
    others = [host_of(rig.names.index(other)) for other in rig.names if other != name]
    here = host_of(rig.names.index(name))
    for there in others:
        if how != "hears nothing":
            rig.fabric.cut(here, there)
        if how != "is heard by nobody":
            rig.fabric.cut(there, here)


@pytest.mark.parametrize("names", ["abc", "abcde"])
@pytest.mark.parametrize("silent", ["a", "c"])
@pytest.mark.parametrize("how", ["killed", "cut off", "is heard by nobody", "hears nothing"])
async def test_messages_of_a_silent_node_are_all_handed_out_in_time(
    autojump_clock: MockClock, names: str, silent: str, how: str
) -> None:
    """One that is still heard is silent from when it ends the links on which it hears nothing."""
    rig = mesh_of(names)
    async with rig.run():
        await publish(rig, silent, JOBS, BACKLOG)
        await eventually(lambda: all_same(rig))
        worker = await rig.connect("b")

        if how == "killed":
            await rig.kill(silent)
            del rig.nodes[silent]
        else:
            silence(rig, silent, how)
        silent_since = trio.current_time()
        await worker.send(subscribe(JOBS, prefetch_count=str(BACKLOG)))

        await worker.messages(BACKLOG)
        still_heard = DEFAULTS.suspicion_seconds if how == "hears nothing" else 0.0
        assert trio.current_time() - silent_since <= still_heard + TAKEN_OVER_SECONDS
