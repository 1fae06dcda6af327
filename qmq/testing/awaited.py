"""The same for tests on trio, asyncio or anyio: what blocks runs in a thread, so the loop goes on.

A call that is cancelled is finished first.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import trio

from qmq.testing import local

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a thread, whichever loop runs this task."""
    if trio.lowlevel.in_trio_task():
        with trio.CancelScope(shield=True):
            return await trio.to_thread.run_sync(partial(call, *args, **kwargs))
    work = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await work
        raise


class AwaitedMesh:
    """Nodes on this machine, by name. `blocking` has more, in the blocking style."""

    def __init__(self, blocking: local.MeshUnderTest) -> None:
        self.blocking = blocking
        self.names = tuple(blocking.names)
        self.addresses = tuple(blocking.addresses)
        """Where STOMP clients find the nodes, in the order of their names."""

    def at(self, name: str) -> str:
        """Where STOMP clients find a node."""
        return self.blocking.at(name)

    def served(self, name: str, protocol: str) -> tuple[str, int]:
        """Host and port for clients of `http`, `amqp` or `beanstalk`."""
        return self.blocking.served(name, protocol)

    async def start(self, *names: str) -> None:
        """Start nodes that were killed or stopped, and wait until they answer."""
        await in_thread(self.blocking.start, *names)

    async def restart(self, *names: str) -> None:
        """Stop nodes in order, if they run, and start them again, with their data. Waits until they have links."""
        await in_thread(self.blocking.restart, *names)

    async def stop(self, name: str) -> None:
        """SIGTERM, and wait for its end."""
        await in_thread(self.blocking.stop, name)

    async def kill(self, *names: str) -> None:
        """`kill -9`."""
        await in_thread(self.blocking.kill, *names)

    async def cut(self, one: str, other: str) -> None:
        """Nothing passes between the two, in either direction, until `heal`."""
        await in_thread(self.blocking.cut, one, other)

    async def heal(self, one: str, other: str) -> None:
        """What was cut passes again."""
        await in_thread(self.blocking.heal, one, other)


class AwaitedNode:
    """One node."""

    def __init__(self, blocking: local.NodeUnderTest) -> None:
        self.blocking = blocking
        self.at = blocking.at
        """Where STOMP clients find it."""

    def served(self, protocol: str) -> tuple[str, int]:
        """Host and port for clients of `http`, `amqp` or `beanstalk`."""
        return self.blocking.served(protocol)

    async def kill(self) -> None:
        """`kill -9`."""
        await in_thread(self.blocking.kill)

    async def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        await in_thread(self.blocking.stop)

    async def restart(self) -> None:
        """Stop it in order, if it runs, and start it again, with its data."""
        await in_thread(self.blocking.restart)
