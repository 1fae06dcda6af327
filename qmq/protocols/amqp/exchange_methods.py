"""Methods of one channel about exchanges and bindings: each asks the node for a verb (docs/bindings.md)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qmq.broker.routing.binding import Binding, read_binding
from qmq.definitions.definition import Key
from qmq.errors import Refused
from qmq.model.routing_names import PREFIX, is_reserved
from qmq.protocols.amqp.channel_frames import ChannelFrames
from qmq.protocols.amqp.codec.methods import commands
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.declares import exchange_value
from qmq.protocols.amqp.gateway.names import check_declarable, exchange_name, queue_destination, source_of
from qmq.protocols.amqp.lookup import Lookup, check_any_right, check_verb
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.routing.definitions import BINDING, EXCHANGE
from qmq.verbs.queues import Declare, Delete
from qmq.verbs.routing import Bind, Unbind
from qmq.verbs.verb import Verb

HEADERS: Final = "headers"

DELETED: Final = ("unknown-definition", "unknown-destination")
"""Why what another client has deleted cannot be deleted."""


@dataclass(eq=False, repr=False)
class ExchangeMethods:
    """These methods. Every one raises AmqpRefusal and Refused."""

    _frames: ChannelFrames
    _lookup: Lookup
    _definitions: LiveDefinitions
    _exclusive: ExclusiveQueues

    def __post_init__(self) -> None:
        self._owner = self._frames.owner
        self._rights = self._frames.rights

    # Bindings

    async def bind_queue(self, method: Any) -> None:
        lookup, name = self._lookup, self._frames.state.named(method.queue)
        queue = queue_destination(name, self._owner.vhost)
        check_any_right(self._rights, queue)
        await lookup.check_queue(queue, name, self._owner.vhost)
        check_any_right(self._rights, self._source(method.exchange))
        await lookup.check_exchange(method.exchange, self._owner.vhost)
        if not await self._bind(queue, self._binding(method, method.exchange, queue=queue)):
            self._exclusive.check(queue, self._owner.session.id)
        self._frames.done(method, commands.Queue.BindOk())

    async def _bind(self, target: str, binding: Binding) -> bool:
        """Bind `target`; False if it is bound so already. Raises Refused."""
        said = {"source": binding.source, "key": binding.key}
        has_binding = self._lookup.table.has_binding
        if has_binding(binding.name):
            check_verb(self._rights, Bind, target, said)
            # Again after the question: the answer may be that it is deleted.
            if await self._lookup.is_latest(Key(BINDING, binding.name)) and has_binding(binding.name):
                return False
        await self._owner.ask(Bind(source=binding.source, key=binding.key), target, binding.arguments, said)
        # The client may let another one publish by any node now: a request that names this queue for replies.
        await self._definitions.spread()
        return True

    async def unbind_queue(self, method: Any) -> None:
        queue = queue_destination(self._frames.state.named(method.queue), self._owner.vhost)
        self._source(method.exchange)
        await self._lookup.refresh()
        await self._unbind(queue, self._binding(method, method.exchange, queue=queue))
        self._frames.send(commands.Queue.UnbindOk())

    async def _unbind(self, target: str, binding: Binding) -> None:
        said = {"source": binding.source, "key": binding.key}
        unbind = Unbind(source=binding.source, key=binding.key)
        await self._remove(Key(BINDING, binding.name), unbind, target, binding.arguments, said)

    async def _remove(self, key: Key, options: Verb, about: str, *said: Any) -> None:
        """Ask for a verb that deletes something. It is no error that there is none (as in RabbitMQ from 3.2 on)."""
        try:
            await self._owner.ask(options, about, *said)
        except Refused as refused:
            if refused.code not in DELETED:
                raise
            # It may be, where this node cannot look.
            user = self._rights.principal.name
            await self._definitions.change({key: None}, user, deletes_unknown=True, marked=())

    async def bind_exchange(self, method: Any) -> None:
        target, source = self._source(method.destination), self._source(method.source)
        # First: a client without the right must not learn whether there is such an exchange.
        check_verb(self._rights, Bind, target, {"source": source})
        await self._lookup.check_exchange(method.source, self._owner.vhost)
        await self._lookup.check_exchange(method.destination, self._owner.vhost)
        await self._bind(target, self._binding(method, method.source, exchange=target))
        self._frames.done(method, commands.Exchange.BindOk())

    async def unbind_exchange(self, method: Any) -> None:
        target = self._source(method.destination)
        self._source(method.source)
        await self._lookup.refresh()
        await self._unbind(target, self._binding(method, method.source, exchange=target))
        self._frames.done(method, commands.Exchange.UnbindOk())

    def _source(self, exchange: str) -> str:
        """The destination of an exchange that can be bound. Raises AmqpRefusal."""
        if not exchange:
            raise AmqpRefusal(
                ReplyCode.ACCESS_REFUSED,
                "the default exchange has one binding to each queue, by its name, and no other",
            )
        return source_of(exchange, self._owner.vhost)

    def _binding(self, method: Any, source: str, **target: str) -> Binding:
        """The binding of a queue or an exchange. Only an exchange of the type headers compares arguments."""
        vhost = self._owner.vhost
        exchange = self._lookup.table.exchanges.get(exchange_name(source, vhost))
        is_headers = exchange is not None and exchange.type == HEADERS
        arguments = dict(method.arguments or {}) if is_headers else {}
        where = {"source": source_of(source, vhost), "key": method.routing_key or ""}
        return read_binding({**where, **target, "arguments": arguments})

    # Exchanges

    async def declare_exchange(self, method: Any) -> None:
        exchanges = self._lookup.table.exchanges
        name = exchange_name(method.exchange, self._owner.vhost)
        about = f"{PREFIX}{name}"
        if not method.exchange:
            raise AmqpRefusal(ReplyCode.ACCESS_REFUSED, "the default exchange is always there, and is not declared")
        if method.passive:
            check_any_right(self._rights, about)
            await self._lookup.check_exchange(method.exchange, self._owner.vhost)
        else:
            if name not in exchanges:
                check_declarable(method.exchange)
            value = exchange_value(
                method.exchange,
                method.exchange_type,
                internal=method.internal,
                arguments=method.arguments,
                vhost=self._owner.vhost,
            )
            if not await self._is_declared(name, value):
                await self._owner.ask(Declare(), about, value)
        self._frames.done(method, commands.Exchange.DeclareOk())

    async def _is_declared(self, name: str, value: Mapping[str, Any]) -> bool:
        """Whether all members know the exchange as it is declared here. Raises Refused."""

        def is_same() -> bool:
            known = self._lookup.table.exchanges.get(name)
            return known is not None and known.value == value

        if not is_same():
            return False
        check_verb(self._rights, Declare, f"{PREFIX}{name}")
        # Again after the question: the answer may be that it is deleted.
        return is_reserved(name) or (await self._lookup.is_latest(Key(EXCHANGE, name)) and is_same())

    async def delete_exchange(self, method: Any) -> None:
        name = exchange_name(method.exchange, self._owner.vhost)
        about = f"{PREFIX}{name}"
        if not method.exchange:
            raise AmqpRefusal(ReplyCode.ACCESS_REFUSED, "the default exchange cannot be deleted")
        check_verb(self._rights, Delete, about)
        if await self._lookup.exchange_exists(name) or not is_reserved(name):
            await self._remove(Key(EXCHANGE, name), Delete(if_unused=method.if_unused), about)
        self._frames.done(method, commands.Exchange.DeleteOk())
