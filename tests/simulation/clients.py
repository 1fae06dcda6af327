"""Scripted STOMP clients: publishers, fanout subscribers that hop between nodes, queue consumers.

All speak through the client half of the project's own codec over the simulated network. They behave as a good client
would: outcomes without an answer are unknown and not sent again, a fanout subscriber resumes with the vector of what
it has seen, a consumer works first and acknowledges then. When a connection ends they try another node.
"""

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from qmq.wire.stomp import Connection, Frame, Role, encode_frame
from qmq.world import Pipe
from tests.simulation.cluster import CLIENT_PORT, Member
from tests.simulation.ledger import Ledger, Sent, Stream, dot_of, resume_header
from tests.simulation.trace import Trace
from tests.support.network import Fabric

FANOUTS = ("/fanout/a", "/fanout/b")
QUEUES = ("/queue/x", "/queue/y")
TOPICS = ("/topic/t",)
LISTEN_AFTER_SECONDS = 0.2
"""Until the nodes listen."""

LOGIN_SECONDS = 1.5
RECEIPT_SECONDS = 1.5
"""An answer that takes longer is given up; the outcome is unknown then."""


class GoneError(Exception):
    """The connection could not be had, or ended."""


class Client:
    """One STOMP connection of a client."""

    def __init__(self, pipe: Pipe, name: str, ledger: Ledger) -> None:
        self._pipe = pipe
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
                if frame.head.headers.get("error-code") == "slow-consumer":
                    raise GoneError("too slow")
                self._ledger.wrongs.append(f"{self._name} got ERROR: {dict(frame.head.headers)}")
        return frames

    def close(self) -> None:
        self._pipe.close()


