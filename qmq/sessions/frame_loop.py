"""Frames of one logged-in client: the gateway decides, the commit path gets the decision, in one loop.

There is no `await` between a decision and its submission. When the gateway pauses, the loop waits for what the pause
names, answers, and continues with the frames that are left.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import trio

from qmq.access.rights import Rights
from qmq.broker.consumers.outcome import COST_MAX, Outcome
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.engine.parts import EngineParts
from qmq.errors import Refused
from qmq.gateways.encoder import Encoder
from qmq.gateways.paused import Command, Paused, PauseReason
from qmq.gateways.rules import Rules
from qmq.gateways.stomp import StompGateway
from qmq.mesh.peers.dedup_query import DedupQuery
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.sessions.client_requests import CONTROL, ClientRequests
from qmq.sessions.clients.refusals import Refusals
from qmq.sessions.clients.session import ClientSession
from qmq.settings.limits.usage import ClientUsages
from qmq.wire.stomp import Connection, Frame, Sends, Version

log = logging.getLogger("qmq.session")


class FrameLoop:
    """`obey` is called with the frames of one read after the other."""

    __slots__ = (
        "_connection",
        "_environment",
        "_gateway",
        "_is_costly",
        "_is_portion",
        "_path",
        "_session",
        "_shared",
        "sent",
    )

    def __init__(
        self, shared: "FrameLoops", session: ClientSession, gateway: StompGateway, connection: Connection | None
    ) -> None:
        self._shared = shared
        self._environment = shared.engine.environment
        self._path = shared.engine.path
        self._session = session
        self._gateway = gateway
        self._connection = connection
        # Whether the last decision lets other tasks select for many fanout subscribers.
        self._is_costly = False
        self.sent: list[tuple[Message | None, bool]] | None = None
        """Collects what became of the client's SENDs, if its answers name that; see `Outcome`."""
        # Whether more frames of the read follow when these are decided.
        self._is_portion = False

    async def obey(self, frames: list[Command], *, is_paid: bool = False) -> None:
        """Decide the frames of one read. When the gateway pauses, wait for what it names.

        Unless it `is_paid`, wait before for the rates of the client.
        """
        if self._session.allowance.is_limited and not is_paid:
            await self._obey_in_portions(frames)
            return
        paused = self._decide(frames)
        if paused is None:
            return
        session, gateway, requests = self._session, self._gateway, self._shared.requests
        # Peers that ask about the ids of a query get the response when all of it is decided.
        async with AsyncExitStack() as query:
            while paused is not None:
                response: ControlResponse | Refused | None = None
                session.waits_for_slot = True
                if paused.reason is PauseReason.TURN:
                    await trio.lowlevel.checkpoint()
                    if self._is_costly:
                        # Selection of fanout messages must not accumulate in front of one commit.
                        await self._path.flushed()
                elif paused.reason is PauseReason.CONTROL:
                    await query.aclose()
                    request = paused.frames[0]
                    assert isinstance(request, Frame)
                    response = await self.control(request.head.headers, request.body)
                elif paused.bound is not None:
                    await query.aclose()
                    request = paused.frames[0]
                    assert isinstance(request, Frame)
                    response = await requests.change_bound(session, gateway, request, paused.bound)
                elif paused.queue:
                    await query.aclose()
                    response = await requests.find_queue(gateway, paused.queue)
                elif paused.start is not None:
                    await query.aclose()
                    response = await requests.find_beginning(gateway, *paused.start)
                elif paused.keys:
                    await query.aclose()
                    elsewhere = await query.enter_async_context(self._shared.dedup_query.of(paused.keys))
                    gateway.repeats.answered(paused.keys, elsewhere)
                await self._path.slot(session.id, asks=response is not None and only_requests(paused.frames))
                session.waits_for_slot = False
                if session.ending or session.finishing:
                    return
                left = self._answer(paused, response)
                session.leave_if_dismissed()
                if session.ending:
                    return
                paused = self._decide(left)

    async def slot(self) -> None:
        """Wait until frames of the client may be decided. Meanwhile it is not read."""
        self._session.waits_for_slot = True
        await self._path.slot(self._session.id)
        self._session.waits_for_slot = False

    async def _obey_in_portions(self, frames: list[Command]) -> None:
        session = self._session
        # Each SEND counts.
        frames = [one for frame in frames for one in (frame.one_by_one() if isinstance(frame, Sends) else (frame,))]
        is_last = False
        while not is_last:
            session.waits_for_slot = True
            count = await self._shared.usages.portion(session.allowance, frames, session.bytes_in)
            await self._path.slot(session.id, asks=only_requests(frames[:count]))
            session.waits_for_slot = False
            if session.ending or session.finishing:
                return
            is_last = count == len(frames)
            self._is_portion = not is_last
            await self.obey(frames[:count], is_paid=True)
            if self._gateway.ignores or (self._gateway.is_atomic and self._gateway.has_refused):
                return
            frames = frames[count:]

    async def control(self, headers: Mapping[str, str], body: bytes) -> ControlResponse | Refused:
        """The response to a control request of the client, a SEND with these headers and body; or why there is none."""
        return await self._shared.requests.control(self._session, headers, body)

    def _answer(self, paused: Paused, response: ControlResponse | Refused | None) -> list[Command]:
        """Submit the answers to the first of the frames that are left; returns the frames that are still to be decided.

        In an Outcome of their own: within one Outcome receipts precede all other effects.
        """
        frames = paused.frames
        if response is None and paused.reason is not PauseReason.DEDUP:
            return frames
        gateway = self._gateway
        now_us = self._environment.now_us()
        out = Outcome(self._session.id)
        if response is None:
            frames = gateway.repeats.answer(frames, now_us, out)
            if out.repeats:
                self._path.submit(out)
            return frames
        request = frames[0]
        try:
            if isinstance(response, Refused):
                raise response
            assert isinstance(request, Frame)
            gateway.send_answer(request, response.headers, response.body, now_us, out)
        except Refused as refused:
            gateway.refuse(refused, request.receipt, out)
        self._submit(out)
        return frames[1:]

    def _decide(self, frames: list[Command]) -> Paused | None:
        """Handle frames and submit, with no `await` in between; returns why frames are left, if any are."""
        session = self._session
        out = Outcome(session.id)
        out.sent = self.sent
        connection = None if self._is_portion else self._connection
        error = None if connection is None else connection.error
        paused: Paused | None = None
        try:
            if frames:
                paused = self._gateway.handle(frames, self._environment.now_us(), out)
            if paused is not None:
                error = None  # It comes after the frames that are left.
            if connection is not None and error is not None and not out.ending:
                log.info("! %s %s: %s", session.id, session.peer_address, error)
                self._gateway.refuse(error, connection.error_receipt, out)
            self._is_costly = out.selector_cost >= COST_MAX and bool(out.fanout_runs)
        finally:
            # Also after a bug: what was decided before it has its sequences, and the journal must not have a hole.
            if frames or error is not None:
                self._submit(out)
        return paused

    def _submit(self, out: Outcome) -> None:
        """Submit a decision. If it ends the session, the client's messages are requeued.

        The requeue is a decision of its own: its subscriptions, if any, still get the effects of what came before.
        """
        session, path = self._session, self._path
        denied = self._gateway.denied
        if denied is not None:
            self._gateway.denied = None
            self._shared.refusals.note_client(session, denied)
        if not out.ending:
            path.submit(out)
            return
        session.ending = True
        broker, end = self._shared.engine.broker, out
        known = broker.sessions.get(session.id)
        if known is not None and (known.subscriptions or known.listener is not None):
            end = Outcome(session.id, self._environment.now_us())
            end.frames, end.ending = out.frames, True
            out.frames, out.ending = [], False
            path.submit(out)
        broker.close_session(session.id, end, Back.LEFT if self._gateway.has_left else Back.RELEASED)
        path.submit(end)


