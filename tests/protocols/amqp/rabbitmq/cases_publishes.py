"""Cases of `cases`: publishes, returns and routing."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pamqp import commands

from tests.protocols.amqp.rabbitmq.script import CASES, Script, case

# Publishes


@case
async def publish_to_a_missing_exchange(s: Script) -> None:
    await s.publish(exchange="none")


@case
async def publish_to_a_missing_queue(s: Script) -> None:
    await s.publish(key="none")


@case
async def mandatory_to_a_missing_queue(s: Script) -> None:
    await s.publish(key="none", mandatory=True)


@case
async def mandatory_without_a_binding(s: Script) -> None:
    await s.exchange()
    await s.publish(exchange="e", key="a", mandatory=True)


@case
async def mandatory_with_a_binding(s: Script) -> None:
    await s.declare(quiet=True)
    await s.exchange()
    await s.bind(key="a")
    await s.publish(exchange="e", key="a", mandatory=True)
    await s.get()


@case
async def mandatory_through_an_alternate(s: Script) -> None:
    await s.declare(quiet=True)
    await s.exchange("rest", "fanout")
    await s.exchange(arguments={"alternate-exchange": "rest"})
    await s.bind(exchange="rest")
    await s.publish(exchange="e", key="a", mandatory=True)
    await s.get()


@case
async def immediate(s: Script) -> None:
    await s.client.pipe.send_all(
        b"".join([s.client.publishing("x", b"m").replace(b"\x00\x01x\x00\xce", b"\x00\x01x\x02\xce")])
    )
    found = await s.answer((commands.Basic.Ack, commands.Basic.Nack))
    s.say(found if isinstance(found, int) else type(found).__name__)


@case
async def unbound_gets_no_more(s: Script) -> None:
    await s.declare(quiet=True)
    await s.exchange()
    await s.bind(key="a")
    await s.try_(commands.Queue.Unbind(0, s.name("q"), s.name("e"), "a"), commands.Queue.UnbindOk)
    await s.publish(exchange="e", key="a")
    await s.get()


ROUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "direct": {"one": "a", "two": "b", "both": "a", "empty": ""},
    "fanout": {"one": "a", "two": ""},
    "topic": {"all": "#", "word": "*", "eu": "eu.*", "deep": "eu.#", "new": "#.new", "middle": "*.x.*"},
}
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "direct": ("a", "b", "", "A", "a.b"),
    "fanout": ("", "a", "z.z"),
    "topic": ("", "a", "eu", "eu.new", "eu.x.new", "a.x.b", "new", "eu.", ".new"),
}


async def _routed(type: str, key: str, s: Script) -> None:
    await s.exchange(type=type)
    for queue, pattern in ROUTES[type].items():
        await s.declare(queue, quiet=True)
        await s.bind(queue, key=pattern)
    if type == "direct":
        await s.bind("both", key="b")
    await s.publish(exchange="e", key=key)
    await s.where(*ROUTES[type])


CASES.update(
    {f"routed-{type}-{key or 'nothing'}": partial(_routed, type, key) for type, keys in KEYS.items() for key in keys}
)

HEADERS: Final[Mapping[str, dict[str, Any]]] = {
    "none": {},
    "one": {"a": "1"},
    "both": {"a": "1", "b": 2},
    "other": {"a": "2", "b": 2},
    "more": {"a": "1", "b": 2, "c": True},
}


async def _by_headers(headers: dict[str, Any], s: Script) -> None:
    await s.exchange(type="headers")
    for queue, match in (("all", "all"), ("any", "any")):
        await s.declare(queue, quiet=True)
        await s.bind(queue, arguments={"x-match": match, "a": "1", "b": 2})
    await s.publish(exchange="e", key="", headers=headers)
    await s.where("all", "any")


CASES.update({f"routed-headers-{name}": partial(_by_headers, one) for name, one in HEADERS.items()})
