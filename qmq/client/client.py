"""The client as applications on trio and asyncio use it; docs/client.md shows how.

Nothing here knows which of the two runs it: what waits does so through the Runner of its style. `qmq.client.blocking`
runs the same coroutines in the thread of the caller, where they wait by blocking.
"""

import math
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Unpack

from qmq.client.core.core import Core
from qmq.client.core.encode import Headers, Send
from qmq.client.core.feed import Delivered
from qmq.client.core.requests import PendingReply, Phase, Request
from qmq.client.message import Message, MessageContent, Receipt
from qmq.client.options import SubscribeOptions, new_feed
from qmq.client.runner import Runner
from qmq.client.subscription import Subscription
from qmq.client.tracing import Tracing
from qmq.client.transaction import Transaction
from qmq.errors import NotConnected, Refused, ReplyLost, Stale

REPLY_PREFIX = "/reply-queue/"
"""Of the addresses that nodes write into `reply-to`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A client at one moment."""

    node: str | None
    """Address of the node that it is logged in to; None while there is none."""
    logins: int
    subscriptions: int
    unconfirmed_messages: int
    """Sent or waiting for a connection, without a receipt; transactions count as one."""
    unconfirmed_bytes: int
    buffered_messages: int
    """Here, and not yet taken by the application."""
    buffered_bytes: int
    waiting_requests: int
    """Of `request`, without an answer."""
    written_again: int
    """Messages and transactions that were written once more after a connection had ended."""
    stale_settles: int
    """ACKs and NACKs that came too late."""
    last_error: str
    """Why the last connection ended or could not be had."""


