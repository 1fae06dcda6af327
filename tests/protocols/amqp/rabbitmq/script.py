"""What a client of AMQP does and sees, as values of JSON: the same script runs at a QMQ node and at a RabbitMQ."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from pamqp import base, commands

from tests.protocols.amqp.rig import AmqpClient, Message

ANSWER_SECONDS = 30.0
QUIET_SECONDS = 0.4
"""After which nothing more comes: of real time at RabbitMQ."""


class Script:
    """One client with one channel, in confirm mode. Names of queues and exchanges get a prefix, unless reserved."""

    def __init__(self, connect: Callable[[], Awaitable[AmqpClient]], prefix: str) -> None:
        self._connect = connect
        self._prefix = prefix
        self.client: AmqpClient
        self.confirms = True
        self.said: list[Any] = []
        """The outcome."""

    async def begin(self) -> None:
        self.client = await self._connect()
        await self._open()

    async def _open(self) -> None:
        self.client.received.clear()
        await self.client.call(1, commands.Channel.Open(), commands.Channel.OpenOk)
        if self.confirms:
            await self.client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

    def name(self, name: str) -> str:
        return name if not name or name.startswith("amq.") else f"{self._prefix}{name}"

    def plain(self, name: str) -> str:
        """Undo `name`."""
        return name.removeprefix(self._prefix)

    def say(self, *what: Any) -> None:
        self.said.append(list(what) if len(what) > 1 else what[0])

    # Methods

    async def call(self, method: base.Frame, answer: Any) -> Any:
        """The answer; or the code with which the channel, or the connection, is closed."""
        await self.client.send(1, method)
        return await self.answer(answer)

    async def answer(self, kind: Any) -> Any:
        client = self.client
        with trio.fail_after(ANSWER_SECONDS):
            while True:
                for index, (_, found) in enumerate(client.received):
                    if isinstance(found, kind):
                        return client.received.pop(index)[1]
                    if isinstance(found, commands.Channel.Close):
                        await client.send(1, commands.Channel.CloseOk())
                        await self._open()
                        return found.reply_code
                    if isinstance(found, commands.Connection.Close):
                        await self.begin()
                        return found.reply_code
                assert not client.ended, f"the connection has ended; expected {kind}"
                await client._read()

    async def try_(self, method: base.Frame, answer: Any) -> None:
        """Say `ok`, or with which code it was refused."""
        found = await self.call(method, answer)
        self.say(found if isinstance(found, int) else "ok")

    async def declare(self, queue: str = "q", *, quiet: bool = False, **options: Any) -> Any:
        """Say the messages and consumers that the queue has, or the code."""
        arguments = {
            key: self.name(value) if key.startswith("x-dead") and key.endswith("exchange") else value
            for key, value in (options.pop("arguments", None) or {}).items()
        }
        if "x-dead-letter-routing-key" in arguments and arguments.get("x-dead-letter-exchange") == "":
            arguments["x-dead-letter-routing-key"] = self.name(arguments["x-dead-letter-routing-key"])
        method = commands.Queue.Declare(
            0, self.name(queue), **{"durable": True, **options, "arguments": arguments or None}
        )
        found = await self.call(method, commands.Queue.DeclareOk)
        if not quiet:
            self.say(found if isinstance(found, int) else [found.message_count, found.consumer_count])

    async def exchange(self, name: str = "e", type: str = "topic", **options: Any) -> None:
        arguments = {key: self.name(value) for key, value in (options.pop("arguments", None) or {}).items()}
        options = {"durable": True, **options, "arguments": arguments or None}
        await self.try_(commands.Exchange.Declare(0, self.name(name), type, **options), commands.Exchange.DeclareOk)

    async def bind(self, queue: str = "q", exchange: str = "e", key: str = "", **options: Any) -> None:
        method = commands.Queue.Bind(0, self.name(queue), self.name(exchange), key, **options)
        await self.try_(method, commands.Queue.BindOk)

    async def publish(
        self, body: bytes = b"m", key: str = "q", exchange: str = "", mandatory: bool = False, **properties: Any
    ) -> None:
        """Say how it is confirmed, and if it is returned, with which code."""
        client = self.client
        key = key if exchange else self.name(key)
        await client.publish(
            key, body, exchange=self.name(exchange), mandatory=mandatory, **{"delivery_mode": 2, **properties}
        )
        found = await self.answer((commands.Basic.Ack, commands.Basic.Nack))
        if isinstance(found, int):
            self.say(found)
            return
        returned = [
            one.method.reply_code
            for _, one in client.received
            if isinstance(one, Message) and isinstance(one.method, commands.Basic.Return)
        ]
        client.received = [
            one
            for one in client.received
            if not (isinstance(one[1], Message) and isinstance(one[1].method, commands.Basic.Return))
        ]
        self.say(type(found).__name__.lower(), *returned)

    async def get(self, queue: str = "q", *, no_ack: bool = True) -> Any:
        """Say the message, or `empty`."""
        found = await self.call(commands.Basic.Get(0, self.name(queue), no_ack), (Message, commands.Basic.GetEmpty))
        if isinstance(found, Message):
            self.say(self.told(found))
        else:
            self.say(found if isinstance(found, int) else "empty")
        return found

    async def where(self, *queues: str) -> None:
        """Say which of these queues have a message, and take it."""
        having = []
        for queue in queues:
            found = await self.call(commands.Basic.Get(0, self.name(queue), True), (Message, commands.Basic.GetEmpty))
            if isinstance(found, Message):
                having.append(queue)
        self.say(having)

    async def consume(self, queue: str = "q", tag: str = "c", **options: Any) -> None:
        await self.try_(commands.Basic.Consume(0, self.name(queue), tag, **options), commands.Basic.ConsumeOk)

    async def deliveries(self, count: int) -> list[Message]:
        """Say so many messages that come, or fewer if no more do."""
        found: list[Message] = []
        with trio.move_on_after(QUIET_SECONDS * 3):
            while len(found) < count:
                message = await self.answer((Message, commands.Basic.Cancel))
                if not isinstance(message, Message):
                    self.say("cancelled" if isinstance(message, commands.Basic.Cancel) else message)
                    break
                found.append(message)
        self.say([[one.body.decode(), one.method.redelivered, one.method.consumer_tag] for one in found])
        return found

    async def quiet(self) -> None:
        """Say what still comes."""
        with trio.move_on_after(QUIET_SECONDS):
            while True:
                await self.client._read()
        self.say([type(one).__name__ for _, one in self.client.received])

    async def ack(self, tag: int, multiple: bool = False) -> None:
        await self.client.send(1, commands.Basic.Ack(tag, multiple))

    async def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> None:
        await self.client.send(1, commands.Basic.Nack(tag, multiple, requeue))

    async def settled(self) -> None:
        """Say whether the channel is still open, when the node has obeyed what was sent."""
        await self.try_(commands.Basic.Qos(0, 0, False), commands.Basic.QosOk)

    def told(self, message: Message) -> dict[str, Any]:
        """The message, without what differs from run to run."""
        method = message.method
        facts: dict[str, Any] = {
            "body": message.body.decode(),
            "redelivered": method.redelivered,
            "exchange": self.plain(method.exchange),
            "key": self.plain(method.routing_key),
        }
        headers = message.properties.headers or {}
        for name in ("expiration", "priority", "delivery_mode"):
            facts[name] = getattr(message.properties, name)
        if "x-death" in headers:
            facts["x-death"] = [
                [
                    one["reason"],
                    self.plain(one["queue"]),
                    one["count"],
                    self.plain(one["exchange"]),
                    [self.plain(key) for key in one["routing-keys"]],
                ]
                for one in headers["x-death"]
            ]
            first = [headers[f"x-first-death-{name}"] for name in ("reason", "queue", "exchange")]
            facts["x-first-death"] = [self.plain(one) for one in first]
        return facts


Case = Callable[[Script], Awaitable[None]]

CASES: Final[dict[str, Case]] = {}
"""What `cases` is made of, by name."""

DLX: Final = {"x-dead-letter-exchange": "dlx"}


def case(function: Case) -> Case:
    """Add a script that is named like its function."""
    CASES[function.__name__] = function
    return function
