"""What clients request and other parts of the node respond to, in their time: control, queues, and where to begin.

The loop of a client waits for the response (`qmq.sessions.frame_loop`), and decides nothing meanwhile.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import trio

from qmq.access.rules import Principal
from qmq.broker.consumers.subscription import StartAt
from qmq.engine.parts import EngineParts
from qmq.errors import CorruptLog, LogBroken, Refused
from qmq.gateways.bound_queues import BoundQueue
from qmq.gateways.queue_arguments import WrongArgument, rules_of
from qmq.gateways.refused_headers import NOT_SUPPORTED
from qmq.gateways.stomp import StompGateway
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.model.routing_names import PREFIX
from qmq.sessions.bound_queues import BoundQueues
from qmq.sessions.clients.session import ClientSession
from qmq.settings.definitions.declare import EXCLUSIVE
from qmq.verbs.queues import Declare
from qmq.verbs.table import verb_of
from qmq.verbs.verb import NO_HEADERS, Verb, VerbRequest
from qmq.wire.stomp import Frame

CONTROL: Final = "/control/"
DEFINITIONS: Final = f"{CONTROL}definitions/"
"""Requests that may take long, and stop when the client has left."""

QUEUE: Final = "/queue/"

T = TypeVar("T")

log = logging.getLogger("qmq.session")


class Respond(Protocol):
    """See `qmq.admin.verbs`."""

    async def __call__(
        self, session: int, principal: Principal | None, address: str, headers: Mapping[str, str], body: bytes
    ) -> ControlResponse:
        """Respond to a control request of `principal` at `address`, in `session`. Raises Refused. May take minutes."""


@dataclass(eq=False, repr=False)
class ClientRequests:
    """Of one node, for all its clients. `do` responds to a verb whose options are read (`qmq.admin.verbs`), and
    `find_queue` returns what all nodes say of a queue that any of them has.
    """

    _engine: EngineParts
    _respond: Respond
    _do: Callable[[VerbRequest[Verb]], Awaitable[Facts]]
    _find_queue: Callable[[str], Awaitable[Facts | None]]
    _bound_queues: BoundQueues

    async def control(
        self, session: ClientSession, headers: Mapping[str, str], body: bytes
    ) -> ControlResponse | Refused:
        """The response to a control request of the client, a SEND with these headers and body; or why there is none."""
        destination = headers["destination"]
        session.own_change.is_due = destination.startswith(DEFINITIONS)
        try:
            verb, _ = verb_of(destination)
            asked = self._respond(session.id, session.principal, session.peer_address, headers, body)
            return await _in_time(session, asked, is_job=verb is not None and verb.is_job)
        finally:
            session.own_change.is_due = False

    async def ask(
        self,
        session: ClientSession,
        options: Verb,
        about: str,
        value: Mapping[str, Any] | None,
        said: Mapping[str, str] = NO_HEADERS,
    ) -> Facts | Refused:
        """The facts of a verb that the client asks for with values; `said` are those that the audit shows."""
        principal, address = session.principal, session.peer_address
        asked = VerbRequest(options, about, said, principal, address, session.id, value=value)
        return await _in_time(session, self._do(asked), is_job=options.is_job)

    async def change_bound(
        self, session: ClientSession, gateway: StompGateway, request: Frame, bound: BoundQueue
    ) -> Refused | None:
        """Declare the queue that a SUBSCRIBE needs, or delete that of an UNSUBSCRIBE; why not, if that is refused."""
        session.own_change.is_due = True
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
            session.own_change.is_due = False
        return None

    async def _declare(self, session: ClientSession, bound: BoundQueue) -> None:
        """Declare a queue, with its binding if it has one. Raises Refused."""
        if bound.has_rules:
            # As a request to declare it, which asks for the rights that these rules need.
            value = {**bound.declaration, **_rules(bound), **({EXCLUSIVE: True} if bound.owner else {})}
            done = await self.ask(session, Declare(), bound.queue, value) if value else None
            if isinstance(done, Refused):
                raise done
        if bound.source:
            await self._bound_queues.declare(bound, session.user)

    async def find_queue(self, gateway: StompGateway, queue: str) -> Refused | None:
        """Ask all nodes for the queue of a mandatory SEND; why it is refused, if no node has it."""
        if await self._find_queue(queue) is not None:
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


async def _in_time(session: ClientSession, asked: Awaitable[T], *, is_job: bool) -> T | Refused:
    """What is `asked`, or why it is refused. A job stops when its client leaves."""
    if not is_job:
        return await _or_refused(asked)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.watch_leaving)
        found = await _or_refused(asked)
        nursery.cancel_scope.cancel()
    return found


async def _or_refused(asked: Awaitable[T]) -> T | Refused:
    try:
        return await asked
    except Refused as refused:
        return refused


def _rules(bound: BoundQueue) -> dict[str, Any]:
    """What the arguments of a queue declare. Raises Refused."""
    try:
        return rules_of(bound.arguments, lambda exchange, key: f"{PREFIX}{exchange}" if exchange else f"{QUEUE}{key}")
    except WrongArgument as error:
        code = "bad-header" if error.is_supported else NOT_SUPPORTED
        raise Refused(code, f"{error.text[0].upper()}{error.text[1:]}.") from None
