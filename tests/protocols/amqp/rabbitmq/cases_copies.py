"""Cases of `cases`: publishes with the headers CC and BCC."""

from typing import Any

from pamqp import commands

from tests.protocols.amqp.rabbitmq.script import Script, case
from tests.protocols.amqp.rig import Message


def names(s: Script, *queues: str) -> list[str]:
    """Routing keys of the default exchange."""
    return [s.name(queue) for queue in queues]


async def queues(s: Script, *names: str) -> None:
    for name in names:
        await s.declare(name, quiet=True)


async def depths(s: Script, *queues: str) -> None:
    """Say how many messages each of these queues has."""
    for queue in queues:
        await s.declare(queue, passive=True)


async def headers_in(s: Script, queue: str) -> None:
    """Take a message, and say its exchange, key and table of headers."""
    found = await s.call(commands.Basic.Get(0, s.name(queue), True), (Message, commands.Basic.GetEmpty))
    if not isinstance(found, Message):
        s.say(found if isinstance(found, int) else "empty")
        return
    table = found.properties.headers
    plain = {
        name: [s.plain(one) if isinstance(one, str) else one for one in value] if isinstance(value, list) else value
        for name, value in (table or {}).items()
    }
    s.say(s.told(found)["exchange"], s.told(found)["key"], plain if table is not None else None)


@case
async def cc_to_the_default_exchange(s: Script) -> None:
    await queues(s, "q", "a", "b", "c")
    await s.publish(headers={"CC": names(s, "a", "b"), "n": 1})
    await depths(s, "q", "a", "b", "c")
    for queue in ("q", "a", "b"):
        found = await s.get(queue, no_ack=True)
        s.say(sorted((found.properties.headers or {}) if isinstance(found, Message) else []))


@case
async def bcc_to_the_default_exchange(s: Script) -> None:
    await queues(s, "q", "a", "b")
    await s.publish(headers={"CC": names(s, "a"), "BCC": names(s, "b"), "n": 1})
    for queue in ("q", "a", "b"):
        found = await s.get(queue, no_ack=True)
        s.say(sorted((found.properties.headers or {}) if isinstance(found, Message) else []))


@case
async def bcc_alone(s: Script) -> None:
    await queues(s, "q", "b")
    await s.publish(headers={"BCC": names(s, "b")})
    for queue in ("q", "b"):
        found = await s.call(commands.Basic.Get(0, s.name(queue), True), (Message, commands.Basic.GetEmpty))
        s.say(found.properties.headers if isinstance(found, Message) else "empty")


@case
async def cc_through_exchanges(s: Script) -> None:
    for type in ("direct", "topic", "fanout", "headers"):
        await s.exchange(f"e-{type}", type)
        for key in ("a", "b", "c"):
            await s.declare(f"{type}-{key}", quiet=True)
            await s.bind(f"{type}-{key}", f"e-{type}", key)
        await s.publish(exchange=f"e-{type}", key="a", headers={"CC": ["b", "b"], "BCC": ["d", "a"]})
        await depths(s, *(f"{type}-{key}" for key in ("a", "b", "c")))
        await headers_in(s, f"{type}-a")
        await headers_in(s, f"{type}-b")


@case
async def cc_with_patterns_that_overlap(s: Script) -> None:
    await s.exchange()
    await queues(s, "q", "both")
    await s.bind("q", key="eu.#")
    await s.bind("both", key="eu.new")
    await s.bind("both", key="us.*")
    await s.publish(exchange="e", key="eu.new", headers={"CC": ["eu.old", "us.new"]})
    await depths(s, "q", "both")


@case
async def cc_routes_what_the_key_does_not(s: Script) -> None:
    await queues(s, "a")
    await s.publish(key="none", mandatory=True, headers={"CC": names(s, "a", "also-none")})
    await headers_in(s, "a")
    await s.exchange("e", "direct")
    await s.bind("a", "e", "a")
    await s.publish(exchange="e", key="none", mandatory=True, headers={"BCC": ["a"]})
    await headers_in(s, "a")


@case
async def cc_that_leads_nowhere(s: Script) -> None:
    await s.publish(key="none", mandatory=True, headers={"CC": names(s, "nothing")})
    await s.publish(key="none", headers={"CC": names(s, "nothing")})
    await s.exchange()
    await s.publish(exchange="e", key="none", mandatory=True, headers={"BCC": ["nothing"]})


