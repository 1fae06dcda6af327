"""One whole node on the simulated network and a memory disk, and clients that speak raw STOMP to it."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from qmq.broker.messages.send_options import times_of
from qmq.config import Address, LimitSettings, ListenerSettings, NodeSettings
from qmq.environment import Pipe
from qmq.node.node import Node
from qmq.storage.format.settings import StoreSettings
from qmq.wire.stomp import Connection, Frame, Role
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store
from tests.support.defined import defined
from tests.support.network import Fabric
from tests.support.world import SimulatedWorld

HOST = "127.0.0.1"
PORT = 61613
ANSWER_SECONDS = 30.0
"""Virtual time after which an expected frame counts as missing."""


class Rig:
    """The node under test; `disk` outlives it, so a second `run` is a restart."""

    def __init__(self, *, anonymous: bool | None = None, **settings: Any) -> None:
        """`settings` may have what `defined` makes definitions of."""
        limits = {"farewell_seconds": 1.0, "drain_seconds": 1.0, **settings.pop("limits", {})}
        self.fabric = Fabric(random.Random("rig"))
        self.disk = MemoryDisk()
        self.settings = NodeSettings(
            name="a",
            stomp=(ListenerSettings(address=Address(HOST, PORT), anonymous=anonymous),),
            limits=LimitSettings(**limits),
            **defined(**settings),
        )
        self.lives = 0
        self.skew_us = 0
        """How wrong the wall clock is from the next life on."""
        self.trusts_clock = False
        self.forces_definitions = False
        self.tracer: Any = None
        """Makes the spans of the next life."""
        self.node: Node | None = None

    @property
    def alive(self) -> Node:
        assert self.node is not None
        return self.node

    @asynccontextmanager
    async def run(self) -> AsyncIterator["Rig"]:
        """Start the node; at the end stop it in order, if it still runs."""
        self.lives += 1
        rng = random.Random(f"life {self.lives}")
        environment = SimulatedWorld(
            self.fabric.network(HOST), self.disk, rng, self.skew_us, 0.002, self.tracer
        ).environment
        store = open_memory_store(
            self.disk, node="a", settings=StoreSettings(segment_bytes_max=1 << 20, times_of=times_of)
        )
        async with trio.open_nursery() as nursery:
            self.node = Node(
                self.settings,
                None,
                store,
                environment,
                trusts_clock=self.trusts_clock,
                forces_definitions=self.forces_definitions,
            )
            await nursery.start(self.node.run)
            yield self
            self.node.stop()

    async def connect(self, host: str = "10.0.0.1", **headers: str) -> "Client":
        """A logged-in client."""
        client = await self.dial(host)
        await client.log_in(**headers)
        return client

    async def dial(self, host: str = "10.0.0.1") -> "Client":
        """A connection that has said nothing yet."""
        return Client(await self.fabric.dial(host, HOST, PORT))


class Client:
    """Raw STOMP 1.2 over one pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.connection = Connection(Role.CLIENT)
        self.frames: list[Frame] = []
        self.raw = bytearray()
        self.ended = False

    async def log_in(self, **headers: str) -> Frame:
        lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
        await self.send(f"CONNECT\naccept-version:1.2\nhost:x\n{lines}\n")
        return await self.next("CONNECTED")

    async def send(self, *frames: str | bytes) -> None:
        """Send frames, each without its NUL."""
        await self.pipe.send_all(
            b"".join((frame.encode() if isinstance(frame, str) else frame) + b"\0" for frame in frames)
        )

    async def _read(self) -> None:
        data = await self.pipe.receive_some(65536)
        self.raw += data
        self.ended = not data
        self.frames += self.connection.receive(data)
        assert self.connection.error is None, self.connection.error

    async def next(self, command: str) -> Frame:
        """The next frame with that command; others keep their order, for receipts and messages may overtake."""
        with trio.fail_after(ANSWER_SECONDS):
            while True:
                for index, frame in enumerate(self.frames):
                    if frame.head.command == command:
                        return self.frames.pop(index)
                    assert frame.head.command != "ERROR", (frame.head, frame.body)
                assert not self.ended, f"the node closed the connection; expected {command}"
                await self._read()

    async def any(self) -> Frame:
        """The next frame, whatever it is."""
        with trio.fail_after(ANSWER_SECONDS):
            while not self.frames:
                assert not self.ended, "the node closed the connection"
                await self._read()
        return self.frames.pop(0)

    async def messages(self, count: int) -> list[bytes]:
        return [(await self.next("MESSAGE")).body for _ in range(count)]

    async def consume(self, count: int) -> list[bytes]:
        """Acknowledge so many messages, those that have come together in one go; their bodies in order."""
        bodies: list[bytes] = []
        while len(bodies) < count:
            came = [await self.next("MESSAGE")]
            while len(bodies) + len(came) < count and any(frame.head.command == "MESSAGE" for frame in self.frames):
                came.append(await self.next("MESSAGE"))
            await self.send(*(f"ACK\nid:{frame.head.headers['ack']}\n\n" for frame in came))
            bodies += [frame.body for frame in came]
        return bodies

    async def receipt(self) -> str:
        return (await self.next("RECEIPT")).head.headers["receipt-id"]

    async def until_closed(self) -> list[Frame]:
        """Everything that comes until the node ends the connection."""
        with trio.fail_after(ANSWER_SECONDS):
            while not self.ended:
                await self._read()
        self.pipe.close()
        frames, self.frames = self.frames, []
        return frames


async def nothing_more(client: Client) -> None:
    """Everything told so far has come: the client hears its own receipt and no message before it."""
    await client.send(send("/topic/none", "", "last"))
    while await client.receipt() != "last":
        pass
    assert not [frame for frame in client.frames if frame.head.command == "MESSAGE"]


def stick(rig: Rig) -> trio.Event:
    """The disk of the node takes no append until the event is set."""
    free = trio.Event()
    environment = rig.alive.environment
    run_blocking = environment._run_blocking

    async def wait_and_run(call: Any) -> Any:
        if getattr(getattr(call, "func", None), "__name__", "") == "append":
            await free.wait()
        return await run_blocking(call)

    environment._run_blocking = wait_and_run  # type: ignore[assignment]  # generic
    return free


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait, in virtual time, for something that no frame tells."""
    with trio.fail_after(ANSWER_SECONDS):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event to offer)
            await trio.sleep(0.01)


def subscribe(destination: str, id: str = "0", ack: str = "auto", **headers: str) -> str:
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"SUBSCRIBE\nid:{id}\ndestination:{destination}\nack:{ack}\nreceipt:sub-{id}\n{lines}\n"


def send(destination: str, body: str, receipt: str | None = None, **headers: str) -> str:
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    asked = "" if receipt is None else f"receipt:{receipt}\n"
    return f"SEND\ndestination:{destination}\n{asked}{lines}\n{body}"


__all__ = ["ANSWER_SECONDS", "Client", "Rig", "eventually", "nothing_more", "send", "stick", "subscribe"]
