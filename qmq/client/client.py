"""The client as applications use it; docs/client.md shows how.

A Client is a context with a nursery of its own: `connect` yields it logged in, keeps it connected to one node of the
list, and disconnects in order at the end of the block. The caller's cancel scopes bound every waiting call; there are
no time-outs of our own except for one node's answer to a login. Without a reachable node calls wait.

Surprising: an exception of the block leaves `connect` as it is and not inside an ExceptionGroup, despite the nursery.
"""

import math
import random
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import trio

from qmq.client.address import Rotation
from qmq.client.core import Core, Passcode
from qmq.client.dial import Dial, dial
from qmq.client.encode import Headers, Send, encode_connect, encode_subscribe
from qmq.client.feed import AckMode, Delivered, Feed
from qmq.client.message import Message, Receipt
from qmq.client.requests import PendingReply, Phase, Request
from qmq.client.runner import Runner
from qmq.client.subscription import Subscription
from qmq.client.transaction import Transaction
from qmq.client.vectors import Progress, parse_progress
from qmq.errors import Refused, ReplyLost

PREFETCH = 100
BUFFER_BYTES = 4 << 20
WINDOW_MESSAGES = 256
WINDOW_BYTES = 4 << 20
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

    def __init__(self, core: Core, runner: Runner) -> None:
        self.core = core
        self.runner = runner

    async def send(self, destination: str, body: bytes, headers: Headers | None = None) -> Receipt:
        """Send one message; on return the node has confirmed it, and the Receipt has the details.

        Concurrent calls share one window (`window_messages`, `window_bytes`); beyond it they wait in line, and
        every call waits while there is no connection. If the connection ends first, the message is sent again with the
        same `dedup-id` header, at whatever node, and the mesh appends it once (docs/guarantees.md has the bound).
        Cancelled: it may have been sent, and is not sent again.

        Raises:
            Refused: the node refuses; `code` and `message` are those of its ERROR.
            NotConnected: the client was closed or has given up.
            ValueError, LocalProtocolError: headers that the client writes itself, or that STOMP cannot carry.
        """
        return await self._request(self.core.new_send(destination, body, headers or {}))

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
            trio.TooSlowError: no answer within `timeout_seconds`. A later one is discarded.
            Refused, NotConnected, LocalProtocolError: as `send`.
            ValueError: as `send`; `headers` with `reply-to`, or with the correlation id of a request under way.
        """
        given = dict(headers or {})
        correlation_id = given.pop("correlation-id", "") or self.core.new_correlation_id()
        with trio.fail_after(timeout_seconds):
            while True:
                try:
                    return await self._request_reply(
                        self.core.new_reply_request(destination, body, given, correlation_id)
                    )
                except ReplyLost:
                    if not retry:
                        raise

    async def reply(self, message: Message, body: bytes, headers: Headers | None = None) -> bool:
        """Answer `message`: send `body` to its `reply-to`, with its `correlation-id` (or its id, when it has none).

        True when the node has taken the answer, False when no client waits for it. Otherwise as `send`; raises
        ValueError when the message asks for no answer.
        """
        address = message.headers.get("reply-to")
        if not address:
            raise ValueError("the message has no reply-to: it asks for no answer")
        given = {"correlation-id": message.headers.get("correlation-id", message.id), **(headers or {})}
        try:
            await self.send(address, body, given)
        except Refused as refused:
            if refused.code == "unknown-destination" and address.startswith(REPLY_PREFIX):
                return False
            raise
        return True

    def subscribe(
        self,
        destination: str,
        *,
        ack: Literal["auto", "client", "client-individual"] = "client-individual",
        prefetch: int = PREFETCH,
        buffer_bytes: int = BUFFER_BYTES,
        start: str = "first",
        durable: str = "",
        overflow: Literal["error", "drop-oldest"] = "error",
        ack_level: Literal["edge", "quorum"] | None = None,
        confirm: bool = False,
        headers: Headers | None = None,
    ) -> Subscription:
        """The messages of a queue, a fanout or a topic, inside `async with`.

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
        if prefetch < 1 or buffer_bytes < 1:
            raise ValueError("prefetch and buffer_bytes are at least 1")
        if overflow not in ("error", "drop-oldest"):
            raise ValueError("overflow is error or drop-oldest")
        if durable and not (self.core.client_id and destination.startswith("/fanout/")):
            raise ValueError("durable subscriptions are of fanouts, by a client that was given a client_id")
        named = start in ("first", "next")
        feed = Feed(
            destination,
            ack=AckMode(ack),
            prefetch=prefetch,
            buffer_bytes_max=buffer_bytes,
            drops_oldest=overflow == "drop-oldest",
            start=start if named else "resume",
            seen=Progress() if named else parse_progress(start),
            headers=headers or {},
            durable=durable,
            ack_level=ack_level or "",
        )
        encode_subscribe(feed)  # Later it would fail in the task that all calls share.
        return Subscription(self, feed, confirm)

    def transaction(self) -> Transaction:
        """Messages and acknowledgements that take effect together, inside `async with`."""
        return Transaction(self)

    def statistics(self) -> Statistics:
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

    async def settle(self, delivery: Delivered, is_ack: bool) -> Receipt | None:
        """ACK or NACK and wait for the receipt; see `Message.ack`."""
        # Sent before the first checkpoint: finished work must be acknowledged even if its task is cancelled now.
        request = self.core.settle(delivery, is_ack, True)
        self.runner.wake()
        if request is None:
            await trio.lowlevel.checkpoint()
            return None
        await self._answer(request)
        return _receipt_of(request)

    def schedule_settle(self, delivery: Delivered, is_ack: bool) -> None:
        """ACK or NACK without an answer. Raises Stale, NotConnected."""
        self.core.settle(delivery, is_ack, False)
        self.runner.wake()

    async def commit(self, sends: list[Send], settles: list[tuple[Delivered, bool]]) -> Receipt:
        """One transaction; see `Transaction`."""
        request: Request | None = None
        try:
            request = self.core.new_transaction(sends, settles)
            return await self._request(request)
        except BaseException:
            if request is None or not request.written:
                self.release(settles)
            raise

    def release(self, settles: list[tuple[Delivered, bool]]) -> None:
        """No transaction with these is requested."""
        for delivery, _ in settles:
            self.core.release(delivery)

    async def _request_reply(self, pending: PendingReply) -> Message:
        """Wait for room, send the request, wait for the answer. Raises ReplyLost and what `send` raises."""
        core, runner = self.core, self.runner
        try:
            await runner.room(len(pending.request.data))
            core.submit(pending.request)
            runner.wake()
            runner.room_left()
            while not pending.done:
                await runner.changed(pending)
        finally:
            core.forget_reply(pending)
            runner.forget(pending)
        if pending.error is not None:
            raise pending.error
        assert pending.reply is not None
        return Message(self, pending.reply, False)

    async def _request(self, request: Request) -> Receipt:
        """Wait for room, send the request, wait for its receipt."""
        runner = self.runner
        await runner.room(len(request.data))
        try:
            self.core.submit(request)
        finally:
            runner.wake()
            runner.room_left()
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
            with trio.move_on_after(farewell_seconds):
                await self._answer(request)
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


