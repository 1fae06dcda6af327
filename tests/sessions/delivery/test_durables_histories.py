"""Durable subscriptions through drawn histories: clients that hop and die, nodes that are killed, checkpoints between.

What must hold whatever happened: every receipted message comes until it was acknowledged, and what was acknowledged
with a receipt at a node is never delivered by that node again.
"""

import random

import pytest
import trio
from trio.testing import MockClock

from qmq.config import StorageSettings
from qmq.wire.stomp import Frame
from tests.client.rig import PORT, Mesh, running
from tests.node.rig import Client, send, subscribe

F = "/fanout/f"
STEPS = 14
QUIET_SECONDS = 0.4
"""Longer than anything takes to come when no node is down."""


class History:
    """One subscription and everything that happens to it."""

    def __init__(self, mesh: Mesh, rng: random.Random) -> None:
        self.mesh = mesh
        self.rng = rng
        self.numbers = iter(range(10_000))
        self.receipted: set[bytes] = set()
        self.done_at: dict[str, set[bytes]] = {name: set() for name in mesh.names}
        self.done: set[bytes] = set()

    async def client(self, name: str) -> Client:
        client = Client(await self.mesh.fabric.dial("10.0.0.9", self.mesh.hosts[name], PORT))
        await client.log_in()
        return client

    async def publish(self) -> None:
        client = await self.client(self.rng.choice(self.mesh.names))
        bodies = [f"{next(self.numbers)}" for _ in range(self.rng.randrange(1, 12))]
        await client.send(*(send(F, body, body) for body in bodies))
        for body in bodies:
            assert await client.receipt() == body
            self.receipted.add(body.encode())
        client.pipe.close()

    async def attach(self, name: str) -> Client:
        """Subscribe at `name`, as often as it takes until a node that has just started knows the name."""
        while True:
            client = await self.client(name)
            credit = self.rng.choice(("1", "3", "100"))
            await client.send(subscribe(F, id="mail", ack="client-individual", durable="true", prefetch_count=credit))
            while not client.frames:
                await client._read()
            if client.frames[0].head.command != "ERROR":
                return client
            assert client.frames[0].head.headers["error-code"] == "not-caught-up"
            client.pipe.close()
            await trio.sleep(0.1)

    async def consume(self, name: str, most: int, *, ack_all: bool = False) -> None:
        client = await self.attach(name)
        for _ in range(most):
            frame = await quiet_or_message(client)
            if frame is None:
                break
            assert frame.body not in self.done_at[name], "acknowledged with a receipt here, and delivered again"
            if ack_all or self.rng.random() < 0.6:
                await client.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:a{frame.body.decode()}\n\n")
                while await client.receipt() != f"a{frame.body.decode()}":
                    pass
                self.done_at[name].add(frame.body)
                self.done.add(frame.body)
        if self.rng.random() < 0.5:
            await client.send("DISCONNECT\nreceipt:bye\n\n")
            while await client.receipt() != "bye":
                pass
        client.pipe.close()

    async def step(self) -> None:
        what = self.rng.random()
        name = self.rng.choice(self.mesh.names)
        if what < 0.4:
            await self.publish()
        elif what < 0.8:
            async with trio.open_nursery() as nursery:
                for _ in range(self.rng.randrange(4)):
                    nursery.start_soon(self.publish)
                await self.consume(name, self.rng.randrange(0, 15))
        elif what < 0.9:
            self.mesh.kill(name)
            await self.mesh.start(name)
        else:
            await self.mesh.nodes[name].engine.checkpoints.checkpoint()


async def quiet_or_message(client: Client) -> Frame | None:
    """The next message; None when none comes for a while."""
    while True:
        for frame in client.frames:
            if frame.head.command == "MESSAGE":
                client.frames.remove(frame)
                return frame
        with trio.move_on_after(QUIET_SECONDS) as quiet:
            await client._read()
        if quiet.cancelled_caught:
            return None
        assert not client.ended, client.frames


@pytest.mark.parametrize("seed", range(12))
async def test_nothing_receipted_is_missed_and_nothing_acknowledged_comes_again_there(
    autojump_clock: MockClock, seed: int
) -> None:
    async with running("ab", storage=StorageSettings(checkpoint_bytes=4096)) as mesh:
        history = History(mesh, random.Random(seed))
        (await history.attach("a")).pipe.close()
        await trio.sleep(1)  # else b may make it anew, and end a subscription with durable-merged when it hears of a's
        for _ in range(STEPS):
            await history.step()
        # Both know all, and what is left comes, at whichever node.
        await trio.sleep(3)
        last = history.rng.choice(mesh.names)
        await history.consume(last, 10_000, ack_all=True)

        assert history.receipted <= history.done, sorted(history.receipted - history.done)
        await history.consume(last, 1)
        other = next(name for name in mesh.names if name != last)
        await trio.sleep(3)
        history.done_at[other] |= history.done
        await history.consume(other, 1)
