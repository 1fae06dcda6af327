"""Whether a queue or an exchange exists in the mesh.

AMQP refuses what does not exist, and drops a publish to it. So before this node says that something does not exist, it
asks its peers: a client of another node may have declared it a moment ago. A queue exists if it is declared, has
messages, or has consumers; STOMP clients use queues that are not declared.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import trio

from qmq.access.rights import Need, Rights
from qmq.access.rules import Action
from qmq.broker.broker import Broker
from qmq.broker.routing.table import RoutingTable
from qmq.config import DestinationPolicy
from qmq.definitions.definition import Key
from qmq.mesh.peers.calls import Facts
from qmq.model.routing_names import PREFIX
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.names import Vhost, exchange_name
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.sync import DefinitionSync
from qmq.settings.routing.definitions import VhostDefinitions
from qmq.verbs.verb import NO_HEADERS, Verb


@dataclass(eq=False, repr=False)
class Lookup:
    """What exists, for all AMQP connections of one node. `row_of`: what all nodes say of a queue; None if none has it.
    `policy_of`: what applies to a queue now.
    """

    _broker: Broker
    _declared: DeclaredQueues
    table: RoutingTable
    _vhosts: VhostDefinitions
    _sync: DefinitionSync
    _row_of: Callable[[str], Awaitable[Facts | None]]
    policy_of: Callable[[str], DestinationPolicy]

    def __post_init__(self) -> None:
        self.node = self._broker.origin.node
        self.questions = Questions()

    async def refresh(self) -> None:
        """Learn what clients of other nodes have declared a moment ago."""
        await self._sync.refresh()

    async def is_latest(self, key: Key) -> bool:
        """Whether no member knows a later change of this definition than this node, as `DefinitionSync.knows_latest`.

        So a client that declares before each use costs a question and no change. False: the verb decides.
        """

        async def is_later(_: str) -> bool:
            return not await self._sync.knows_latest([key])

        return self._declared.reaches_all() and not await self.questions.exists(" ".join(key), is_later)

    async def vhost_exists(self, name: str) -> bool:
        """Whether clients may open this virtual host."""
        if not self._vhosts.exists(name):
            await self._sync.refresh()
        return self._vhosts.exists(name)

    def knows_queue(self, queue: str) -> bool:
        """Whether this node knows the queue without asking: it is declared, or in use here."""
        return queue in self._declared.texts or queue in self._broker.queues.by_name

    async def queue_exists(self, queue: str) -> bool:
        """Whether the queue exists on any node that can be reached."""
        if self.knows_queue(queue):
            return True
        await self._sync.refresh()
        if self.knows_queue(queue):
            return True
        messages, consumers = await self.queue_counts(queue)
        return bool(messages or consumers)

    async def check_queue(self, queue: str, name: str, vhost: Vhost) -> None:
        """Raises AmqpRefusal if there is no such queue."""
        if not await self.queue_exists(queue):
            raise AmqpRefusal(ReplyCode.NOT_FOUND, f"no queue {name!r} in vhost {vhost.name!r}")

    async def exchange_exists(self, exchange: str) -> bool:
        """Whether the mesh has an exchange of this name."""
        if exchange not in self.table.exchanges:
            await self._sync.refresh()
        return exchange in self.table.exchanges

    async def check_exchange(self, name: str, vhost: Vhost) -> None:
        """Raises AmqpRefusal if there is no such exchange."""
        if not await self.exchange_exists(exchange_name(name, vhost)):
            raise AmqpRefusal(ReplyCode.NOT_FOUND, f"no exchange {name!r} in vhost {vhost.name!r}")

    async def queue_counts(self, queue: str) -> tuple[int, int]:
        """Messages that are not in flight, and consumers, of a queue in the mesh, as far as nodes respond."""
        row = await self._row_of(queue)
        return (0, 0) if row is None else (max(0, row["messages"] - row["in_flight"]), row["consumers"])

    def counts_here(self, queue: str) -> tuple[int, int]:
        """The same as far as this node knows without asking its peers or its store: its messages in memory, its
        consumers, and the peers that have some."""
        found = self._broker.queues.by_name.get(queue)
        if found is None:
            return 0, 0
        in_flight = sum([len(one.in_flight) for one in found.subscriptions])
        return max(0, found.depth - in_flight), len(found.subscriptions) + len(found.borrowers or ())


def check_any_right(rights: Rights, destination: str) -> None:
    """Raises Refused for a client without any right to a queue or exchange: it must not learn of it."""
    action = Action.SEND if destination.startswith(PREFIX) else Action.SUBSCRIBE
    rights.check_need(Need(action, destination, or_any=True))


def check_verb(rights: Rights, verb: type[Verb], about: str, said: Mapping[str, str] = NO_HEADERS) -> None:
    """Raises Refused if a client may not ask for this verb."""
    rights.check_needs(verb.needs(about, said, None))


Ask = Callable[[str], Awaitable[bool]]


@dataclass(slots=True)
class _Question:
    """One that is under way. `answer` is None until it is over, and if it was cancelled."""

    answer: bool | None = None
    is_over: trio.Event = field(default_factory=trio.Event)


class Questions:
    """Questions of the publishers of one node to the mesh, whether a queue exists: one at a time for each queue. So is
    the question for new bindings, under the name PREFIX; its answer is always "no". And so is the question whether a
    definition has a later change, under its kind and name.

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
