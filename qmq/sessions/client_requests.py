"""What clients request and other parts of the node respond to, in their time: control, queues, and where to begin.

The loop of a client waits for the response (`qmq.sessions.frame_loop`), and decides nothing meanwhile.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Protocol

import trio

from qmq.access.rules import Principal
from qmq.broker.consumers.subscription import StartAt
from qmq.engine.parts import EngineParts
from qmq.errors import CorruptLog, LogBroken, Refused
from qmq.gateways.bound_queues import BoundQueue
from qmq.gateways.queue_arguments import WrongArgument, rules_of
from qmq.gateways.stomp import StompGateway
from qmq.gateways.words import NOT_SUPPORTED
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.model.routing_names import PREFIX
from qmq.sessions.bound_queues import BoundQueues
from qmq.sessions.clients.login import LOCAL
from qmq.sessions.clients.session import ClientSession
from qmq.settings.definitions.declare import EXCLUSIVE
from qmq.verbs.table import verb_of
from qmq.wire.stomp import Frame

CONTROL: Final = "/control/"
DEFINITIONS: Final = f"{CONTROL}definitions/"
"""Requests that may take long, and stop when the client has left."""

QUEUE: Final = "/queue/"

log = logging.getLogger("qmq.session")


class Respond(Protocol):
    """See `qmq.admin.verbs`."""

    async def __call__(
        self, session: int, principal: Principal | None, address: str, headers: Mapping[str, str], body: bytes
    ) -> ControlResponse:
        """Respond to a control request of `principal` at `address`, in `session`. Raises Refused. May take minutes."""


class ClientRequests:
    """Of one node, for all its clients."""

    def __init__(self, engine: EngineParts, respond: Respond, bound_queues: BoundQueues) -> None:
        self._engine = engine
        self._respond = respond
        self._bound_queues = bound_queues

    async def control(
        self, session: ClientSession, headers: Mapping[str, str], body: bytes
    ) -> ControlResponse | Refused:
        """The response to a control request of the client, a SEND with these headers and body; or why there is none."""
        destination = headers["destination"]
        session.waits_for_change = destination.startswith(DEFINITIONS)
        try:
            verb, _ = verb_of(destination)
            if verb is None or not verb.is_job:
                return await self._response(session, headers, body)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.watch_leaving)
                response = await self._response(session, headers, body)
                nursery.cancel_scope.cancel()
            return response
        finally:
            session.waits_for_change = False

    async def _response(
        self, session: ClientSession, headers: Mapping[str, str], body: bytes
    ) -> ControlResponse | Refused:
        try:
            return await self._respond(session.id, session.principal, session.peer_address, headers, body)
        except Refused as refused:
            return refused

    async def change_bound(
        self, session: ClientSession, gateway: StompGateway, request: Frame, bound: BoundQueue
    ) -> Refused | None:
        """Declare the queue that a SUBSCRIBE needs, or delete that of an UNSUBSCRIBE; why not, if that is refused."""
        session.waits_for_change = True
        try:
            if request.head.command == "SUBSCRIBE":
                await self._declare(session, bound)
                gateway.bound_declared(bound)
            else:
                await self._bound_queues.delete(bound, session.user)
                gateway.bound_deleted(bound)
        except Refused as refused:
            return refused
        finally:
            session.waits_for_change = False
        return None

    async def _declare(self, session: ClientSession, bound: BoundQueue) -> None:
        """Declare a queue, with its binding if it has one. Raises Refused."""
        if bound.has_rules:
            # As a request to declare it, which asks for the rights that these rules need.
            value = {**bound.declaration, **_rules(bound), **({EXCLUSIVE: True} if bound.owner else {})}
            headers = {"destination": f"/control/declare{bound.queue}"}
            if value:
                principal, address = session.principal, session.peer_address
                await self._respond(session.id, principal, address, headers, json.dumps(value).encode())
        if bound.source:
            await self._bound_queues.declare(bound, session.user)

    async def find_queue(self, session: ClientSession, gateway: StompGateway, queue: str) -> Refused | None:
        """Ask all nodes for the queue of a mandatory SEND; why it is refused, if no node has it."""
        headers = {"destination": f"{CONTROL}list{queue}", "scope": "mesh", "limit": "1"}
        found = await self._respond(session.id, LOCAL.principal, session.peer_address, headers, b"")
        # The name itself comes first among those that begin with it.
        if any(row["destination"] == queue for row in json.loads(found.body)["destinations"]):
            gateway.found_queue = queue
            return None
        return Refused("unroutable", f"No node that responds has the queue {queue}.")

    async def find_beginning(self, gateway: StompGateway, destination: str, start: StartAt) -> Refused | None:
        """Find where a durable subscription begins; why not, if the log cannot be read."""
        engine = self._engine
        await engine.path.flushed()  # What the client has sent just before is part of the log.
        find = partial(engine.store.fanout_before, destination, start.word, start.number)
        try:
            before = await engine.environment.run_blocking(find)
        except (CorruptLog, LogBroken):
            log.exception("! the log of %s cannot be read", destination)
            return Refused("log-unreadable", "The log of the fanout cannot be read now; try again later.")
        gateway.begins_at(start._replace(before=before))
        return None


def _rules(bound: BoundQueue) -> dict[str, Any]:
    """What the arguments of a queue declare. Raises Refused."""
    try:
        return rules_of(bound.arguments, lambda exchange, key: f"{PREFIX}{exchange}" if exchange else f"{QUEUE}{key}")
    except WrongArgument as error:
        code = "bad-header" if error.is_supported else NOT_SUPPORTED
        raise Refused(code, f"{error.text[0].upper()}{error.text[1:]}.") from None
