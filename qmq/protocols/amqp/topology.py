"""Queues, exchanges and bindings over AMQP: each method is a control request (docs/definitions.md, bindings.md)."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import trio

from qmq.access.rights import Need, Rights
from qmq.access.rules import Action, Principal
from qmq.broker.routing.binding import Binding, read_binding
from qmq.engine.runtime.contexts import MeshPeers
from qmq.errors import Refused
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.model.routing_names import PREFIX, RESERVED
from qmq.protocols.amqp.codec.frames import method_frame
from qmq.protocols.amqp.codec.methods import Method, commands, encode_method, short_string
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.channel import Channel
from qmq.protocols.amqp.gateway.declares import exchange_value, in_arguments, queue_value
from qmq.protocols.amqp.gateway.names import (
    DIRECT_REPLY,
    GENERATED,
    REPLIES,
    Vhost,
    check_declarable,
    exchange_name,
    queue_destination,
    source_of,
)
from qmq.protocols.amqp.lookup import (
    LookupContext,
    check_exchange,
    check_queue,
    counts_here,
    knows_queue,
    queue_counts,
    queue_exists,
)
from qmq.sessions.clients.session import ClientSession
from qmq.settings.definitions.declare import EXCLUSIVE
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.verbs.verb import NO_HEADERS

NAME_BITS: Final = 96

DECLARE_OK: Final = b"\x00\x32\x00\x0b"

HEADERS: Final = "headers"


class TopologyContext(LookupContext, MeshPeers, Protocol):
    definitions: LiveDefinitions
    exclusive_queues: ExclusiveQueues
    queue_lifetimes: QueueLifetimes

    def check_right(
        self, principal: Principal | None, destination: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Raises Refused if the principal may not make this control request."""


class TopologyOwner(Protocol):
    """The dialogue of the connection (`AmqpDialogue`)."""

    session: ClientSession
    rights: Rights | None
    vhost: Vhost

    @property
    def context(self) -> TopologyContext: ...

    def put(self, data: bytes) -> None: ...

    async def control(self, destination: str, headers: dict[str, str], body: bytes = b"") -> ControlResponse: ...


