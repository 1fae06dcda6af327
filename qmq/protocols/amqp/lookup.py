"""Whether a queue or an exchange exists in the mesh.

AMQP refuses what does not exist, and drops a publish to it. So before this node says that something does not exist, it
asks its peers: a client of another node may have declared it a moment ago. A queue exists if it is declared, has
messages, or has consumers; STOMP clients use queues that are not declared.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from qmq.admin.control import FACTS, LIST, ControlRequest
from qmq.admin.parts import AdminParts
from qmq.engine.runtime.contexts import Committing, Engine, Tasks
from qmq.gateways.rules import Rules
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.names import Vhost, exchange_name
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.sync import DefinitionSync
from qmq.settings.routing.definitions import RoutingDefinitions


class LookupContext(Engine, Committing, Tasks, Protocol):
    admin: AdminParts
    declared_queues: DeclaredQueues
    definition_sync: DefinitionSync
    routing: RoutingDefinitions
    rules: Rules


def knows_queue(context: LookupContext, queue: str) -> bool:
    """Whether this node knows the queue without asking: it is declared, or in use here."""
    return queue in context.declared_queues.texts or queue in context.broker.queues.by_name


async def queue_exists(context: LookupContext, queue: str) -> bool:
    """Whether the queue exists on any node that can be reached."""
    if knows_queue(context, queue):
        return True
    await context.definition_sync.refresh()
    if knows_queue(context, queue):
        return True
    messages, consumers = await queue_counts(context, queue)
    return bool(messages or consumers)


async def check_queue(context: LookupContext, queue: str, name: str, vhost: Vhost) -> None:
    """Raises AmqpRefusal if there is no such queue."""
    if not await queue_exists(context, queue):
        raise AmqpRefusal(ReplyCode.NOT_FOUND, f"no queue {name!r} in vhost {vhost.name!r}")


async def check_exchange(context: LookupContext, name: str, vhost: Vhost) -> None:
    """Raises AmqpRefusal if there is no such exchange."""
    exchange = exchange_name(name, vhost)
    if exchange not in context.routing.table.exchanges:
        await context.definition_sync.refresh()
    if exchange not in context.routing.table.exchanges:
        raise AmqpRefusal(ReplyCode.NOT_FOUND, f"no exchange {name!r} in vhost {vhost.name!r}")


async def queue_counts(context: LookupContext, queue: str) -> tuple[int, int]:
    """Messages that are not in flight, and consumers, of a queue in the mesh, as far as nodes respond."""
    facts = await context.admin.lists.merged(ControlRequest(LIST, queue, limit=1), is_mesh=True)
    # The name itself comes first among those that begin with it.
    for row in facts[FACTS[LIST]]:
        if row["destination"] == queue:
            return max(0, row["messages"] - row["in_flight"]), row["consumers"]
    return 0, 0


def counts_here(context: LookupContext, queue: str) -> tuple[int, int]:
    """The same as far as this node knows without asking its peers or its store: its messages in memory, its consumers,
    and the peers that have some."""
    found = context.broker.queues.by_name.get(queue)
    if found is None:
        return 0, 0
    in_flight = sum([len(one.in_flight) for one in found.subscriptions])
    return max(0, found.depth - in_flight), len(found.subscriptions) + len(found.borrowers or ())


Ask = Callable[[str], Awaitable[bool]]


@dataclass(slots=True)
class _Question:
    """One that is under way. `answer` is None until it is over, and if it was cancelled."""

    answer: bool | None = None
    is_over: trio.Event = field(default_factory=trio.Event)


class Questions:
    """Questions of the publishers of one node to the mesh, whether a queue exists: one at a time for each queue. So is
    the question for new bindings, under the name PREFIX; its answer is always "no".

    A publish that comes after a queue was declared on any node must find it. So a "no" counts only for publishes that
    came before its question began; those that come meanwhile wait, and are all answered by the next one. A "yes"
    counts for all. Nothing is remembered after that: no clock and no record of a peer could say for how long a "no" is
    true.
    """

    def __init__(self) -> None:
        self._asked: dict[str, _Question] = {}

    async def exists(self, queue: str, ask: Ask) -> bool:
        """Whether the queue exists now. `ask` asks the mesh; it is not called if another publisher does so."""
        before = self._asked.get(queue)
        while True:
            question = self._asked.get(queue)
            if question is None:
                return await self._ask(queue, ask)
            await question.is_over.wait()
            if question.answer or (question is not before and question.answer is not None):
                return question.answer

    async def _ask(self, queue: str, ask: Ask) -> bool:
        question = self._asked[queue] = _Question()
        try:
            question.answer = await ask(queue)
            return question.answer
        finally:
            del self._asked[queue]
            question.is_over.set()
