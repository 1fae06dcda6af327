"""After a checkpoint the queue store gives back what drained queues have left in it, step by step."""

import trio
from trio.testing import MockClock

from qmq.errors import DiskFull
from tests.mesh.membership.test_takeover import publish
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually


async def test_steps_follow_each_other_until_there_is_no_more_and_a_checkpoint_begins_them_again(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a").run() as rig:
        node = rig.nodes["a"]
        steps: list[bool] = []

        def step() -> bool:
            steps.append(len(steps) % 3 != 2)
            return steps[-1]

        node.store.give_back = step  # type: ignore[method-assign]
        for _ in range(2):
            await publish(rig, "a", "one")
            await node.engine.checkpoints.checkpoint()
            await trio.sleep(10)

        assert steps == [True, True, False] * 2


async def test_a_full_disk_ends_the_steps_and_nothing_else(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as rig:
        node = rig.nodes["a"]
        tries: list[int] = []

        def step() -> bool:
            tries.append(1)
            raise DiskFull("no room")

        node.store.give_back = step  # type: ignore[method-assign]
        await publish(rig, "a", "one")
        await node.engine.checkpoints.checkpoint()
        await eventually(lambda: len(tries) == 1)
        await trio.sleep(10)
        await node.engine.checkpoints.checkpoint()

        await eventually(lambda: len(tries) == 2)
