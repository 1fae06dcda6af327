"""Commands of one beanstalkd connection that are decided together: puts, deletes, releases and buries of one read.

A put is a SEND. A delete settles, and so does a release that changes nothing. A job that is buried, or released with
another priority or a delay, is sent again and acknowledged in one transaction.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from qmq.broker.consumers.orders import Begin, Commit, SettleDeliveries
from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.engine.parts import EngineParts
from qmq.gateways.paused import Command
from qmq.gateways.stomp import StompGateway
from qmq.protocols.beanstalk.codec.replies import INTERNAL_ERROR, NOT_FOUND, OUT_OF_MEMORY
from qmq.protocols.beanstalk.gateway.encoder import BeanstalkEncoder, OrderedReplies, ReplySlot, refusal_reply
from qmq.protocols.beanstalk.part import BeanstalkPart
from qmq.protocols.beanstalk.reservations import Reservations
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.frame_loop import FrameLoops
from qmq.sessions.pull_consumer import PullConsumer
from qmq.wire.stomp import Frame, Head, Version

TRANSACTION: Final = "beanstalk"
"""The name of the one that is open."""

TOGETHER_MAX: Final = 64
"""Commands whose frames are made together. When one is refused, the frames of those behind it are made again."""


class PutJob(NamedTuple):
    """A job that is put. `delivery`: the one that it replaces, in one transaction."""

    slot: ReplySlot
    head: Head
    body: bytes
    delivery: Delivery | None = None


class SettleJob(NamedTuple):
    """A reserved job that is done, or comes back as it is (`is_released`)."""

    slot: ReplySlot
    delivery: Delivery
    is_released: bool = False


DecidedItem = PutJob | SettleJob


class Decisions:
    """Those of one connection. `add` collects, `flush` decides."""

    def __init__(
        self,
        loops: FrameLoops,
        engine: EngineParts,
        part: BeanstalkPart,
        session: ClientSession,
        gateway: StompGateway,
        encoder: BeanstalkEncoder,
        replies: OrderedReplies,
        pull: PullConsumer,
    ) -> None:
        self._session = session
        self._gateway = gateway
        self._encoder = encoder
        self._replies = replies
        self.loop = loops.begin(session, gateway)
        broker, environment = engine.broker, engine.environment
        self.reservations = Reservations(part, broker, environment, session.id, pull, self.obey_one)
        self._pending: list[DecidedItem] = []

    @property
    def is_over(self) -> bool:
        return self._session.ending or self._session.finishing

    def add(self, item: DecidedItem) -> None:
        """Decide it with the next `flush`."""
        self._pending.append(item)

    async def flush(self) -> None:
        """Decide what was collected, and submit it."""
        items: Sequence[DecidedItem] = self._pending
        self._pending = []
        while items and not self.is_over:
            await self.loop.slot()
            if self.is_over:
                return
            sent: list[tuple[Message | None, bool]] = []
            self.loop.sent = sent
            together = items[:TOGETHER_MAX]
            frames = [self._frames_of(item) for item in together]
            await self._obey([frame for one in frames for frame in one])
            self.loop.sent = None
            left = self._note(together, list(map(bool, frames)), sent)
            items = items[len(together) - len(left) :]
            if left:
                # A client may write a thousand commands that are refused one by one.
                await trio.lowlevel.checkpoint()

    async def obey_one(self, frame: Command) -> None:
        """Decide one frame that has no reply. Raises what refuses it."""
        await self.loop.slot()
        if self.is_over:
            return
        await self._obey([frame])
        refused = self._encoder.refused
        if self._gateway.has_refused and refused is not None:
            raise refused

    async def _obey(self, frames: list[Command]) -> None:
        self._gateway.has_refused = False
        self._encoder.refused = self._encoder.refused_slot = None
        if frames:
            await self.loop.obey(frames)

    def _frames_of(self, item: DecidedItem) -> list[Command]:
        receipt = self._replies.receipt
        if isinstance(item, PutJob) and item.delivery is None:
            return [Frame(item.head, item.body, receipt(item.slot))]
        delivery = item.delivery
        assert delivery is not None
        if not self.reservations.is_valid(delivery):
            item.slot.fill(NOT_FOUND)
            return []
        if isinstance(item, SettleJob):
            why = Back.FAILED if item.is_released else None
            return [SettleDeliveries([delivery], why, receipt=receipt(item.slot))]
        head = Head("SEND", {**item.head.headers, "transaction": TRANSACTION}, Version.V12)
        return [
            Begin(TRANSACTION),
            Frame(head, item.body, receipt(item.slot)),
            SettleDeliveries([delivery], transaction=TRANSACTION, receipt=receipt(item.slot)),
            Commit(TRANSACTION, receipt(item.slot)),
        ]

    def _note(
        self, items: Sequence[DecidedItem], had_frames: list[bool], sent: list[tuple[Message | None, bool]]
    ) -> Sequence[DecidedItem]:
        """Note what became of the puts; returns the items behind one that was refused, which are not decided yet."""
        has_refused, refused_slot = self._gateway.has_refused, self._encoder.refused_slot
        messages = iter(sent)
        for at, item in enumerate(items):
            if has_refused and item.slot is refused_slot:
                if item.delivery is not None:
                    self.reservations.keep(item.delivery)
                self._replies.forget_receipts({one.slot for one in items[at:]})
                return items[at + 1 :]
            if isinstance(item, PutJob) and had_frames[at]:
                message, _ = next(messages, (None, False))
                if item.delivery is not None:
                    continue
                if message is None and not has_refused:
                    # The queue is full, and its policy drops what comes.
                    item.slot.fill(OUT_OF_MEMORY)
                elif message is not None:
                    item.slot.decided(message)
        if has_refused:
            reply = INTERNAL_ERROR if self._encoder.refused is None else refusal_reply(self._encoder.refused)
            for item in items:
                if not item.slot.is_confirmed and (not isinstance(item, PutJob) or item.slot.message is None):
                    item.slot.fill(reply)
        return ()