class Topology:
    """These methods on one channel. Every one raises AmqpRefusal and Refused."""

    def __init__(self, owner: TopologyOwner, state: Channel) -> None:
        self._owner = owner
        self._state = state
        self.deleted = trio.Event()
        """Set while this channel deletes no queue."""
        self.deleted.set()

    def handler_of(self, method: Method) -> Callable[[Any], Awaitable[None]] | None:
        """What obeys `method`; None if it is not about queues, exchanges or bindings."""
        name = HANDLERS.get(type(method))
        return None if name is None else getattr(self, name)

    def named(self, queue: str | None) -> str:
        """The name that a method says; an empty one means the queue that was declared last. Raises AmqpRefusal."""
        name = queue or self._state.last_queue
        if not name:
            raise AmqpRefusal(ReplyCode.NOT_FOUND, "no queue is named, and none was declared on this channel")
        return name

    def _queue(self, name: str) -> str:
        """The destination of a queue. Raises AmqpRefusal."""
        return queue_destination(name, self._owner.vhost)

    def _exchange(self, name: str) -> str:
        """The name of an exchange in the mesh."""
        return exchange_name(name, self._owner.vhost)

    def _send(self, method: Method) -> None:
        self._owner.put(method_frame(self._state.number, encode_method(method)))

    def _done(self, method: Any, response: Method) -> None:
        """Respond to `method`, if the client wants that."""
        if not method.nowait:
            self._send(response)

    async def _control(self, destination: str, headers: dict[str, str], value: object = None) -> dict[str, Any]:
        body = b"" if value is None else json.dumps(value).encode()
        response = await self._owner.control(destination, headers, body)
        facts = json.loads(response.body or b"{}")
        return facts if isinstance(facts, dict) else {}

    # Queues

    async def declare_queue(self, method: Any) -> None:
        context, session = self._owner.context, self._owner.session
        name = method.queue
        if not name:
            name = f"{GENERATED}{context.environment.rng.getrandbits(NAME_BITS):024x}"
        if name == DIRECT_REPLY:
            # As RabbitMQ: some libraries ask so whether there are direct replies.
            self._declare_ok(method, name, (0, 1))
            return
        if name.startswith(REPLIES):
            # As RabbitMQ: a server asks so whether its requester still waits.
            try:
                context.broker.replies.check(name)
            except Refused as refused:
                if refused.code != "bad-destination":
                    raise
            else:
                self._declare_ok(method, name, (0, 1))
                return
        queue = self._queue(name)
        if method.queue and name.startswith(RESERVED) and not (method.passive or knows_queue(context, queue)):
            check_declarable(name)
        if method.passive:
            self._check_any_right(queue)
            await check_queue(context, queue, name, self._owner.vhost)
            context.rules.lock(queue, session.id)
            context.queue_lifetimes.used(queue)
            counts = await queue_counts(context, queue)
        else:
            value = queue_value(
                durable=method.durable,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
                arguments=method.arguments,
                vhost=self._owner.vhost,
            )
            await self._declared(queue, value)
            # Clients declare before each use, and few look at the counts: no other node is asked for them.
            counts = counts_here(context, queue)
        self._declare_ok(method, name, counts)

    def _declare_ok(self, method: Any, name: str, counts: tuple[int, int]) -> None:
        self._state.last_queue = name
        if not method.nowait:
            numbers = b"".join([min(count, 0xFFFFFFFF).to_bytes(4, "big") for count in counts])
            self._owner.put(method_frame(self._state.number, DECLARE_OK + short_string(name) + numbers))

    async def _declared(self, queue: str, value: dict[str, Any]) -> dict[str, Any]:
        """Declare a queue. Clients do so before each use, so what is declared already costs no change."""
        try:
            return await self._declared_here(queue, value)
        except Refused as refused:
            raise Refused(refused.code, in_arguments(refused.message)) from refused

    async def _declared_here(self, queue: str, value: dict[str, Any]) -> dict[str, Any]:
        context, session = self._owner.context, self._owner.session
        known = context.declared_queues.value_of(queue)
        if known is not None and (EXCLUSIVE in known) is not (EXCLUSIVE in value):
            # First: a client without the right must not learn whether there is such a queue.
            self._check_right(f"/control/declare{queue}")
            if context.exclusive_queues.is_orphan(queue):
                return await self._control(f"/control/declare{queue}", {}, value)
            context.rules.lock(queue, session.id)
            which = "exclusive to this connection" if EXCLUSIVE in known else "not exclusive"
            raise AmqpRefusal(ReplyCode.RESOURCE_LOCKED, f"the queue is declared, and is {which}")
        if known is not None and context.declared_queues.reaches_all():
            wanted = dict(value)
            if EXCLUSIVE in wanted:
                wanted[EXCLUSIVE] = context.exclusive_queues.owner(session.id)
            if context.declared_queues.check_same(queue, wanted, is_replacing=True):
                self._check_right(f"/control/declare{queue}")
                context.rules.lock(queue, session.id)
                context.queue_lifetimes.declared_again(queue)
                return {"changed": 0}
        return await self._control(f"/control/declare{queue}", {}, value)

    def _check_right(self, destination: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self._owner.context.check_right(self._owner.session.principal, destination, headers)

    def _check_any_right(self, destination: str) -> None:
        """Raises Refused for a client without any right to a queue or exchange: it must not learn of it."""
        rights = self._owner.rights
        assert rights is not None
        action = Action.SEND if destination.startswith(PREFIX) else Action.SUBSCRIBE
        rights.check_need(Need(action, destination, or_any=True))

    async def delete_queue(self, method: Any) -> None:
        name = self.named(method.queue)
        queue = self._queue(name)
        messages = 0
        self._check_any_right(queue)
        # To delete what does not exist is no error (as in RabbitMQ from 3.2 on).
        if await queue_exists(self._owner.context, queue):
            headers = {} if method.if_unused else {"force": "true"}
            if method.if_empty:
                headers["if-empty"] = "true"
            self._owner.context.rules.lock(queue, self._owner.session.id)
            deleted = self.deleted = trio.Event()
            try:
                facts = await self._control(f"/control/delete{queue}", headers)
                messages = facts.get("messages", 0)
                self._done(method, commands.Queue.DeleteOk(messages))
            finally:
                deleted.set()
            return
        self._done(method, commands.Queue.DeleteOk(messages))

    async def purge_queue(self, method: Any) -> None:
        name = self.named(method.queue)
        queue = self._queue(name)
        self._check_any_right(queue)
        await check_queue(self._owner.context, queue, name, self._owner.vhost)
        facts = await self._control(f"/control/purge{queue}", {"scope": "mesh"})
        self._done(method, commands.Queue.PurgeOk(facts.get("messages", 0)))

    # Bindings

    async def bind_queue(self, method: Any) -> None:
        name = self.named(method.queue)
        queue = self._queue(name)
        context = self._owner.context
        self._check_any_right(queue)
        await check_queue(context, queue, name, self._owner.vhost)
        self._check_any_right(source_of(self._bindable(method.exchange), self._owner.vhost))
        await check_exchange(context, method.exchange, self._owner.vhost)
        if not await self._bind(queue, self._binding(method, method.exchange, queue=queue)):
            context.rules.lock(queue, self._owner.session.id)
        self._done(method, commands.Queue.BindOk())

    async def _bind(self, target: str, binding: Binding) -> bool:
        """Bind `target`; False if it is bound so already. Raises Refused."""
        context = self._owner.context
        headers = {"source": binding.source, "key": binding.key}
        if context.routing.table.has_binding(binding.name) and context.declared_queues.reaches_all():
            self._check_right(f"/control/bind{target}", headers)
            return False
        await self._control(f"/control/bind{target}", headers, binding.arguments)
        # The client may let another one publish by any node now: a request that names this queue for replies.
        await context.definitions.spread()
        return True

    async def unbind_queue(self, method: Any) -> None:
        name = self.named(method.queue)
        queue = self._queue(name)
        context = self._owner.context
        self._bindable(method.exchange)
        await context.definition_sync.refresh()
        await self._unbind(queue, self._binding(method, method.exchange, queue=queue))
        self._send(commands.Queue.UnbindOk())

    async def _unbind(self, target: str, binding: Binding) -> None:
        headers = {"source": binding.source, "key": binding.key}
        # What is not bound is unbound already.
        await self._remove(f"/control/unbind{target}", headers, binding.arguments)

    async def _remove(self, destination: str, headers: dict[str, str], value: object = None) -> None:
        """A control request that deletes something, which another client may have deleted."""
        try:
            await self._control(destination, headers, value)
        except Refused as refused:
            if refused.code not in ("unknown-definition", "unknown-destination"):
                raise

    async def bind_exchange(self, method: Any) -> None:
        context = self._owner.context
        target = source_of(self._bindable(method.destination), self._owner.vhost)
        source = source_of(self._bindable(method.source), self._owner.vhost)
        # First: a client without the right must not learn whether there is such an exchange.
        self._check_right(f"/control/bind{target}", {"source": source})
        await check_exchange(context, method.source, self._owner.vhost)
        await check_exchange(context, method.destination, self._owner.vhost)
        await self._bind(target, self._binding(method, method.source, exchange=target))
        self._done(method, commands.Exchange.BindOk())

    async def unbind_exchange(self, method: Any) -> None:
        target = source_of(self._bindable(method.destination), self._owner.vhost)
        self._bindable(method.source)
        await self._owner.context.definition_sync.refresh()
        await self._unbind(target, self._binding(method, method.source, exchange=target))
        self._done(method, commands.Exchange.UnbindOk())

    def _bindable(self, exchange: str) -> str:
        if not exchange:
            raise AmqpRefusal(
                ReplyCode.ACCESS_REFUSED,
                "the default exchange has one binding to each queue, by its name, and no other",
            )
        return exchange

    def _binding(self, method: Any, source: str, **target: str) -> Binding:
        """The binding of a queue or an exchange. Only an exchange of the type headers compares arguments."""
        exchange = self._owner.context.routing.table.exchanges.get(self._exchange(source))
        is_headers = exchange is not None and exchange.type == HEADERS
        arguments = dict(method.arguments or {}) if is_headers else {}
        where = {"source": source_of(source, self._owner.vhost), "key": method.routing_key or ""}
        return read_binding({**where, **target, "arguments": arguments})

    # Exchanges

    async def declare_exchange(self, method: Any) -> None:
        context = self._owner.context
        name = self._exchange(method.exchange)
        if not method.exchange:
            raise AmqpRefusal(ReplyCode.ACCESS_REFUSED, "the default exchange is always there, and is not declared")
        if method.passive:
            self._check_any_right(f"{PREFIX}{name}")
            await check_exchange(context, method.exchange, self._owner.vhost)
        else:
            if name not in context.routing.table.exchanges:
                check_declarable(method.exchange)
            value = exchange_value(
                method.exchange,
                method.exchange_type,
                internal=method.internal,
                arguments=method.arguments,
                vhost=self._owner.vhost,
            )
            known = context.routing.table.exchanges.get(name)
            if known is not None and known.value == value and context.declared_queues.reaches_all():
                self._check_right(f"/control/declare/exchange/{name}")
            else:
                await self._control(f"/control/declare/exchange/{name}", {}, value)
        self._done(method, commands.Exchange.DeclareOk())

    async def delete_exchange(self, method: Any) -> None:
        context = self._owner.context
        name = self._exchange(method.exchange)
        if not method.exchange:
            raise AmqpRefusal(ReplyCode.ACCESS_REFUSED, "the default exchange cannot be deleted")
        self._check_right(f"/control/delete/exchange/{name}")
        if name not in context.routing.table.exchanges:
            await context.definition_sync.refresh()
        # To delete what does not exist is no error (as in RabbitMQ from 3.2 on).
        if name in context.routing.table.exchanges:
            headers = {"if-unused": "true"} if method.if_unused else {}
            await self._remove(f"/control/delete/exchange/{name}", headers)
        self._done(method, commands.Exchange.DeleteOk())


HANDLERS: Final[dict[type[Method], str]] = {
    commands.Queue.Declare: "declare_queue",
    commands.Queue.Delete: "delete_queue",
    commands.Queue.Purge: "purge_queue",
    commands.Queue.Bind: "bind_queue",
    commands.Queue.Unbind: "unbind_queue",
    commands.Exchange.Declare: "declare_exchange",
    commands.Exchange.Delete: "delete_exchange",
    commands.Exchange.Bind: "bind_exchange",
    commands.Exchange.Unbind: "unbind_exchange",
}
