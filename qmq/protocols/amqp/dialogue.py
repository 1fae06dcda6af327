"""A session that speaks AMQP 0-9-1: the login, then commands one after the other, each by its channel.

A channel that is refused something is closed, and the others go on. What breaks the protocol ends the connection. The
reason comes first (`channel.close`, `connection.close`).
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import trio

from qmq.access.rights import NOT_ALLOWED, Rights
from qmq.admin.protocol_parts import ProtocolParts
from qmq.broker.consumers.orders import Disconnect
from qmq.engine.runtime.waker import Waker
from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts
from qmq.protocols.amqp.blocked import Blocking
from qmq.protocols.amqp.channel import AmqpChannel
from qmq.protocols.amqp.channel_frames import PublishMemory
from qmq.protocols.amqp.codec.frames import HEARTBEAT, AmqpReader, Command, method_frame
from qmq.protocols.amqp.codec.methods import commands, encode_method, read_method
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.channel import Channel
from qmq.protocols.amqp.gateway.encoder import AmqpEncoder, SharedContents
from qmq.protocols.amqp.gateway.names import DEFAULT_VHOST, Vhost
from qmq.protocols.amqp.gateway.replies import of_channel, of_connection
from qmq.protocols.amqp.handshake import Handshake
from qmq.protocols.amqp.lookup import Lookup
from qmq.protocols.amqp.parts import AmqpParts
from qmq.sessions.client_heartbeats import ClientHeartbeats
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.dialogue import ClientDialogue, ClientProtocol
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.frame_loop import FrameLoop
from qmq.sessions.pull_consumer import pull_consumers
from qmq.verbs.verb import NO_HEADERS, Verb

CHANNEL_OPEN: Final = (20, 10)
CHANNEL_CLOSE: Final = (20, 40)
CHANNEL_CLOSE_OK: Final = (20, 41)

LOOK_SECONDS: Final = 1.0
"""After so long a command that waits for an answer looks whether its session has ended."""

HEARTBEATS_MISSED: Final = 2
"""Intervals of silence after which a client counts as gone (4.2.7)."""

CHANNEL_BYTES: Final = 4 << 10
"""What a channel counts for the memory budget: about what it costs without messages."""

CLOSED: Final = "close 0.0"
"""The receipt of the end of the session."""

log = logging.getLogger("qmq.session")


class AmqpDialogue(ClientDialogue):
    keep_open = True

    def __init__(self, parts: AmqpParts, session: ClientSession, pipe: Pipe, login: PendingLogin) -> None:
        self._parts = parts
        self.session = session
        self._reader = AmqpReader(0)
        self._reader.one_by_one = True
        self._pull = parts.pull_of(session.id)
        self.encoder = AmqpEncoder(parts.contents, self._pull.delivered)
        self.encoder.on_ended = lambda consumer: parts.watchers.forget(consumer.queue, consumer)
        self._answered = Waker()
        self.encoder.on_answered = self._answered.wake
        session.encoder = self.encoder
        self.beats = ClientHeartbeats(parts.beats, session, HEARTBEAT)
        self.handshake = Handshake(parts.login_path, parts.lookup, session, self, pipe, self._reader, login)
        self._received: list[Command] = []
        self._channels: dict[int, AmqpChannel] = {}
        self._serials = 0
        self.rights: Rights | None = None
        self.vhost = DEFAULT_VHOST
        self.publishes = PublishMemory()
        self.blocking = Blocking(parts.engine, parts.beats, parts.memory_budget, self)
        self._loop: FrameLoop | None = None

    @property
    def unfinished_bytes(self) -> int:
        return self._reader.unfinished_bytes

    def start(self) -> None:
        self.beats.watch_login(self.handshake.seconds_max, self.handshake.check_time)

    def agree_heartbeat(self, seconds: int) -> None:
        """The client wants a heartbeat at least every so many seconds; 0 for none."""
        self.beats.set_seconds(seconds / 2, seconds * HEARTBEATS_MISSED)

    def begin(self, vhost: Vhost) -> None:
        """The client is logged in, and has opened this virtual host."""
        session = self.session
        self.vhost = self.encoder.vhost = vhost
        self._reader.one_by_one = False
        self._reader.body_bytes_max = self._parts.body_bytes_max
        session.begin()
        self.rights = self._parts.login_path.rights_of(session)
        self.encoder.frame_bytes_max = self.handshake.frame_bytes_max
        self.encoder.understands_cancel = self.handshake.understands_cancel
        loops = self._parts.loops
        gateway = loops.gateway_of(session, self.encoder, self.rights, keep_open=True, stays=True)
        self._loop = loops.begin(session, gateway)
        self.beats.start()

    def receive(self, data: bytes) -> None:
        self.beats.received_at = trio.current_time()
        self._received += self._reader.receive(data)

    async def respond(self) -> None:
        session, handshake, reader = self.session, self.handshake, self._reader
        received, self._received = self._received, []
        if not handshake.is_started:
            if reader.is_greeted:
                handshake.start()
            elif reader.error is not None:
                handshake.refuse_version()
                return
        while received and not handshake.is_done and not session.finishing:
            await handshake.take(received.pop(0))
            received += reader.receive(b"")
        if handshake.is_done:
            await self._serve(received)
            await session.pay()
            if self._reader.unfinished_bytes and not self.is_over:
                self.blocking.published()
        if reader.error is not None and not (session.ending or session.finishing):
            if handshake.is_done:
                self.close_connection(reader.error)
            else:
                handshake.refuse(reader.error)

    def put(self, data: bytes) -> None:
        """Send now."""
        if data:
            self.session.outbox.put_answer(data)
            self.session.outbox.flush()

    @property
    def qos_is_of_channel(self) -> bool:
        return self.handshake.qos_is_of_channel

    @property
    def understands_blocked(self) -> bool:
        return self.handshake.understands_blocked

    @property
    def is_over(self) -> bool:
        return self.session.ending or self.session.finishing

    # Commands

    async def _serve(self, received: list[Command]) -> None:
        self.publishes.read()
        for command in received:
            if self.is_over:
                return
            channel = self._channels.get(command.channel)
            try:
                if channel is not None and not channel.state.is_closing:
                    if not await channel.take(command) and not self.is_over:
                        await self._of_channel(command, channel)
                elif command.channel:
                    await self._of_channel(command, channel)
                else:
                    await self._of_connection(command)
            except (AmqpRefusal, Refused) as error:
                await self._refuse(error, command, channel)
        for channel in list(self._channels.values()):
            if self.is_over:
                return
            await channel.flush()

    async def _of_connection(self, command: Command) -> None:
        """A method on channel 0. Raises AmqpRefusal."""
        method = read_method(command)
        if isinstance(method, commands.Connection.Close):
            for channel in self._channels.values():
                await channel.flush()
            self.encoder.is_closing = True
            self.encoder.answers[CLOSED] = method_frame(0, encode_method(commands.Connection.CloseOk()))
            assert self._loop is not None
            await self._loop.obey([Disconnect(CLOSED)])
        elif isinstance(method, commands.Connection.UpdateSecret):
            await self.handshake.renew(method.new_secret)
            self.put(method_frame(0, encode_method(commands.Connection.UpdateSecretOk())))
        elif not isinstance(method, commands.Connection.CloseOk):
            raise AmqpRefusal(ReplyCode.COMMAND_INVALID, f"{method.name} is not expected on channel 0 now")

    async def _of_channel(self, command: Command, channel: AmqpChannel | None) -> None:
        """channel.open and channel.close; and what comes for a channel that is closing. Raises AmqpRefusal."""
        number = command.channel
        kind = (command.class_id, command.method_id)
        if channel is None:
            if kind == CHANNEL_OPEN:
                self._serials += 1
                self._channels[number] = AmqpChannel(self._parts, self, number, str(self._serials), self._pull)
                self._parts.memory_budget.change(self.session, CHANNEL_BYTES)
                self.put(method_frame(number, encode_method(commands.Channel.OpenOk())))
            elif kind != CHANNEL_CLOSE_OK:
                raise AmqpRefusal(ReplyCode.CHANNEL_ERROR, f"channel {number} is not open")
        elif kind == CHANNEL_CLOSE:
            await channel.leave()
            await self.answers_due(channel.state)
            self._forget(number)
            self.put(method_frame(number, encode_method(commands.Channel.CloseOk())))
        elif kind == CHANNEL_CLOSE_OK and channel.state.is_closing:
            await channel.leave()
            self._forget(number)
        elif not channel.state.is_closing:
            raise AmqpRefusal(ReplyCode.CHANNEL_ERROR, f"channel {number} is open")

    def _forget(self, number: int) -> None:
        del self._channels[number]
        self._parts.memory_budget.change(self.session, -CHANNEL_BYTES)

    async def _refuse(self, error: AmqpRefusal | Refused, command: Command, channel: AmqpChannel | None) -> None:
        """End the channel or the connection, and say why."""
        session = self.session
        cause = (command.class_id, command.method_id)
        refusal = of_channel(error)
        if error.code == NOT_ALLOWED:
            self._parts.refusals.note_client(session, error)
        if channel is None or not refusal.ends_channel:
            self.close_connection(of_connection(error), cause)
        else:
            await channel.flush()
            await self.answers_due(channel.state)
            if not self.is_over and not channel.state.is_closing:
                self.put(channel.state.close(refusal, cause))
                await channel.leave()

    async def answers_due(self, channel: Channel, kind: str = "") -> None:
        """Wait for consume-ok and commit-ok: behind other answers, or on a channel that is closed, they are an error.

        `kind`: what the receipts of those that are waited for begin with.
        """
        session = self.session
        while self.encoder.owes(channel, kind) and not self.is_over:
            session.waits_for_slot = True
            await self._answered.wait(LOOK_SECONDS)
            session.waits_for_slot = False

    def close_connection(self, refusal: AmqpRefusal, cause: tuple[int, int] = (0, 0)) -> None:
        """Send connection.close and end the session."""
        session = self.session
        log.info("! %s %s: %s", session.id, session.peer_address, refusal)
        self.put(self.encoder.close(refusal, cause))
        session.end_in_order()

    async def ask(
        self, options: Verb, about: str, value: Mapping[str, Any] | None = None, said: Mapping[str, str] = NO_HEADERS
    ) -> Facts:
        """The facts of a verb that this client asks for. Raises Refused."""
        session = self.session
        # Meanwhile the client is not read: its silence is the node's.
        session.waits_for_slot = True
        facts = await self._parts.loops.requests.ask(session, options, about, value, said)
        session.waits_for_slot = False
        session.leave_if_dismissed()
        if isinstance(facts, Refused):
            raise facts
        return facts

    # The other parts of `ClientDialogue`

    def release(self) -> None:
        self._reader.forget()

    def finish(self) -> None:
        self.handshake.decided()

    def stop(self) -> None:
        self.beats.stop()
        self.blocking.stop()

    def leave(self) -> None:
        self.handshake.leave()
        for channel in self._channels.values():
            channel.forget()
        self._channels.clear()
        del self.handshake, self._loop, self.beats, self.session, self.encoder, self.blocking


def _refusal(refused: Refused) -> bytes:
    """Before the client has sent its header there is no method to say why: it gets the version that is spoken."""
    refusal = of_connection(refused)
    method = commands.Connection.Close(int(refusal.reply), refusal.text, 0, 0)
    return method_frame(0, encode_method(method))


def protocol(of_node: ProtocolParts) -> ClientProtocol:
    """AMQP on one node, whose sessions share what they have encoded, and what they ask the mesh."""
    node, engine, its, path = of_node.node, of_node.engine, of_node.settings, of_node.sessions.login_path
    declared, row_of = its.declared_queues, of_node.admin.lists.queue_row
    lookup = Lookup(engine.broker, declared, its.routing.table, its.vhosts, its.sync, row_of, its.policies.of)
    parts = AmqpParts(
        engine,
        lookup,
        SharedContents(),
        pull_consumers(engine, of_node.mesh),
        path,
        of_node.sessions.loops,
        path.refusals,
        of_node.beats,
        of_node.sessions.host.budget,
        its.definitions,
        declared,
        its.exclusive_queues,
        its.queue_lifetimes,
        its.queue_watchers,
        node.spawn,
        node.settings.limits.body_bytes_max,
    )
    return ClientProtocol("amqp", partial(AmqpDialogue, parts), _refusal)