class Clients:
    """All clients of one simulation. `chance` of each comes from the seed and its name."""

    def __init__(self, seed: int, members: Iterable[Member], fabric: Fabric, ledger: Ledger, trace: Trace) -> None:
        self._seed = seed
        self._members = list(members)
        self._fabric = fabric
        self._ledger = ledger
        self._trace = trace
        self.settling = False
        """The faults are over: clients stay longer where they are."""

    @asynccontextmanager
    async def _connected(self, name: str, member: Member) -> AsyncIterator[Client]:
        """A logged-in connection of `name` to a node. Raises GoneError."""
        network = self._fabric.network(name)
        try:
            with trio.fail_after(LOGIN_SECONDS):
                pipe = await network.connect(member.host, CLIENT_PORT, None, "")
        except (OSError, trio.TooSlowError) as error:
            raise GoneError(str(error)) from None
        client = Client(pipe, name, self._ledger)
        try:
            with trio.move_on_after(LOGIN_SECONDS) as scope:
                await client.send(encode_frame("CONNECT", [("accept-version", "1.2"), ("host", "mesh")]))
                while not await client.read():
                    pass
            if scope.cancelled_caught:
                raise GoneError("login took too long")
            yield client
        finally:
            client.close()

    async def publish(self, name: str, seconds: float) -> None:
        """Send bursts to all kinds of destinations, for `seconds`."""
        chance = random.Random(f"{self._seed}/{name}")
        until = trio.current_time() + seconds
        number = 0
        while trio.current_time() < until:
            member = chance.choice(self._members)
            try:
                async with self._connected(name, member) as client:
                    while trio.current_time() < until and chance.random() > 0.06:
                        burst: list[Sent] = []
                        for _ in range(chance.randint(1, 6)):
                            number += 1
                            burst.append(self._ledger.send(name, number, draw_destination(chance), chance))
                        await self._send_burst(name, member, client, burst, chance.random() < 0.2)
                        await trio.sleep(chance.uniform(0.02, 0.7))
            except GoneError as gone:
                self._trace.note(f"{name} lost {member.name}: {gone}")
            await trio.sleep(chance.uniform(0.01, 0.2))

    async def _send_burst(self, name: str, member: Member, client: Client, burst: list[Sent], at_once: bool) -> None:
        """Send and wait for all receipts. `at_once`: in a transaction, so that all of them count or none."""
        waiting = {message.id: message for message in burst}
        self._trace.note(f"{name} sends {burst[0].id}..{burst[-1].number} to {member.name}")
        frames: list[bytes] = []
        for message in burst:
            headers = [("destination", message.destination), ("receipt", message.id), ("x-id", message.id)]
            if at_once:
                message.transaction = burst[0].number
                headers.append(("transaction", "t"))
            frames.append(encode_frame("SEND", headers, message.body))
        if at_once:
            transaction = [("transaction", "t")]
            frames = [encode_frame("BEGIN", transaction), *frames, encode_frame("COMMIT", transaction)]
        with trio.move_on_after(RECEIPT_SECONDS):
            await client.send(*frames)
            while waiting:
                for frame in await client.read():
                    if frame.head.command == "RECEIPT":
                        message = waiting.pop(frame.head.headers["receipt-id"])
                        assert member.node is not None
                        message.receipted_by = member.node.origin
                        self._trace.note(f"{name} has the receipt of {message.id}")
        if waiting:
            raise GoneError(f"{len(waiting)} outcomes unknown")

    async def follow(self, name: str, destination: str) -> None:
        """Follow a fanout, and a topic beside it, from node to node; for ever."""
        chance = random.Random(f"{self._seed}/{name}")
        stream = Stream(name, destination)
        self._ledger.streams.append(stream)
        while True:
            member = chance.choice(self._members)
            stay = chance.uniform(0.2, 3) * (4 if self.settling else 1)
            try:
                async with self._connected(name, member) as client:
                    with trio.move_on_after(stay):
                        await self._follow_one(name, member, client, stream, chance)
            except GoneError as gone:
                self._trace.note(f"{name} lost {member.name}: {gone}")
            await trio.sleep(chance.uniform(0.01, 0.3))

    async def _follow_one(
        self, name: str, member: Member, client: Client, stream: Stream, chance: random.Random
    ) -> None:
        headers = [("destination", stream.destination), ("id", "f")]
        if stream.vector:
            headers.append(("qmq-resume", resume_header(stream.vector)))
        topics = [encode_frame("SUBSCRIBE", [("destination", topic), ("id", topic)]) for topic in TOPICS]
        await client.send(encode_frame("SUBSCRIBE", headers), *topics)
        self._trace.note(f"{name} follows at {member.name} after {sorted(stream.vector.items())}")
        seen_here: set[str] = set()
        while True:
            if not self.settling and chance.random() < 0.02:
                await trio.sleep(chance.uniform(0, 1))  # a client that does not read for a while
            for frame in await client.read():
                head = frame.head.headers
                message_id = self._ledger.match(name, head["destination"], frame.body)
                if message_id is None:
                    continue
                self._trace.note(f"{name} is told {message_id}")
                if head.get("x-id") != message_id:
                    self._ledger.wrongs.append(f"I2 headers: {name} got {message_id} with x-id {head.get('x-id')}")
                if head["subscription"] == "f":
                    self._ledger.follow(stream, dot_of(head["message-id"]), message_id)
                    continue
                if message_id in seen_here:
                    self._ledger.wrongs.append(f"topic twice: {name} got {message_id} again at {member.name}")
                seen_here.add(message_id)

    async def listen(self, name: str, member: Member) -> None:
        """Listen to the topics at one node from the beginning, and stay. For a mesh without faults."""
        seen = self._ledger.listeners.setdefault(name, set())
        await trio.sleep(LISTEN_AFTER_SECONDS)
        async with self._connected(name, member) as client:
            await client.send(*(encode_frame("SUBSCRIBE", [("destination", t), ("id", t)]) for t in TOPICS))
            while True:
                for frame in await client.read():
                    message_id = self._ledger.match(name, frame.head.headers["destination"], frame.body)
                    if message_id is not None:
                        seen.add(message_id)

    async def consume(self, name: str, prefetch: int) -> None:
        """Work on queue messages at one node after the other; for ever."""
        chance = random.Random(f"{self._seed}/{name}")
        while True:
            member = chance.choice(self._members)
            stay = chance.uniform(0.3, 4) * (4 if self.settling else 1)
            # While the faults last some queues have no consumer, so that there is a backlog.
            queues = QUEUES if self.settling else chance.sample(QUEUES, chance.randint(1, len(QUEUES)))
            try:
                async with self._connected(name, member) as client:
                    with trio.move_on_after(stay):
                        await self._consume_one(name, member, client, queues, prefetch, chance)
            except GoneError as gone:
                self._trace.note(f"{name} lost {member.name}: {gone}")
            await trio.sleep(chance.uniform(0.01, 0.3))

    async def _consume_one(
        self, name: str, member: Member, client: Client, queues: Iterable[str], prefetch: int, chance: random.Random
    ) -> None:
        subscribe = [
            encode_frame(
                "SUBSCRIBE",
                [("destination", q), ("id", q), ("ack", "client-individual"), ("prefetch-count", str(prefetch))],
            )
            for q in queues
        ]
        await client.send(*subscribe)
        self._trace.note(f"{name} consumes at {member.name}")
        ledger = self._ledger
        while True:
            for frame in await client.read():
                head = frame.head.headers
                if frame.head.command == "RECEIPT":
                    ledger.receipt_of_ack(head["receipt-id"], member.name)
                    self._trace.note(f"{name} has the receipt of its ACK for {head['receipt-id']}")
                    continue
                if frame.head.command != "MESSAGE":
                    raise GoneError("refused")
                message_id = ledger.match(name, head["destination"], frame.body)
                if message_id is None:
                    continue
                self._trace.note(f"{name} is given {message_id}")
                ledger.give(message_id, member.name)
                if chance.random() < 0.3:
                    await trio.sleep(chance.uniform(0, 0.1))
                if chance.random() < 0.03:
                    await client.send(encode_frame("NACK", [("id", head["ack"])]))
                    continue
                ledger.consumed.add(message_id)
                await client.send(encode_frame("ACK", [("id", head["ack"]), ("receipt", message_id)]))


def draw_destination(chance: random.Random) -> str:
    """Mostly what must not be lost."""
    return chance.choice(chance.choice((FANOUTS, FANOUTS, FANOUTS, QUEUES, QUEUES, QUEUES, TOPICS)))
