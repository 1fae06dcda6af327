"""Last values while links are cut, broken and slow: every node and subscriber ends with what was written last."""

import random

import pytest
import trio
from trio.testing import MockClock

from tests.node.mesh_rig import MeshRig, host_of
from tests.node.rig import Client, eventually, send, subscribe

NAMES = ("a", "b", "c")
TOPICS = 12
STEPS = 60


async def write(client: Client, topic: str, body: str) -> None:
    """Set a value, or remove it where `body` is empty."""
    await client.send(send(topic, body, "r", retain="set" if body else "remove"))
    await client.receipt()


async def listen(client: Client, heard: dict[str, list[str]]) -> None:
    while True:
        frame = await client.any()
        if frame.head.command == "MESSAGE":
            heard.setdefault(frame.head.headers["destination"], []).append(frame.body.decode())


@pytest.mark.parametrize("seed", [*range(4), 24])
async def test_all_nodes_end_with_what_was_written_last(seed: int, autojump_clock: MockClock) -> None:
    """With an even seed the last cut stays, and what crosses it goes through the third node."""
    rng = random.Random(seed)
    async with MeshRig(*NAMES).run() as mesh, trio.open_nursery() as nursery:
        mesh.fabric.rng.seed(seed)
        writers = {name: await mesh.connect(name) for name in NAMES}
        heard: dict[str, dict[str, list[str]]] = {name: {} for name in NAMES}
        for name in NAMES:
            listener = await mesh.connect(name)
            await listener.send(subscribe("/topic/#"))
            await listener.receipt()
            nursery.start_soon(listen, listener, heard[name])
        written: dict[str, str] = {}
        owners = {f"/topic/t{number}": rng.choice(NAMES) for number in range(TOPICS)}
        cuts: set[tuple[str, str]] = set()

        for number in range(STEPS):
            one, other = sorted(rng.sample(NAMES, 2))
            action = rng.random()
            if action < 0.1 and not cuts:
                cuts.add((one, other))
                mesh.cut(one, other)
            elif action < 0.12 and cuts:
                mesh.heal(*cuts.pop())
            elif action < 0.17:
                mesh.fabric.break_between(host_of(NAMES.index(one)), host_of(NAMES.index(other)))
            elif action < 0.5:
                await trio.sleep(rng.uniform(0, 6))
            for topic in rng.sample(sorted(owners), 3):
                body = "" if rng.random() < 0.15 else f"{number}"
                await write(writers[owners[topic]], topic, body)
                written[topic] = body

        if seed % 2:
            for cut in cuts:
                mesh.heal(*cut)
        expected = {topic: body for topic, body in written.items() if body}

        def values(name: str) -> dict[str, str]:
            found = mesh.nodes[name].broker.retained.values.items()
            return {topic: value.message.body.decode() for topic, value in found if not value.is_removed}

        await eventually(lambda: all(values(name) == expected for name in NAMES))
        for name in NAMES:
            await eventually(lambda n=name: {t: b[-1] for t, b in heard[n].items() if t in expected} == expected)
        for name in NAMES:
            for topic, bodies in heard[name].items():
                numbers = [int(body) for body in bodies if body]
                assert numbers == sorted(set(numbers)), f"{name} heard {topic} twice or out of order (seed {seed})"
        nursery.cancel_scope.cancel()
