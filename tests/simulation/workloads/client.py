"""One connection of a scripted STOMP client, through the client half of the project's own codec.

Clients behave as good ones would: an outcome without an answer is unknown, whoever loses a connection tries another
node, and an ERROR that no fault explains is a broken promise.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import trio

from qmq.environment import Pipe
from qmq.wire.stomp import Connection, Frame, Role, encode_frame
from tests.simulation.cluster import CLIENT_PORT, Member
from tests.simulation.ledger import Ledger
from tests.simulation.stage import Stage

LOGIN_SECONDS = 1.5
"""An answer that takes longer is given up."""

FAREWELLS = (
    "slow-consumer",
    "stopping",
    "disk-full",
    "durable-taken-over",
    "durable-merged",
    "not-caught-up",
)
"""ERRORs that end a connection and no promise: to one that reads too slowly, while its node is stopped in
order, when it sends more than the disk can hold; and to those who share the name of a durable subscription: when
another one comes, when two nodes have made it apart, when a node has just started."""


class GoneError(Exception):
    """The connection could not be had, or ended."""


class Client:
    """One STOMP connection of a client."""

    def __init__(self, pipe: Pipe, name: str, ledger: Ledger, refusals: Collection[str] = ()) -> None:
        """`refusals` are codes of ERRORs that it expects, beside FAREWELLS."""
        self._pipe = pipe
        self._refusals = refusals
        self._name = name
        self._ledger = ledger
        self._connection = Connection(Role.CLIENT)

    async def send(self, *frames: bytes) -> None:
        try:
            await self._pipe.send_all(b"".join(frames))
        except trio.BrokenResourceError:
            raise GoneError("broken") from None

    async def read(self) -> list[Frame]:
        """The frames of one read; possibly none."""
        try:
            data = await self._pipe.receive_some(65536)
        except trio.BrokenResourceError:
            raise GoneError("broken") from None
        if not data:
            raise GoneError("ended")
        frames = self._connection.receive(data)
        if self._connection.error is not None:
            self._ledger.wrongs.append(f"{self._name} was sent bytes that break STOMP: {self._connection.error}")
            raise GoneError("garbage")
        for frame in frames:
            if frame.head.command == "ERROR":
                code = frame.head.headers.get("error-code", "")
                if code in FAREWELLS or code in self._refusals:
                    raise GoneError(code)
                self._ledger.wrongs.append(f"{self._name} got ERROR: {dict(frame.head.headers)}")
        return frames

    async def receipt(self) -> Frame:
        """The next RECEIPT; what comes before it is not looked at."""
        while True:
            for frame in await self.read():
                if frame.head.command == "RECEIPT":
                    return frame

    def close(self) -> None:
        self._pipe.close()


async def dial(stage: Stage, name: str, member: Member, port: int) -> Pipe:
    """A connection of the client `name` to a port of a node. Raises GoneError."""
    try:
        with trio.fail_after(LOGIN_SECONDS):
            return await stage.fabric.network(name).connect(member.host, port, None, "")
    except (OSError, trio.TooSlowError) as error:
        raise GoneError(str(error)) from None


@asynccontextmanager
async def connected(
    stage: Stage, name: str, member: Member, *, user: str = "", refusals: Collection[str] = ()
) -> AsyncIterator[Client]:
    """A logged-in connection of the client `name` to a node, which expects `refusals`. Raises GoneError.

    The passcode of `user` is the name of the user.
    """
    client = Client(await dial(stage, name, member, CLIENT_PORT), name, stage.ledger, refusals)
    login = [("login", user), ("passcode", user)] if user else []
    try:
        with trio.move_on_after(LOGIN_SECONDS) as scope:
            await client.send(encode_frame("CONNECT", [("accept-version", "1.2"), ("host", "mesh"), *login]))
            while not await client.read():
                pass
        if scope.cancelled_caught:
            raise GoneError("login took too long")
        yield client
    finally:
        client.close()
