"""Publishes of one channel, and those that no queue gets."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import COST_MAX
from qmq.errors import Refused
from qmq.gateways.copies import EXCHANGE, ROUTING_KEY, ROUTING_KEYS, destination_with, further_keys, matching_queues
from qmq.model.routing_names import PREFIX
from qmq.protocols.amqp.channel_frames import ChannelFrames
from qmq.protocols.amqp.codec.frames import Command, content_frames, method_frame
from qmq.protocols.amqp.codec.methods import IMMEDIATE, MANDATORY, read_publish, short_string
from qmq.protocols.amqp.codec.properties import without_header
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.messages import BCC, send_headers
from qmq.protocols.amqp.gateway.names import (
    DEFAULT_VHOST,
    QUEUE,
    REPLIES,
    exchange_name,
    publish_destination,
    queue_name,
)
from qmq.protocols.amqp.lookup import Lookup
from qmq.wire.stomp import Frame, Head, Version

HEADS_MAX: Final = 256
"""Different publishes of a connection that are remembered; at the bound all are forgotten."""
HEAD_BYTES_MAX: Final = 1024
"""Properties of such a publish."""

NO_ROUTE: Final = 312
RETURN: Final = b"\x00\x3c\x00\x32"


class ChannelPublishes:
    """`publish` gets one basic.publish after the other."""

    def __init__(self, frames: ChannelFrames, lookup: Lookup, broker: Broker, body_bytes_max: int) -> None:
        self._frames = frames
        self._lookup = lookup
        self._broker = broker
        self._body_bytes_max = body_bytes_max
        self._memory = frames.owner.publishes
        self._owner = frames.owner
        self.state = frames.state
        self._rights = frames.rights
        # What looking for bindings has cost since others had a turn.
        self._cost = 0

    async def publish(self, command: Command) -> None:
        """Collect it, or answer it at once if no queue gets it. Raises AmqpRefusal and Refused."""
        exchange, key, bits = read_publish(command.arguments)
        if command.body is None:
            raise AmqpRefusal(
                ReplyCode.PRECONDITION_FAILED,
                f"the message has {command.size} bytes; limits.body_bytes_max of this node is {self._body_bytes_max}",
            )
        if bits & IMMEDIATE:
            raise AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        head = self._head_of(exchange, key, command.properties)
        further = further_keys(head.headers)
        if further and head.headers["destination"].startswith(REPLIES):
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, "a reply has no CC and no BCC: it goes to one client")
        # A client without the right must not learn whether a queue would get the message.
        self._rights.check_send(head.headers["destination"])
        for one in further:
            self._rights.check_send(destination_with(head.headers["destination"], one))
        vhost = self._owner.vhost
        if exchange:
            exchanges = self._lookup.table.exchanges
            known = exchanges.get(exchange_name(exchange, vhost))
            if known is None:
                await self._lookup.check_exchange(exchange, vhost)
                known = exchanges.get(exchange_name(exchange, vhost))
            if known is not None and known.internal:
                raise AmqpRefusal(
                    ReplyCode.ACCESS_REFUSED,
                    f"cannot publish to internal exchange {exchange!r} in vhost {vhost.name!r}",
                )
        receipt = self.state.next_confirm() if self.state.confirms else None
        if further and not exchange:
            routed = await self._named_queues(key, head, further)
        else:
            routed = head if await self._is_routable(exchange, head, further, bool(bits & MANDATORY)) else None
        if routed is None:
            await self._pay()
            if self._owner.is_over or self.state.is_closing:
                return
            if bits & MANDATORY:
                self._return(exchange, key, command)
            if receipt is not None:
                self._owner.put(self.state.confirm([self.state.published]))
            return
        self._frames.begin()
        if receipt is not None and not exchange and routed.headers["destination"].startswith(REPLIES):
            # With a receipt, it would end the channel if its requester leaves before it is decided.
            self._owner.put(self.state.confirm([self.state.published]))
            receipt = None
        self._frames.pending.append(Frame(routed, command.body, receipt))

    def _head_of(self, exchange: str, key: str, properties: bytes) -> Head:
        """The header block of a publish. Raises AmqpRefusal."""
        heads, place = self._memory.heads, (self.state.serial, exchange, key, properties)
        known = heads.get(place)
        if known is not None:
            return known
        session = self._owner.session
        destination = publish_destination(exchange, key, self._owner.vhost)
        # Before what it says of itself is read.
        self._rights.check_send(destination)
        replies = None if self.state.reply_consumer is None else self.state
        headers = send_headers(destination, properties, session.user, replies, self._owner.vhost)
        if self._frames.transaction is not None:
            headers["transaction"] = self._frames.transaction
        head = Head("SEND", headers, Version.V12)
        if len(properties) <= HEAD_BYTES_MAX:
            if len(heads) >= HEADS_MAX:
                heads.clear()
            heads[place] = head
        return head

    async def _named_queues(self, key: str, head: Head, further: Sequence[str]) -> Head | None:
        """The header block of a publish to the default exchange with further keys: to those queues that exist. None if
        there is none. Raises Refused."""
        named = dict.fromkeys([head.headers["destination"], *(f"{QUEUE}{one}" for one in further)])
        found = [one for one in named if await self._exists(one)]
        if not found:
            return None
        # In each queue it has the key of the publish.
        headers = {**head.headers, "destination": found[0], EXCHANGE: "", ROUTING_KEY: key}
        headers[ROUTING_KEYS] = json.dumps([queue_name(one, DEFAULT_VHOST) for one in found[1:]])
        return Head("SEND", headers, Version.V12)

    async def _is_routable(self, exchange: str, head: Head, further: tuple[str, ...], is_mandatory: bool) -> bool:
        """Whether a publish reaches a queue. One to an exchange is asked about only where the answer is wanted."""
        headers = head.headers
        destination = headers["destination"]
        if not exchange:
            return self._is_awaited(destination) if destination.startswith(REPLIES) else await self._exists(destination)
        if not is_mandatory:
            return True
        if await self._is_bound(destination, headers, further):
            return True
        await self._learn_bindings()
        return await self._is_bound(destination, headers, further)

    async def _is_bound(self, exchange: str, headers: Mapping[str, str], further: tuple[str, ...]) -> bool:
        """Whether bindings match a publish to `exchange`. Raises Refused. Others have a turn where many have cost
        much."""
        routing = self._lookup.table
        routing.cost = 0
        is_bound = bool(matching_queues(routing, exchange, headers, further))
        self._cost += routing.cost
        if self._cost >= COST_MAX:
            self._cost = 0
            await trio.lowlevel.checkpoint()
        return is_bound

    def _is_awaited(self, address: str) -> bool:
        """Whether a client may wait for a reply to this address, as far as this node knows."""
        try:
            self._broker.replies.check(address)
        except Refused:
            return False
        return True

    async def _learn_bindings(self) -> None:
        """Ask the peers for bindings that were made a moment ago: once for all publishes that have come."""
        lookup = self._lookup

        async def ask(_: str) -> bool:
            await lookup.refresh()
            return False

        if not self._memory.asked_for_bindings:
            await lookup.questions.exists(PREFIX, ask)
            self._memory.asked_for_bindings = True

    async def _exists(self, queue: str) -> bool:
        """Whether a queue exists on any node; one without a name does not."""
        lookup, absent = self._lookup, self._memory.absent
        if lookup.knows_queue(queue):
            return True
        if queue == f"{QUEUE}{self._owner.vhost.prefix}" or queue in absent:
            return False
        exists = await lookup.questions.exists(queue, lookup.queue_exists)
        if not exists:
            absent.add(queue)
        return exists

    async def _pay(self) -> None:
        """Wait for the rates of the client, which a publish that no queue gets uses up, too."""
        if self._owner.session.allowance.is_limited:
            await self._frames.flush()
            await self._owner.session.pay(1)

    def _return(self, exchange: str, key: str, command: Command) -> None:
        """basic.return of a publish that no queue gets."""
        assert command.body is not None
        routing = short_string("NO_ROUTE") + short_string(exchange) + short_string(key)
        method = method_frame(self.state.number, RETURN + NO_ROUTE.to_bytes(2, "big") + routing)
        frame_bytes_max = self._owner.encoder.frame_bytes_max
        properties = without_header(command.properties, BCC)
        content = content_frames(self.state.number, properties, command.body, frame_bytes_max)
        self._owner.put(method + content)
