"""queue.declare, queue.delete and queue.purge of one channel: each asks the node for a verb (docs/definitions.md)."""

from dataclasses import InitVar, dataclass
from typing import Any, Final

import trio

from qmq.definitions.definition import Key
from qmq.engine.parts import EngineParts
from qmq.errors import Refused
from qmq.gateways.bound_queues import subscriber_of
from qmq.gateways.durable_headers import check_owner
from qmq.model.routing_names import RESERVED
from qmq.protocols.amqp.channel_frames import ChannelFrames
from qmq.protocols.amqp.codec.methods import commands, short_string
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.declares import in_arguments, queue_value
from qmq.protocols.amqp.gateway.names import DIRECT_REPLY, GENERATED, REPLIES, check_declarable, queue_destination
from qmq.protocols.amqp.lookup import Lookup, check_any_right, check_verb
from qmq.settings.definitions.declare import EXCLUSIVE
from qmq.settings.definitions.declared_queues import KIND as QUEUE
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.verbs.queues import Declare, Delete, Purge
from qmq.verbs.verb import NO_HEADERS

NAME_BITS: Final = 96

DECLARE_OK: Final = b"\x00\x32\x00\x0b"


@dataclass(eq=False, repr=False)
class QueueMethods:
    """These methods. Every one raises AmqpRefusal and Refused."""

    _frames: ChannelFrames
    engine: InitVar[EngineParts]
    _lookup: Lookup
    _declared: DeclaredQueues
    _exclusive: ExclusiveQueues
    _lifetimes: QueueLifetimes

    def __post_init__(self, engine: EngineParts) -> None:
        self._owner = self._frames.owner
        self._rights = self._frames.rights
        self._state = self._frames.state
        self._broker = engine.broker
        self._environment = engine.environment
        self.deleted = trio.Event()
        """Set while this channel deletes no queue."""
        self.deleted.set()

    async def declare(self, method: Any) -> None:
        name = method.queue
        if not name:
            name = f"{GENERATED}{self._environment.rng.getrandbits(NAME_BITS):024x}"
        if name == DIRECT_REPLY or (name.startswith(REPLIES) and self._is_awaited(name)):
            # As RabbitMQ: some libraries ask so whether there are direct replies, and a server whether its requester
            # still waits.
            self._declare_ok(method, name, (0, 1))
            return
        lookup = self._lookup
        queue = queue_destination(name, self._owner.vhost)
        if method.queue and name.startswith(RESERVED) and not (method.passive or lookup.knows_queue(queue)):
            check_declarable(name)
        if method.passive:
            check_any_right(self._rights, queue)
            await lookup.check_queue(queue, name, self._owner.vhost)
            self._exclusive.check(queue, self._owner.session.id)
            self._lifetimes.used(queue)
            counts = await lookup.queue_counts(queue)
        else:
            value = queue_value(
                durable=method.durable,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
                arguments=method.arguments,
                vhost=self._owner.vhost,
            )
            try:
                await self._declare(queue, value)
            except Refused as refused:
                raise Refused(refused.code, in_arguments(refused.message, self._owner.vhost)) from refused
            # Clients declare before each use, and few look at the counts: no other node is asked for them.
            counts = lookup.counts_here(queue)
        check_owner(self._rights, queue, subscriber_of(queue, self._declared.begun_by))
        self._declare_ok(method, name, counts)

    def _is_awaited(self, name: str) -> bool:
        """Whether a requester waits for replies under this name. Raises Refused if it has left."""
        try:
            self._broker.replies.check(name)
        except Refused as refused:
            if refused.code != "bad-destination":
                raise
            return False
        return True

    def _declare_ok(self, method: Any, name: str, counts: tuple[int, int]) -> None:
        self._state.last_queue = name
        numbers = b"".join([min(count, 0xFFFFFFFF).to_bytes(4, "big") for count in counts])
        self._frames.respond(method, DECLARE_OK + short_string(name) + numbers)

    async def _declare(self, queue: str, value: dict[str, Any]) -> None:
        """Declare a queue. Clients do so before each use, so what all members know as declared costs no change."""
        declared, exclusive = self._declared, self._exclusive
        known = declared.value_of(queue)
        if known is not None and (EXCLUSIVE in known) is not (EXCLUSIVE in value):
            # First: a client without the right must not learn whether there is such a queue.
            check_verb(self._rights, Declare, queue)
            if not exclusive.is_orphan(queue):
                exclusive.check(queue, self._owner.session.id)
                which = "exclusive to this connection" if EXCLUSIVE in known else "not exclusive"
                raise AmqpRefusal(ReplyCode.RESOURCE_LOCKED, f"the queue is declared, and is {which}")
        elif known is not None:
            wanted = dict(value)
            if EXCLUSIVE in wanted:
                wanted[EXCLUSIVE] = exclusive.owner(self._owner.session.id)

            def is_same() -> bool:
                return declared.check_same(queue, wanted, is_replacing=True)

            if is_same():
                check_verb(self._rights, Declare, queue)
                exclusive.check(queue, self._owner.session.id)
                # Again after the question: the answer may be that it is deleted.
                if await self._lookup.is_latest(Key(QUEUE, queue)) and is_same():
                    self._lifetimes.declared_again(queue)
                    return
        await self._owner.ask(Declare(), queue, value)

    async def delete(self, method: Any) -> None:
        queue = queue_destination(self._state.named(method.queue), self._owner.vhost)
        check_any_right(self._rights, queue)
        # To delete what does not exist is no error (as in RabbitMQ from 3.2 on).
        exists = await self._lookup.queue_exists(queue)
        if not exists and self._rights.has_all(Delete.needs(queue, NO_HEADERS, None)):
            exists = not await self._lookup.is_latest(Key(QUEUE, queue))  # Where this node cannot look.
        if exists:
            self._exclusive.check(queue, self._owner.session.id)
            deleted = self.deleted = trio.Event()
            try:
                facts = await self._owner.ask(Delete(force=not method.if_unused, if_empty=method.if_empty), queue)
                self._frames.done(method, commands.Queue.DeleteOk(facts.get("messages", 0)))
            finally:
                deleted.set()
            return
        self._frames.done(method, commands.Queue.DeleteOk(0))

    async def purge(self, method: Any) -> None:
        name = self._state.named(method.queue)
        queue = queue_destination(name, self._owner.vhost)
        check_any_right(self._rights, queue)
        await self._lookup.check_queue(queue, name, self._owner.vhost)
        facts = await self._owner.ask(Purge(scope="mesh"), queue)
        self._frames.done(method, commands.Queue.PurgeOk(facts.get("messages", 0)))