@case
async def what_is_returned_has_no_bcc(s: Script) -> None:
    await s.client.publish(
        s.name("none"), b"m", mandatory=True, headers={"CC": names(s, "x"), "BCC": names(s, "y"), "n": 1}
    )
    await s.answer(commands.Basic.Ack)
    (message,) = [one for _, one in s.client.received if isinstance(one, Message)]
    s.say(sorted(message.properties.headers))


@case
async def cc_with_an_alternate(s: Script) -> None:
    await queues(s, "q", "rest")
    await s.exchange("rest", "fanout")
    await s.bind("rest", "rest")
    await s.exchange("e", "direct", arguments={"alternate-exchange": "rest"})
    await s.bind(key="a")
    await s.publish(exchange="e", key="none", headers={"CC": ["a"]})
    await depths(s, "q", "rest")
    await s.publish(exchange="e", key="none", headers={"CC": ["b"]})
    await depths(s, "q", "rest")


@case
async def cc_that_is_no_array(s: Script) -> None:
    await queues(s, "q")
    for name in ("CC", "BCC"):
        wrong: Any
        for wrong in ("q", 5, True, {"a": "q"}, None):
            await s.publish(headers={name: wrong})
    await depths(s, "q")


@case
async def cc_with_what_is_no_text(s: Script) -> None:
    await queues(s, "q", "a")
    await s.publish(headers={"CC": [5, s.name("a"), {"a": 1}, True]})
    await s.publish(headers={"CC": []})
    await depths(s, "q", "a")


@case
async def cc_to_a_full_queue(s: Script) -> None:
    await queues(s, "q")
    await s.declare("full", quiet=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await s.publish(key="full")
    await s.publish(headers={"CC": names(s, "full")})
    await s.publish(headers={"CC": names(s, "none")})


@case
async def cc_to_a_full_queue_is_all_or_none(s: Script) -> None:
    await queues(s, "q")
    await s.declare("full", quiet=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    await s.publish(key="full")
    await s.publish(headers={"CC": names(s, "full")})
    await depths(s, "q", "full")


@case
async def cc_through_joined_exchanges(s: Script) -> None:
    await s.exchange("e", "direct")
    await s.exchange("f", "topic")
    await s.try_(commands.Exchange.Bind(0, s.name("f"), s.name("e"), "x"), commands.Exchange.BindOk)
    await queues(s, "q", "a")
    await s.bind("q", "f", "x")
    await s.bind("a", "f", "y.#")
    await s.publish(exchange="e", key="x", headers={"CC": ["y.z"]})
    await depths(s, "q", "a")


@case
async def cc_to_another_missing_exchange(s: Script) -> None:
    await s.publish(exchange="none", key="a", headers={"CC": ["b"]})


@case
async def cc_in_a_transaction(s: Script) -> None:
    s.confirms = False
    await s.begin()
    await queues(s, "q", "a")
    await s.try_(commands.Tx.Select(), commands.Tx.SelectOk)
    await s.client.publish(s.name("q"), b"1", headers={"CC": names(s, "a")})
    await s.try_(commands.Tx.Rollback(), commands.Tx.RollbackOk)
    await depths(s, "q", "a")
    await s.client.publish(s.name("q"), b"2", headers={"CC": names(s, "a")})
    await s.try_(commands.Tx.Commit(), commands.Tx.CommitOk)
    await depths(s, "q", "a")


@case
async def cc_of_a_dead_letter(s: Script) -> None:
    await s.exchange("dlx", "direct")
    for key in ("q", "a"):
        await s.declare(f"dead-{key}", quiet=True)
        await s.bind(f"dead-{key}", "dlx", s.name(key))
    await s.declare(quiet=True, arguments={"x-dead-letter-exchange": "dlx"})
    await s.declare("a", quiet=True)
    await s.publish(headers={"CC": names(s, "a")})
    await s.consume()
    (message,) = await s.deliveries(1)
    await s.nack(message.method.delivery_tag, requeue=False)
    await s.settled()
    await s.get("dead-q")
    await s.get("dead-a")
