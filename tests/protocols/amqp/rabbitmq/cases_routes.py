"""Cases of `cases`: bindings between exchanges."""

from typing import Any

from pamqp import commands

from tests.protocols.amqp.rabbitmq.script import Script, case


async def join(s: Script, target: str, source: str, key: str = "", **options: Any) -> None:
    """Bind an exchange to an exchange."""
    method = commands.Exchange.Bind(0, s.name(target), s.name(source), key, **options)
    await s.try_(method, commands.Exchange.BindOk)


async def part(s: Script, target: str, source: str, key: str = "", **options: Any) -> None:
    """Undo `join`."""
    method = commands.Exchange.Unbind(0, s.name(target), s.name(source), key, **options)
    await s.try_(method, commands.Exchange.UnbindOk)


async def chain(s: Script, *types: str) -> None:
    """Exchanges `e0`, `e1`, … of these types, each with a queue `q0`, `q1`, … with the key `a`."""
    for number, type in enumerate(types):
        await s.exchange(f"e{number}", type)
        await s.declare(f"q{number}", quiet=True)
        await s.bind(f"q{number}", f"e{number}", "a")


async def sent(s: Script, key: str, *queues: str, **properties: Any) -> None:
    """Say how a mandatory publish to `e0` is confirmed, and which queues have it, how often."""
    await s.publish(exchange="e0", key=key, mandatory=True, **properties)
    for queue in queues:
        await s.declare(queue, passive=True)
    await s.where(*queues)


@case
async def joined_exchanges(s: Script) -> None:
    await chain(s, "direct", "topic", "fanout")
    await join(s, "e1", "e0", "a")
    await join(s, "e2", "e1", "a.#")
    await sent(s, "a", "q0", "q1", "q2")
    await sent(s, "b", "q0", "q1", "q2")


@case
async def joined_by_headers(s: Script) -> None:
    await chain(s, "headers", "fanout")
    await join(s, "e1", "e0", arguments={"x-match": "any", "colour": "red"})
    await sent(s, "a", "q1", headers={"colour": "red"})
    await sent(s, "a", "q1", headers={"colour": "blue"})


@case
async def joined_in_a_cycle(s: Script) -> None:
    await chain(s, "fanout", "fanout", "fanout")
    for target, source in (("e1", "e0"), ("e2", "e1"), ("e0", "e2"), ("e0", "e0"), ("e2", "e0")):
        await join(s, target, source)
    await s.bind("q2", "e0", "a")
    await sent(s, "a", "q0", "q1", "q2")


@case
async def joined_with_an_alternate(s: Script) -> None:
    await s.declare("rest", quiet=True)
    await s.exchange("rest", "fanout")
    await s.bind("rest", "rest")
    await s.exchange("e0", "fanout", arguments={"alternate-exchange": "rest"})
    await s.exchange("e1", "direct")
    await join(s, "e1", "e0")
    await sent(s, "a", "rest")
    await part(s, "e1", "e0")
    await sent(s, "a", "rest")


@case
async def joined_to_one_with_an_alternate(s: Script) -> None:
    await s.declare("rest", quiet=True)
    await s.exchange("rest", "fanout")
    await s.bind("rest", "rest")
    await chain(s, "fanout", "direct")
    await s.exchange("e2", "direct", arguments={"alternate-exchange": "rest"})
    await join(s, "e2", "e0")
    await sent(s, "a", "q0", "q1", "rest")


@case
async def joined_and_parted(s: Script) -> None:
    await chain(s, "direct", "fanout")
    await join(s, "e1", "e0", "a")
    await join(s, "e1", "e0", "a")
    await part(s, "e1", "e0", "b")
    await sent(s, "a", "q0", "q1")
    await part(s, "e1", "e0", "a")
    await sent(s, "a", "q0", "q1")
    await part(s, "e1", "e0", "a")


@case
async def joined_to_what_is_missing(s: Script) -> None:
    await s.exchange("e0", "fanout")
    await join(s, "none", "e0")
    await join(s, "e0", "none")
    await join(s, "", "e0")
    await join(s, "e0", "")


@case
async def parted_from_what_is_missing(s: Script) -> None:
    await s.exchange("e0", "fanout")
    await part(s, "none", "e0")
    await part(s, "e0", "none")
    await part(s, "", "e0")
    await part(s, "e0", "")


@case
async def joined_and_deleted(s: Script) -> None:
    await chain(s, "fanout", "fanout")
    await join(s, "e1", "e0")
    # The bindings of `e1`, as their target, do not make it used; its own do.
    await s.try_(commands.Exchange.Delete(0, s.name("e1"), if_unused=True), commands.Exchange.DeleteOk)
    await s.try_(commands.Queue.Unbind(0, s.name("q1"), s.name("e1"), "a"), commands.Queue.UnbindOk)
    await s.try_(commands.Exchange.Delete(0, s.name("e1"), if_unused=True), commands.Exchange.DeleteOk)
    await s.exchange("e1", "fanout")
    await s.bind("q1", "e1")
    await sent(s, "a", "q0", "q1")
    await join(s, "e1", "e0")
    await s.try_(commands.Exchange.Delete(0, s.name("e0"), if_unused=True), commands.Exchange.DeleteOk)
    await s.try_(commands.Exchange.Delete(0, s.name("e0")), commands.Exchange.DeleteOk)
    await s.exchange("e0", "fanout")
    await s.publish(exchange="e0", key="a", mandatory=True)
    await sent(s, "a", "q0", "q1")


@case
async def a_message_of_joined_exchanges(s: Script) -> None:
    await chain(s, "topic", "fanout")
    await join(s, "e1", "e0", "*.b")
    await s.publish(exchange="e0", key="a.b")
    await s.get("q1")


@case
async def joined_behind_dead_letters(s: Script) -> None:
    await s.exchange("dlx", "topic")
    await s.exchange("e0", "fanout")
    await join(s, "e0", "dlx", "gone.#")
    await s.declare("dead", quiet=True)
    await s.bind("dead", "e0")
    dead_letters = {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "gone.q"}
    await s.declare(quiet=True, arguments=dead_letters)
    await s.publish()
    await s.consume()
    (message,) = await s.deliveries(1)
    await s.nack(message.method.delivery_tag, requeue=False)
    await s.settled()
    await s.get("dead")


@case
async def joined_to_an_internal_one(s: Script) -> None:
    await chain(s, "fanout")
    await s.exchange("e1", "fanout", internal=True)
    await s.exchange("e1", "fanout", internal=True)
    await s.declare("q1", quiet=True)
    await s.bind("q1", "e1")
    await join(s, "e1", "e0")
    await sent(s, "a", "q0", "q1")


@case
async def internal_exchange_takes_nothing_of_a_client(s: Script) -> None:
    await s.exchange(internal=True)
    await s.declare(quiet=True)
    await s.bind()
    await s.publish(exchange="e")
    await s.publish(exchange="e", mandatory=True)
    await s.get()


@case
async def internal_exchange_as_one_that_is_not(s: Script) -> None:
    await s.exchange(internal=True)
    await s.exchange()
    await s.exchange("f")
    await s.exchange("f", internal=True)


@case
async def internal_exchange_as_an_alternate(s: Script) -> None:
    await s.exchange("rest", "fanout", internal=True)
    await s.declare("rest", quiet=True)
    await s.bind("rest", "rest")
    await s.exchange("e0", "direct", arguments={"alternate-exchange": "rest"})
    await sent(s, "a", "rest")
