"""A message in the application, and how the application settles it."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from qmq.client.core.core import Core
from qmq.client.core.encode import Headers
from qmq.client.core.feed import GAP_HEADER, Delivered
from qmq.client.core.vectors import parse_gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """How a node has confirmed a message or transaction."""

    copies: int | None
    """On how many disks it is, if fewer than its level requires; None: the level was reached."""
    is_duplicate: bool
    """A message with this `dedup-id` was there already, most often by an earlier attempt of this one."""
    is_edge: bool = False
    """An ACK that asked for `quorum` did not get it in time: its message is settled, and may be delivered again."""


class Settler(Protocol):
    """What a message needs from its client."""

    @property
    def core(self) -> Core: ...

    def processing(self, delivery: Delivered) -> AbstractContextManager[object]: ...

    async def settle(self, delivery: Delivered, is_ack: bool, *, requeue: bool = True) -> Receipt | None: ...

    def schedule_settle(self, delivery: Delivered, is_ack: bool) -> None: ...

    async def reply(
        self,
        message: "MessageContent",
        body: bytes,
        headers: Headers | None = None,
        *,
        timeout_seconds: float = math.inf,
    ) -> bool: ...


class MessageContent:
    """What a message says, in every style of program."""

    __slots__ = ("_core", "delivery")

    def __init__(self, core: Core, delivery: Delivered) -> None:
        self._core = core
        self.delivery = delivery

    def __repr__(self) -> str:
        return f"Message({self.destination!r}, {self.id!r}, body of {len(self.body)} bytes)"

    @property
    def body(self) -> bytes:
        """Exactly the sender's bytes."""
        return self.delivery.body

    @property
    def headers(self) -> Mapping[str, str]:
        """The sender's headers, and those of the node."""
        return self.delivery.headers

    @property
    def destination(self) -> str:
        return self.delivery.headers.get("destination", "")

    @property
    def id(self) -> str:
        """`message-id`: the same on every delivery and every node."""
        return self.delivery.headers.get("message-id", "")

    @property
    def gap(self) -> Mapping[str, tuple[int, int]]:
        """Fanouts: not empty when this is no message, but the notice that messages are missing: what retention
        dropped before this subscription came to it. Origin → (first, last) of their sequences; `body` is empty.
        """
        return parse_gap(self.delivery.headers.get(GAP_HEADER, ""))

    @property
    def delivery_count(self) -> int:
        """Which attempt this is, from 1 on, as far as the queue's node remembers."""
        count = self.delivery.headers.get("delivery-count", "1")
        return int(count) if count.isascii() and count.isdigit() else 1

    @property
    def is_redelivered(self) -> bool:
        """Whether a client, perhaps this one, may have worked on it before."""
        return self.delivery.headers.get("redelivered") == "true"

    @property
    def is_stale(self) -> bool:
        """Whether the connection that it came over is gone, so that an ACK can no longer be said: it comes again."""
        return bool(self.delivery.ack_id) and self._core.is_stale(self.delivery)


class Message(MessageContent):
    """One message. As a context (`async with message`), it is acknowledged at the end of the block, and refused when
    the block ends with an exception or a cancel. It settles once; what is said after that does nothing. Messages of
    topics and fanouts, except by durable subscriptions, need no settling: everything here does nothing for them.
    """

    __slots__ = ("_block", "_client", "_confirm")

    def __init__(self, client: Settler, delivery: Delivered, confirm: bool) -> None:
        super().__init__(client.core, delivery)
        self._client = client
        self._confirm = confirm

    async def ack(self) -> Receipt | None:
        """It is done. On return the ACK is on the node's disk, and the Receipt has details; None if settled before.

        In `client` mode this covers everything delivered before it, too. Cancelled: the ACK may have been sent.

        Raises:
            Stale: too late, it is delivered again; or the connection ended before the receipt, and it may be.
            Refused: the node refuses.
            NotConnected: the client was closed.
        """
        return await self._client.settle(self.delivery, True)

    async def nack(self, *, requeue: bool = True) -> None:
        """It could not be done: it returns to its queue for redelivery to any consumer, or becomes a dead letter at
        once without `requeue`. Otherwise as `ack`.
        """
        await self._client.settle(self.delivery, False, requeue=requeue)

    async def reply(self, body: bytes, headers: Headers | None = None, *, timeout_seconds: float = math.inf) -> bool:
        """Answer it. True when the node has taken the answer, False when no client waits for it; see
        `Client.reply`. This settles nothing."""
        return await self._client.reply(self, body, headers, timeout_seconds=timeout_seconds)

    async def __aenter__(self) -> "Message":
        self._block = self._client.processing(self.delivery)
        self._block.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """ACK or NACK without waiting. A message that has become stale is left alone: its work was done, and it will
        come again. If the subscription was made with `confirm`, a block that ends well is as `ack`, with its errors.
        """
        self._block.__exit__(kind, error, trace)
        if kind is None and self._confirm:
            await self.ack()
        else:
            self._client.schedule_settle(self.delivery, kind is None)