@dataclass(frozen=True, slots=True)
class FrameLoops:
    """Makes the loop of each client of a node, and the gateway that decides for it."""

    engine: EngineParts
    rules: Rules
    usages: ClientUsages
    refusals: Refusals
    dedup_query: DedupQuery
    requests: ClientRequests

    def gateway_of(
        self,
        session: ClientSession,
        encoder: Encoder,
        rights: Rights,
        *,
        version: Version = Version.V12,
        keep_open: bool = False,
        **more: Any,
    ) -> StompGateway:
        """What decides for a client of any protocol: calls of others become frames of STOMP. `more` is for it."""
        broker, rules, user = self.engine.broker, self.rules, session.user
        return StompGateway(
            session.id, broker, rules, version, keep_open, rights=rights, user=user, encoder=encoder, **more
        )

    def begin(self, session: ClientSession, gateway: StompGateway, connection: Connection | None = None) -> FrameLoop:
        """`connection`: where the frames come from, and perhaps behind them what breaks the protocol."""
        return FrameLoop(self, session, gateway, connection)


def only_requests(frames: Sequence[Command]) -> bool:
    """Whether all of these are control requests; true for none."""
    for frame in frames:
        if not isinstance(frame, Frame) or frame.head.command != "SEND":
            return False
        if not frame.head.headers.get("destination", "").startswith(CONTROL):
            return False
    return True
