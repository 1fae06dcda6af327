"""A mesh of whole nodes whose disks can be made to stand still, and what a client hears of it in RECEIPTs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from qmq.environment import RunBlocking
from qmq.wire.stomp import Frame
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client

SECOND = 1.0
SOON = 0.3


class StuckRig(MeshRig):
    """A mesh whose disks can be made to take no append until `free` is set, at the latest at the end of the test."""

    def __init__(self, *names: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.free = trio.Event()

    @asynccontextmanager
    async def run(self) -> AsyncIterator["StuckRig"]:
        async with super().run():
            try:
                yield self
            finally:
                self.free.set()

    def stick(self, *names: str) -> None:
        for name in names:
            environment = self.nodes[name].environment
            environment._run_blocking = self._stuck(environment._run_blocking)

    def _stuck(self, run_blocking: RunBlocking) -> Any:
        async def wait_and_run(call: Any) -> Any:
            if getattr(getattr(call, "func", None), "__name__", "") == "append":
                await self.free.wait()
            return await run_blocking(call)

        return wait_and_run


def three(**settings: Any) -> StuckRig:
    return StuckRig("a", "b", "c", **settings)


async def receipt_of(client: Client, within: float) -> Frame:
    with trio.fail_after(within):
        return await client.next("RECEIPT")


async def nothing_comes(client: Client, seconds: float) -> None:
    with trio.move_on_after(seconds):
        frame = await client.any()
        raise AssertionError(f"came too early: {frame.head}")


def marks(frame: Frame) -> dict[str, str]:
    """What a RECEIPT says beside its id."""
    return {name: value for name, value in frame.head.headers.items() if name != "receipt-id"}
