"""One channel of an AMQP session: its commands become frames of a gateway of its own, and requests of verbs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from qmq.broker.consumers.orders import Abort, Commit
from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.lifecycle import Back
from qmq.protocols.amqp.channel_consumers import ChannelConsumers
from qmq.protocols.amqp.channel_frames import ACK, PUBLISH, ChannelFrames, ChannelOwner
from qmq.protocols.amqp.codec.frames import Command, method_frame
from qmq.protocols.amqp.codec.methods import Method, commands, encode_method, read_ack, read_method, read_nack
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.exchange_methods import ExchangeMethods
from qmq.protocols.amqp.gateway.channel import Channel
from qmq.protocols.amqp.parts import AmqpParts
from qmq.protocols.amqp.publishes import ChannelPublishes
from qmq.protocols.amqp.queue_methods import QueueMethods
from qmq.sessions.pull_consumer import PullConsumer

NACK: Final = (60, 120)

TOPOLOGY: Final = ("Queue.", "Exchange.")
"""Methods for which all that came before is decided first."""

TRANSACTION: Final = "transaction"
"""Receipts of the ends of transactions begin with it."""


class AmqpChannel:
    """`take` gets one command after the other."""

    def __init__(self, parts: AmqpParts, owner: ChannelOwner, number: int, serial: str, pull: PullConsumer) -> None:
        self._owner = owner
        self._pull = pull
        self.state = Channel(number, serial)
        owner.encoder.channels[serial] = self.state
        engine, lookup, declared, exclusive = parts.engine, parts.lookup, parts.declared, parts.exclusive
        frames = self._frames = ChannelFrames(owner, self.state, parts.loops, parts.watchers, self._flushed)
        self._queues = QueueMethods(frames, engine, lookup, declared, exclusive, parts.lifetimes)
        self._exchanges = ExchangeMethods(frames, lookup, parts.definitions, exclusive)
        self._publishes = ChannelPublishes(frames, lookup, engine.broker, parts.body_bytes_max)
        self.consumers = ChannelConsumers(
            frames, self._queues, lookup, pull, engine, parts.watchers, parts.lifetimes, parts.spawn
        )
        self._tx_taken: dict[int, Delivery] = {}
        """What a transaction has acknowledged, by tag."""
        self.flush = self._frames.flush

    async def take(self, command: Command) -> bool:
        """Obey a command; False if it is none of an open channel. Raises AmqpRefusal, Refused."""
        kind = (command.class_id, command.method_id)
        if kind == PUBLISH:
            await self._publishes.publish(command)
        elif kind == ACK:
            tag, multiple = read_ack(command.arguments)
            self._ack(tag, multiple)
        elif kind == NACK:
            tag, multiple, requeue = read_nack(command.arguments)
            self._nack(tag, multiple, requeue)
        else:
            method = read_method(command)
            # Answers come in the order of the commands, and this one may be answered at once; consume-ok never is.
            await self._owner.answers_due(self.state, TRANSACTION if isinstance(method, commands.Basic.Consume) else "")
            if self.state.is_closing or self._owner.is_over:
                return True
            handler = HANDLERS.get(type(method))
            if handler is None:
                return False
            if method.name.startswith(TOPOLOGY):
                await self._frames.flush()
                if self.state.is_closing or self._owner.is_over:
                    return True
            await handler(self, method)
        return True

    def _flushed(self) -> None:
        if self.state.is_closing:
            self._end()
        else:
            self._pull.reap()

    # Acks

    def _ack(self, tag: int, multiple: bool) -> None:
        self._frames.settle(self._taken(tag, multiple))

    def _nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        taken = self._taken(tag, multiple)
        if requeue:
            # Of what was taken back there is nothing to requeue, also in a transaction.
            taken = [one for one in taken if one.subscription.in_flight.get(one.tag) is one]
        self._frames.settle(taken, Back.FAILED if requeue else Back.REJECTED)

    def _taken(self, tag: int, multiple: bool) -> list[Delivery]:
        """What an ack or nack is about. Raises AmqpRefusal."""
        taken = self.state.take(tag, multiple)
        if self._frames.transaction is not None:
            # A rollback makes them unacked again.
            self._tx_taken.update(taken)
        return list(taken.values())

    async def _reject(self, method: Any) -> None:
        self._nack(method.delivery_tag, False, method.requeue)

    async def _recover(self, method: Any) -> None:
        if not method.requeue:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "requeue = false is not supported")
        if self.state.unacked:
            self._nack(0, True, True)
        await self._frames.flush()
        if isinstance(method, commands.Basic.Recover):
            self._frames.send(commands.Basic.RecoverOk())

    async def _confirm(self, method: Any) -> None:
        if self._frames.transaction is not None:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, "a channel with transactions has no confirms")
        await self._frames.flush()
        self.state.confirms = True
        if not method.nowait:
            self._frames.send(commands.Confirm.SelectOk())

    async def _flow(self, method: Any) -> None:
        if not method.active:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "channel.flow with active = false: use basic.qos")
        self._frames.send(commands.Channel.FlowOk(True))

    # Transactions

    async def _select(self, method: Any) -> None:
        if self.state.confirms:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, "a channel with confirms has no transactions")
        await self._frames.flush()
        if self._frames.transaction is None:
            self._frames.transaction = f"amqp-{self.state.serial}"
            self._frames.written.is_transactional = True
            self._owner.publishes.heads.clear()
        self._frames.send(commands.Tx.SelectOk())

    async def _commit(self, method: Any) -> None:
        await self._end_transaction(Commit, commands.Tx.CommitOk())

    async def _rollback(self, method: Any) -> None:
        self.state.unacked = dict(sorted({**self.state.unacked, **self._tx_taken}.items()))
        await self._end_transaction(Abort, commands.Tx.RollbackOk())

    async def _end_transaction(self, end: type[Commit] | type[Abort], answer: Method) -> None:
        name = self._frames.transaction
        if name is None:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, "the channel has no transactions: tx.select is first")
        self._tx_taken = {}
        if not self._frames.has_begun:
            self._frames.send(answer)
            return
        self._frames.has_begun = False
        receipt = f"{TRANSACTION} {self._frames.new_id()}"
        self._owner.encoder.answers[receipt] = method_frame(self.state.number, encode_method(answer))
        self._frames.pending.append(end(name, receipt))
        await self._frames.flush()

    # The end

    async def leave(self) -> None:
        """The channel ends: what it has unacked is requeued, and a transaction that is open is aborted."""
        await self.flush()
        if not self._owner.is_over:
            self._end()

    def _end(self) -> None:
        self.consumers.end()
        self.state.unacked.clear()
        self.forget()

    def forget(self) -> None:
        """Drop what refers to the session."""
        self.consumers.forget()
        self._owner.encoder.channels.pop(self.state.serial, None)
        self._frames.pending.clear()
        self._owner.publishes.heads.clear()


Handler = Callable[[AmqpChannel, Any], Awaitable[None]]

HANDLERS: Final[Mapping[type[Method], Handler]] = {
    commands.Basic.Consume: lambda channel, method: channel.consumers.consume(method),
    commands.Basic.Cancel: lambda channel, method: channel.consumers.cancel(method),
    commands.Basic.Get: lambda channel, method: channel.consumers.get(method),
    commands.Basic.Qos: lambda channel, method: channel.consumers.qos(method),
    commands.Basic.Reject: AmqpChannel._reject,
    commands.Basic.Recover: AmqpChannel._recover,
    commands.Basic.RecoverAsync: AmqpChannel._recover,
    commands.Channel.Flow: AmqpChannel._flow,
    commands.Confirm.Select: AmqpChannel._confirm,
    commands.Tx.Select: AmqpChannel._select,
    commands.Tx.Commit: AmqpChannel._commit,
    commands.Tx.Rollback: AmqpChannel._rollback,
    commands.Queue.Declare: lambda channel, method: channel._queues.declare(method),
    commands.Queue.Delete: lambda channel, method: channel._queues.delete(method),
    commands.Queue.Purge: lambda channel, method: channel._queues.purge(method),
    commands.Queue.Bind: lambda channel, method: channel._exchanges.bind_queue(method),
    commands.Queue.Unbind: lambda channel, method: channel._exchanges.unbind_queue(method),
    commands.Exchange.Declare: lambda channel, method: channel._exchanges.declare_exchange(method),
    commands.Exchange.Delete: lambda channel, method: channel._exchanges.delete_exchange(method),
    commands.Exchange.Bind: lambda channel, method: channel._exchanges.bind_exchange(method),
    commands.Exchange.Unbind: lambda channel, method: channel._exchanges.unbind_exchange(method),
}