@asynccontextmanager
async def connect(
    nodes: str | Iterable[str],
    *,
    login: str | None = None,
    passcode: Passcode = None,
    client_id: str = "",
    tls: ssl.SSLContext | None = None,
    beat_seconds: float = 5.0,
    window_messages: int = WINDOW_MESSAGES,
    window_bytes: int = WINDOW_BYTES,
    attempt_seconds: float = 5.0,
    redial_seconds_min: float = 0.1,
    redial_seconds_max: float = 10.0,
    farewell_seconds: float = 5.0,
    rng: random.Random | None = None,
    dial: Dial = dial,
) -> AsyncIterator[Client]:
    """A client of the first node of `nodes` (`host:port`) that accepts it, and of the others when that one dies.

    Waits until there is one; a time limit is the caller's (`trio.fail_after`). `client_id` belongs to the names of
    durable subscriptions. `beat_seconds` is the heart-beat requested in both directions, 0 for none: a node silent for
    twice that is left. A dial and its login get `attempt_seconds`; when all nodes have failed, a random part of a wait
    that doubles from `redial_seconds_min` to `redial_seconds_max` follows. At the end of the block earlier sends get
    up to `farewell_seconds` to arrive; after an exception or a cancel the connection is cut at once. `rng` and
    `dial` are for tests.

    Raises:
        Refused: every node refuses the login.
        ValueError: `nodes` is empty or not a list of addresses, or a bound is not positive.
        LocalProtocolError: a login, passcode or client id that STOMP cannot carry.
    """
    if window_messages < 1 or window_bytes < 1 or attempt_seconds <= 0 or beat_seconds < 0:
        raise ValueError("windows and attempt_seconds are positive, beat_seconds is not negative")
    # In the task of the connection, where it is written, an error would come as a group.
    encode_connect("", login, None if callable(passcode) else passcode, 0, client_id)
    rng = rng or random.SystemRandom()
    addresses = [nodes] if isinstance(nodes, str) else nodes
    rotation = Rotation(addresses, rng, seconds_min=redial_seconds_min, seconds_max=redial_seconds_max)
    core = Core(
        id=f"{rng.getrandbits(64):016x}",
        login=login,
        passcode=passcode,
        client_id=client_id,
        beat_ms=round(beat_seconds * 1000),
        window_messages=window_messages,
        window_bytes=window_bytes,
    )
    runner = Runner(core, rotation, dial, tls=tls, attempt_seconds=attempt_seconds, steady_seconds=2 * attempt_seconds)
    client = Client(core, runner)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        try:
            await runner.online()
            yield client
            await client.leave(farewell_seconds)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            failure = error  # raised below, where no nursery wraps it; a cancel propagates
        finally:
            core.close(None)
            runner.wake()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
