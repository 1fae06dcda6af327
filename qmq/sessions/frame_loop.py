"""Frames of one logged-in client: the gateway decides, the commit path gets the decision, in one loop.

There is no `await` between a decision and its submission. When the gateway pauses, the loop waits for what the pause
names, answers, and continues with the frames that are left.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol

import trio

from qmq.access.rights import Rights
from qmq.access.rules import Principal
from qmq.broker.consumers.outcome import COST_MAX, Outcome
from qmq.broker.consumers.subscription import StartAt
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.engine.runtime.contexts import Committing, Engine
from qmq.errors import CorruptLog, LogBroken, Refused
from qmq.gateways.bound_queues import BoundQueue
from qmq.gateways.encoder import Encoder
from qmq.gateways.paused import Command, Paused, PauseReason
from qmq.gateways.queue_arguments import WrongArgument, rules_of
from qmq.gateways.rules import Rules
from qmq.gateways.stomp import StompGateway
from qmq.gateways.words import NOT_SUPPORTED
from qmq.mesh.parts import MeshParts
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.model.routing_names import PREFIX
from qmq.sessions.clients.login import LOCAL
from qmq.sessions.clients.refusals import Refusals
from qmq.sessions.clients.session import ClientSession
from qmq.settings.definitions.declare import EXCLUSIVE
from qmq.settings.limits.usage import ClientUsages
from qmq.verbs.table import verb_of
from qmq.wire.stomp import Connection, Frame, Version

CONTROL = "/control/"
DEFINITIONS = f"{CONTROL}definitions/"
QUEUE = "/queue/"
"""Requests that may take long, and stop when the client has left."""

log = logging.getLogger("qmq.session")


class BoundChanges(Protocol):
    """See `qmq.sessions.bound_queues`."""

    async def declare(self, bound: BoundQueue, user: str | None) -> None: ...

    async def delete(self, bound: BoundQueue, user: str | None) -> None: ...


class FrameContext(Engine, Committing, Protocol):
    mesh_parts: MeshParts
    refusals: Refusals
    usages: ClientUsages
    rules: Rules

    @property
    def bound_queues(self) -> BoundChanges: ...

    async def answer(
        self, session: int, principal: Principal | None, address: str, headers: Mapping[str, str], body: bytes
    ) -> ControlResponse:
        """Respond to a control request of `principal` at `address`, in `session`. Raises Refused. May take minutes."""


class FrameLoop:
    """`obey` is called with the frames of one read after the other."""

    __slots__ = ("_connection", "_context", "_gateway", "_is_costly", "_is_portion", "_session", "sent")

    def __init__(
        self,
        context: FrameContext,
        session: ClientSession,
        gateway: StompGateway,
        connection: Connection | None = None,
    ) -> None:
        """`connection`: where the frames come from, and perhaps behind them what breaks the protocol."""
        self._context = context
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
        context, session = self._context, self._session
        # Peers that ask about the ids of a query get the response when all of it is decided.
        async with AsyncExitStack() as query:
            while paused is not None:
                response: ControlResponse | Refused | None = None
                session.waits_for_slot = True
                if paused.reason is PauseReason.TURN:
                    await trio.lowlevel.checkpoint()
                    if self._is_costly:
                        # Selection of fanout messages must not accumulate in front of one commit.
                        await context.flushed()
                elif paused.reason is PauseReason.CONTROL:
                    await query.aclose()
                    request = paused.frames[0]
                    assert isinstance(request, Frame)
                    response = await self.control(request.head.headers, request.body)
                elif paused.bound is not None:
                    await query.aclose()
                    request = paused.frames[0]
                    assert isinstance(request, Frame)
                    response = await self._change_bound(request, paused.bound)
                elif paused.queue:
                    await query.aclose()
                    response = await self._find_queue(paused.queue)
                elif paused.start is not None:
                    await query.aclose()
                    response = await self._find_beginning(*paused.start)
                elif paused.keys:
                    await query.aclose()
                    elsewhere = await query.enter_async_context(context.mesh_parts.dedup_query.of(paused.keys))
                    self._gateway.repeats.answered(paused.keys, elsewhere)
                await context.slot(session.id, asks=response is not None and only_requests(paused.frames))
                session.waits_for_slot = False
                if session.ending or session.finishing:
                    return
                left = self._answer(paused, response)
                if session.leaves_with is not None:
                    session.end_in_order(session.leaves_with)
                if session.ending:
                    return
                paused = self._decide(left)

    async def _obey_in_portions(self, frames: list[Command]) -> None:
        context, session = self._context, self._session
        is_last = False
        while not is_last:
            session.waits_for_slot = True
            count = await context.usages.portion(session.allowance, frames, session.bytes_in)
            await context.slot(session.id, asks=only_requests(frames[:count]))
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
        session = self._session
        destination = headers["destination"]
        session.waits_for_change = destination.startswith(DEFINITIONS)
        try:
            verb, _ = verb_of(destination)
            if verb is None or not verb.is_job:
                return await self._answer_of_node(headers, body)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.watch_leaving)
                response = await self._answer_of_node(headers, body)
                nursery.cancel_scope.cancel()
            return response
        finally:
            session.waits_for_change = False

    async def _answer_of_node(self, headers: Mapping[str, str], body: bytes) -> ControlResponse | Refused:
        session = self._session
        try:
            return await self._context.answer(session.id, session.principal, session.peer_address, headers, body)
        except Refused as refused:
            return refused

    async def _change_bound(self, request: Frame, bound: BoundQueue) -> Refused | None:
        """Declare the queue that a SUBSCRIBE needs, or delete that of an UNSUBSCRIBE; why not, if that is refused."""
        session = self._session
        session.waits_for_change = True
        try:
            if request.head.command == "SUBSCRIBE":
                await self._declare(bound)
                self._gateway.bound_declared(bound)
            else:
                await self._context.bound_queues.delete(bound, session.user)
                self._gateway.bound_deleted(bound)
        except Refused as refused:
            return refused
        finally:
            session.waits_for_change = False
        return None

    async def _find_queue(self, queue: str) -> Refused | None:
        """Ask all nodes for the queue of a mandatory SEND; why it is refused, if no node has it."""
        headers = {"destination": f"{CONTROL}list{queue}", "scope": "mesh", "limit": "1"}
        session = self._session
        found = await self._context.answer(session.id, LOCAL.principal, session.peer_address, headers, b"")
        # The name itself comes first among those that begin with it.
        if any(row["destination"] == queue for row in json.loads(found.body)["destinations"]):
            self._gateway.found_queue = queue
            return None
        return Refused("unroutable", f"No node that responds has the queue {queue}.")

    async def _find_beginning(self, destination: str, start: StartAt) -> Refused | None:
        """Find where a durable subscription begins; why not, if the log cannot be read."""
        context = self._context
        await context.flushed()  # What the client has sent just before is part of the log.
        find = partial(context.store.fanout_before, destination, start.word, start.number)
        try:
            before = await context.environment.run_blocking(find)
        except (CorruptLog, LogBroken):
            log.exception("! the log of %s cannot be read", destination)
            return Refused("log-unreadable", "The log of the fanout cannot be read now; try again later.")
        self._gateway.begins_at(start._replace(before=before))
        return None

    async def _declare(self, bound: BoundQueue) -> None:
        """Declare a queue, with its binding if it has one. Raises Refused."""
        context, session = self._context, self._session
        if bound.has_rules:
            # As a request to declare it, which asks for the rights that these rules need.
            value = {**bound.declaration, **_rules(bound), **({EXCLUSIVE: True} if bound.owner else {})}
            headers = {"destination": f"/control/declare{bound.queue}"}
            if value:
                principal, address = session.principal, session.peer_address
                await context.answer(session.id, principal, address, headers, json.dumps(value).encode())
        if bound.source:
            await context.bound_queues.declare(bound, session.user)

    def _answer(self, paused: Paused, response: ControlResponse | Refused | None) -> list[Command]:
        """Submit the answers to the first of the frames that are left; returns the frames that are still to be decided.

        In an Outcome of their own: within one Outcome receipts precede all other effects.
        """
        frames = paused.frames
        if response is None and paused.reason is not PauseReason.DEDUP:
            return frames
        gateway = self._gateway
        now_us = self._context.environment.now_us()
        out = Outcome(self._session.id)
        if response is None:
            frames = gateway.repeats.answer(frames, now_us, out)
            if out.repeats:
                self._context.submit(out)
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
                paused = self._gateway.handle(frames, self._context.environment.now_us(), out)
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

        The requeue is a decision of its own: its subscriptions still get the effects of what came before.
        """
        context, session = self._context, self._session
        denied = self._gateway.denied
        if denied is not None:
            self._gateway.denied = None
            context.refusals.note(session.peer_address, denied, session.user, is_user=session.user is not None)
        if not out.ending:
            context.submit(out)
            return
        session.ending = True
        end = Outcome(session.id, context.environment.now_us())
        end.frames, end.ending = out.frames, True
        out.frames, out.ending = [], False
        context.submit(out)
        context.broker.close_session(session.id, end, Back.LEFT if self._gateway.has_left else Back.RELEASED)
        context.submit(end)


def gateway_of(
    context: FrameContext,
    session: ClientSession,
    encoder: Encoder,
    rights: Rights,
    *,
    keep_open: bool = False,
    **more: Any,
) -> StompGateway:
    """What decides for a client of another protocol, whose calls become frames of STOMP; `more` is for the gateway."""
    broker, rules, user = context.broker, context.rules, session.user
    return StompGateway(
        session.id, broker, rules, Version.V12, keep_open, rights=rights, user=user, encoder=encoder, **more
    )


def only_requests(frames: Sequence[Command]) -> bool:
    """Whether all of these are control requests; true for none."""
    for frame in frames:
        if not isinstance(frame, Frame) or frame.head.command != "SEND":
            return False
        if not frame.head.headers.get("destination", "").startswith(CONTROL):
            return False
    return True


def _rules(bound: BoundQueue) -> dict[str, Any]:
    """What the arguments of a queue declare. Raises Refused."""
    try:
        return rules_of(bound.arguments, lambda exchange, key: f"{PREFIX}{exchange}" if exchange else f"{QUEUE}{key}")
    except WrongArgument as error:
        code = "bad-header" if error.is_supported else NOT_SUPPORTED
        raise Refused(code, f"{error.text[0].upper()}{error.text[1:]}.") from None