class Client:
    """Made by `connect`; all of it may be used by several tasks at once."""

    def __init__(self, core: Core, runner: Runner, tracing: Tracing) -> None:
        self.core = core
        self.runner = runner
        self._tracing = tracing

    async def send(
        self, destination: str, body: bytes, headers: Headers | None = None, *, timeout_seconds: float = math.inf
    ) -> Receipt:
        """Send one message; on return the node has confirmed it, and the Receipt has the details.

        Concurrent calls share one window (`window_messages`, `window_bytes`); beyond it they wait in line, and
        every call waits while there is no connection. If the connection ends first, the message is sent again with the
        same `dedup-id` header, at whatever node, and the mesh appends it once (docs/guarantees.md has the bound).
        Cancelled: it may have been sent, and is not sent again.

        Raises:
            Refused: the node refuses; `code` and `message` are those of its ERROR.
            NotConnected: the client was closed or has given up.
            TimeoutError: not confirmed within `timeout_seconds`: as if cancelled then.
            ValueError, LocalProtocolError: headers that the client writes itself, or that STOMP cannot carry.
        """
        with self.sending("send", destination, body, headers or {}) as all_headers:
            request = self.core.new_send(destination, body, all_headers)
            return await self.runner.limited(timeout_seconds, self._request(request))

    async def request(
        self,
        destination: str,
        body: bytes,
        headers: Headers | None = None,
        *,
        timeout_seconds: float = math.inf,
        retry: bool = False,
    ) -> Message:
        """Send a message and wait for the answer to it: a Message, which needs no settling.

        Any number may wait at once. `correlation-id` identifies an answer; the client writes it unless
        `headers` have one. Until a node has confirmed the request it is sent again like any message. From then on the
        answer is bound to the connection: when that ends first, `retry` decides whether the request is sent once more,
        with the same ids (the responder may then do it twice), or ReplyLost is raised.

        Raises:
            ReplyLost: see above; whether the request was handled is unknown.
            TimeoutError: no answer within `timeout_seconds`. A later one is discarded.
            Refused, NotConnected, LocalProtocolError: as `send`.
            ValueError: as `send`; `headers` with `reply-to`, or with the correlation id of a request under way.
        """
        delivery = await self.request_delivery(destination, body, headers, timeout_seconds=timeout_seconds, retry=retry)
        return Message(self, delivery, False)

    async def request_delivery(
        self, destination: str, body: bytes, headers: Headers | None, *, timeout_seconds: float, retry: bool
    ) -> Delivered:
        """The answer as it came; see `request`."""
        given = dict(headers or {})
        correlation_id = given.pop("correlation-id", "") or self.core.new_correlation_id()

        async def until_answered() -> Delivered:
            while True:
                try:
                    return await self._request_reply(
                        self.core.new_reply_request(destination, body, given, correlation_id)
                    )
                except ReplyLost:
                    if not retry:
                        raise

        with self.sending("send", destination, body, {**given, "correlation-id": correlation_id}) as all_headers:
            given = {name: value for name, value in all_headers.items() if name != "correlation-id"}
            return await self.runner.limited(timeout_seconds, until_answered())

    async def reply(
        self,
        message: MessageContent,
        body: bytes,
        headers: Headers | None = None,
        *,
        timeout_seconds: float = math.inf,
    ) -> bool:
        """Answer `message`: send `body` to its `reply-to`, with its `correlation-id` (or its id, when it has none).

        True when the node has taken the answer, False when no client waits for it: it has left, or its queue,
        which AMQP named for it, has ended. `mandatory:true` in `headers` says the same of queues with other names; else
        such a queue is made again and keeps the answer. Otherwise as `send`; raises
        ValueError when the message asks for no answer.
        """
        address = message.headers.get("reply-to")
        if not address:
            raise ValueError("the message has no reply-to: it asks for no answer")
        given = {"correlation-id": message.headers.get("correlation-id", message.id), **(headers or {})}
        if "amq.gen-" in address:  # A queue that a node has named for one client of AMQP.
            given.setdefault("mandatory", "true")
        try:
            await self.send(address, body, given, timeout_seconds=timeout_seconds)
        except Refused as refused:
            has_left = refused.code == "unknown-destination" and address.startswith(REPLY_PREFIX)
            if has_left or refused.code == "unroutable":
                return False
            raise
        return True

    def subscribe(
        self,
        destination: str,
        *,
        confirm: bool = False,
        timeout_seconds: float = math.inf,
        **options: Unpack[SubscribeOptions],
    ) -> Subscription:
        """The messages of a queue, a fanout or a topic, inside `async with`. Its beginning waits up to
        `timeout_seconds` for the node.

        Queues: at most `prefetch` messages are here and not settled. `ack="auto"` acknowledges a message when it is
        handed out. `confirm` lets a message's context wait for the receipt of its ACK, and `ack_level` says when ACKs
        that are waited for are receipted (docs/stomp.md, Ack levels); None leaves that to the queue's policy.
        Fanouts: `start` is `first`, `next`, or a `Subscription.position` of earlier; exactly once from there, whatever
        nodes do. At most `buffer_bytes` wait here; more is fetched when half of that is taken.
        Fanouts with a `durable` name: the nodes keep the place, and messages are acknowledged like those of a queue, in
        one transaction with others if need be; `start` counts the first time only. Refused with `durable-taken-over`
        ends the iteration when another client goes on under that name.
        Topics: more than `buffer_bytes` waiting is an Overrun, or drops the oldest. What is published while there is
        no connection is missed.

        Raises ValueError for arguments that no node accepts, LocalProtocolError for those that STOMP cannot carry.
        """
        feed = new_feed(self.core.client_id, destination, confirm=confirm, **options)
        return Subscription(self, feed, confirm, timeout_seconds)

    def transaction(self, *, timeout_seconds: float = math.inf) -> Transaction:
        """Messages and acknowledgements that take effect together, inside `async with`. The end of the block waits up
        to `timeout_seconds` for the node.
        """
        return Transaction(self, timeout_seconds)

    def statistics(self) -> Statistics:
        """This moment, as a frozen snapshot."""
        core, runner = self.core, self.runner
        return Statistics(
            node=None if runner.address is None else str(runner.address),
            logins=core.connections,
            subscriptions=len(core.feeds),
            unconfirmed_messages=core.requests.messages,
            unconfirmed_bytes=core.requests.bytes,
            buffered_messages=sum(len(feed.buffer) for feed in core.feeds),
            buffered_bytes=sum(feed.buffered_bytes for feed in core.feeds),
            waiting_requests=len(core.replies),
            written_again=core.written_again,
            stale_settles=core.stale_settles,
            last_error=runner.last_error,
        )

    # For messages and transactions

    def sending(
        self, operation: str, destination: str, body: bytes, headers: Headers
    ) -> AbstractContextManager[Headers]:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"body must be bytes, not {type(body).__name__}")
        return self._tracing.sending(operation, destination, body, headers, self.runner.address)

    def processing(self, delivery: Delivered) -> AbstractContextManager[object]:
        return self._tracing.processing(delivery, self.runner.address)

    async def settle(self, delivery: Delivered, is_ack: bool, *, requeue: bool = True) -> Receipt | None:
        """ACK or NACK and wait for the receipt; see `Message.ack`."""
        # Sent before the first checkpoint: finished work must be acknowledged even if its task is cancelled now.
        request = self.core.settle(delivery, is_ack, True, requeue=requeue)
        self.runner.wake()
        if request is None:
            await self.runner.checkpoint()
            return None
        await self._answer(request)
        return _receipt_of(request)

    def schedule_settle(self, delivery: Delivered, is_ack: bool) -> None:
        """ACK or NACK without an answer. It may be too late, which the core counts: the caller can do nothing."""
        with suppress(Stale, NotConnected):
            self.core.settle(delivery, is_ack, False)
        self.runner.wake()

    async def commit(self, sends: list[Send], settles: list[tuple[Delivered, bool]], timeout_seconds: float) -> Receipt:
        """One transaction; see `Transaction`."""
        request: Request | None = None
        try:
            request = self.core.new_transaction(sends, settles)
            return await self.runner.limited(timeout_seconds, self._request(request))
        except BaseException:
            if request is None or not request.written:
                self.release(settles)
            raise

    def release(self, settles: list[tuple[Delivered, bool]]) -> None:
        """No transaction with these is requested."""
        for delivery, _ in settles:
            self.core.release(delivery)

    async def _request_reply(self, pending: PendingReply) -> Delivered:
        """Wait for room, send the request, wait for the answer. Raises ReplyLost and what `send` raises."""
        core, runner = self.core, self.runner
        try:
            await runner.room(len(pending.request.data))
            core.submit(pending.request)
            runner.wake()
            while not pending.done:
                await runner.changed(pending)
        finally:
            core.forget_reply(pending)
            runner.forget(pending)
        if pending.error is not None:
            raise pending.error
        assert pending.reply is not None
        return pending.reply

    async def _request(self, request: Request) -> Receipt:
        """Wait for room, send the request, wait for its receipt."""
        runner = self.runner
        await runner.room(len(request.data))
        try:
            self.core.submit(request)
        finally:
            runner.wake()
        await self._answer(request)
        return _receipt_of(request)

    async def _answer(self, request: Request) -> None:
        try:
            while not request.done:
                await self.runner.changed(request)
        finally:
            if not request.done:
                self.core.forget(request)
                self.runner.forget(request)
        if request.error is not None:
            raise request.error

    async def leave(self, farewell_seconds: float) -> None:
        """Disconnect in order and stop."""
        if self.core.phase is not Phase.CLOSED:
            request = self.core.leave()
            self.runner.wake()
            with suppress(TimeoutError):
                await self.runner.within(farewell_seconds, self._answer(request))
        self.close()

    def close(self) -> None:
        """Stop at once: waiting calls raise NotConnected. Idempotent."""
        self.core.close(None)
        self.runner.wake()


def _receipt_of(request: Request) -> Receipt:
    answer = request.answer
    copies = answer.get("copies", "")
    return Receipt(
        copies=int(copies) if copies.isdecimal() else None,
        is_duplicate=answer.get("duplicate") == "true",
        is_edge=answer.get("ack-level") == "edge",
    )
