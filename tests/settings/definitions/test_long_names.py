"""Names that are too long for any client, as targets of rules: refused at each door, as a policy refuses them.

A message that reached such a queue could not be redriven, moved, shown or received.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pamqp import commands
from trio.testing import MockClock

from qmq.definitions.document import document
from qmq.settings.definitions.live import LiveDefinitions
from tests.node.rig import Rig
from tests.protocols.amqp.rig import LISTENER, connect
from tests.protocols.http.rig import dial, web_rig
from tests.settings.definitions.test_declared_queues import request

LIMIT = "must have at most 255 bytes (limits.destination_bytes_max)"
Door = Callable[[Rig, str], Awaitable[str]]


async def asked(rig: Rig, what: str, body: object) -> str:
    """What the refusal says; "" for a RECEIPT."""
    return (await request(await rig.connect(), what, body)).get("message", "")


async def declare_by_a_verb(rig: Rig, name: str) -> str:
    return await asked(rig, "declare/queue/jobs", {"dead_letter": name})


async def declare_with_an_overflow(rig: Rig, name: str) -> str:
    return await asked(rig, "declare/queue/jobs", {"max_messages": 1, "overflow": "drop-oldest", "dead_letter": name})


async def declare_by_a_definition(rig: Rig, name: str) -> str:
    return await asked(rig, "definitions/put/queue/queue/jobs", {"dead_letter": name})


async def set_a_policy(rig: Rig, name: str) -> str:
    return await asked(rig, "definitions/put/policy/queue/jobs", {"dead_letter": name})


async def feed_a_child(rig: Rig, name: str) -> str:
    return await asked(rig, "definitions/put/policy/fanout/news", {"children": [name]})


async def import_a_queue(rig: Rig, name: str) -> str:
    said = await asked(rig, "definitions/import", document({"queue": {name: {}}}))
    assert said == "" or f"queue {name[:64]}" in said
    return said


async def import_a_binding(rig: Rig, name: str) -> str:
    value = {"source": "/topic/news", "queue": name}
    return await asked(rig, "definitions/import", document({"binding": {f"/topic/news {name}": value}}))


async def import_a_file(rig: Rig, name: str) -> str:
    return await asked(rig, "definitions/import", document({"queue": {"/queue/jobs": {"dead_letter": name}}}))


async def declare_over_http(rig: Rig, name: str) -> str:
    response = await (await dial(rig)).post("/v1/control/declare/queue/jobs", {"dead_letter": name})
    return "" if response.status == 200 else response.body.decode()


async def declare_over_amqp(rig: Rig, name: str) -> str:
    client = await connect(rig)
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name.removeprefix("/queue/")}
    await client.send(1, commands.Queue.Declare(0, "jobs", durable=True, arguments=to))
    _, method = await client.next_of(commands.Queue.DeclareOk | commands.Channel.Close)
    return str(method.reply_text) if isinstance(method, commands.Channel.Close) else ""


DOORS: list[Door] = [
    declare_by_a_verb,
    declare_with_an_overflow,
    declare_by_a_definition,
    set_a_policy,
    feed_a_child,
    import_a_queue,
    import_a_binding,
    import_a_file,
    declare_over_http,
    declare_over_amqp,
]


def defined(definitions: LiveDefinitions) -> dict[str, Any]:
    return {kind: values for kind in ("queue", "policy", "binding") if (values := definitions.values(kind))}


@pytest.mark.parametrize("door", DOORS, ids=lambda door: str(door.__name__))
async def test_a_target_that_no_client_could_name_is_refused(autojump_clock: MockClock, door: Door) -> None:
    for letters, is_refused in ((248, False), (249, True)):
        async with web_rig(amqp=(LISTENER,)).run() as rig:
            said = await door(rig, "/queue/" + "l" * letters)

            assert (LIMIT in said, said != "") == (is_refused, is_refused), said
            assert (defined(rig.alive.settings_parts.definitions) == {}) is is_refused
