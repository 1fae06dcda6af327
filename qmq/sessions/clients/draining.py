"""The drain: clients of a node finish and move to other nodes, and nothing is delivered twice.

SIGTERM drains a node and stops it. `qmq drain` does the same and leaves it running until `undrain` or its stop: probes,
metrics and control requests are answered, and consumers at other nodes get the messages that wait here.

No consumer of this node gets further messages, and no new subscription begins. A client is sent ERROR `stopping` as
soon as it is idle. It is idle when its messages are settled, its transactions have ended, and the frame that it was
sending is complete. Until then its frames are handled as always, SENDs too: unfinished work often ends with one. After
`drain_seconds` all other clients are disconnected, and their messages are requeued.

A client that has not finished when `undrain` comes leaves all the same, when it is idle: its subscriptions have ended,
and cannot begin again. It may connect to this node again.

Then the node makes sure that nothing is in flight between itself and its peers:

- Messages that peers lend until they know that no consumer is left go back to them. If they were lost with the link,
  the peers would mark them as seen.
- If the node stops: consumers of peers settle what this node has lent, the records of that arrive, and the rest comes
  back. Otherwise it would be marked as seen at the next start.
- Peers get the records of this node that they are missing, because a node that takes over must not deliver what was
  settled here.

Surprising: the node polls for this and does not wait for events. The conditions end in many places, all of them hotter
than this one, and a drain lasts only seconds.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Literal

import trio
from msgspec import Struct

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.subscriptions import stopping
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.errors import Refused
from qmq.mesh.membership.members import LiveMembership
from qmq.mesh.peers.calls import AdminQuery, Count, Text
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.admission import Admission
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.session_host import SessionHost

POLL_SECONDS = 0.02
"""Between two checks which clients have finished."""

HAND_OVER_SECONDS = 2.0
"""For the linked peers to return or settle what was lent, and to confirm this node's last records. A peer that hangs,
or a consumer there that works for long, must not delay a stop."""

DRAINING: Final = "draining"
"""The condition, and the state of a node whose clients have not all left."""

log = logging.getLogger("qmq.draining")


class DrainState(Struct, frozen=True):
    """`serving`, `draining`, `drained` or `stopping`, and how many clients have not left."""

    state: Text
    connections: Count


class DrainCall(AdminQuery[DrainState], frozen=True, omit_defaults=True, kw_only=True):
    """Begin or end the drain of a node, or stop it; by default only ask. All may be done twice."""

    name: ClassVar = "drain"
    want: Literal["", "drain", "undrain", "stop"] = ""
    reason: Text = ""


@dataclass(eq=False, repr=False)
class Draining:
    """The drain of one node. `stop` stops it."""

    _node: NodeBasics
    _engine: EngineParts
    _links: Mesh
    _members: LiveMembership
    _host: SessionHost
    _admission: Admission
    _stop: Callable[[], None]

    def __post_init__(self) -> None:
        self.reason: str | None = None
        """Why the node drains, perhaps ""; None: it does not."""
        self._is_done = False
        self._condition = ""
        self._since = 0
        """Connections with a higher id came after the drain began."""
        self._askers: set[int] = set()
        """Sessions that have asked for it: they stay until they are answered."""
        self._unfinished: set[int] = set()
        """Sessions that an `undrain` has met. Their consumers get nothing more, so they leave as if it had not come."""

    @property
    def state(self) -> DrainState:
        """How far it is."""
        if self._node.is_stopping:
            return DrainState("stopping", len(self._host.sessions))
        if self.reason is None:
            return DrainState("serving", len(self._host.sessions))
        return DrainState("drained" if self._is_done else DRAINING, len(self._leaving()))

    def answer(self, call: DrainCall, asker: int = 0) -> DrainState:
        """Do what is asked, by the session `asker` or a peer. Raises Refused for an `undrain` of a node that stops."""
        if call.want == "drain" and not self._node.is_stopping:
            self._begin(call.reason, asker)
        elif call.want == "undrain":
            self._end()
        elif call.want == "stop":
            self._node.spawn(partial(self._stop_after, asker))
        return self.state

    async def finish(self) -> None:
        """The node stops: let all clients leave, see above. Returns when nothing is in flight any more."""
        self._admission.close()
        await self._let_leave(lambda: list(self._host.sessions.values()), self._engine.commits.stop_waiting_for_space)
        await hand_over(self._engine.broker, self._links, is_last=True)

    def _begin(self, reason: str, asker: int) -> None:
        self._askers.add(asker)
        if self.reason is not None:
            return
        self.reason = reason
        self._is_done = False
        self._condition = f"this node is drained, and serves no clients{reason and ': '}{reason}"
        self._node.raise_condition(DRAINING, self._condition)
        self._admission.close(self._why)
        self._since = self._host.new_id()
        self._node.spawn(self._run)

    def _end(self) -> None:
        if self._node.is_stopping:
            raise Refused("stopping", "The node is stopping, and cannot serve clients again.")
        if self.reason is None:
            return
        self._unfinished = {one.id for one in self._leaving()}
        self.reason = None
        self._askers.clear()
        self._engine.broker.subscriptions.resume()
        self._admission.open()
        self._node.clear_condition(DRAINING, self._condition)

    @property
    def _why(self) -> str:
        return f" ({self.reason})" if self.reason else ""

    def _refusal(self, session: ClientSession) -> Refused:
        """What a client that leaves is sent: it is logged in, so it may know where the others are."""
        places = [f"{name} at {address}" for name, address in self._members.addresses(session.protocol).items()]
        return stopping(self._why, f": {', '.join(places)}" if places else "")

    def _leaving(self) -> list[ClientSession]:
        """Sessions that must leave: all but those of operators that began since; after `undrain`, those it has met."""
        stay = self._askers
        sessions = self._host.sessions.values()
        if self.reason is None:
            return [one for one in sessions if one.id in self._unfinished]
        return [one for one in sessions if one.id not in stay and not (one.is_operators and one.id > self._since)]

    async def _run(self) -> None:
        since = self._since
        await self._let_leave(self._leaving)
        await hand_over(self._engine.broker, self._links)
        if since == self._since:  # Else this drain has ended, and another one has begun.
            self._is_done = True

    async def _stop_after(self, asker: int) -> None:
        """Stop the node when the session that has asked for it has got its response."""
        while (session := self._host.sessions.get(asker)) is not None and session.is_responding:  # noqa: ASYNC110
            await trio.sleep(POLL_SECONDS)
        self._stop()

    async def _let_leave(
        self, leaving: Callable[[], list[ClientSession]], at_end: Callable[[], None] = lambda: None
    ) -> None:
        """Let the clients finish and leave, for at most `drain_seconds`, see above. Returns when the last connection is
        closed. `at_end` is called before those that have not finished are disconnected.
        """
        engine, seconds = self._engine, self._node.settings.limits.drain_seconds
        log.info("= draining %d connections", len(leaving()))
        out = Outcome(now_us=engine.environment.now_us())
        engine.broker.subscriptions.cease(out)
        engine.path.submit(out)
        for session in leaving():
            session.note_stop()
        with trio.move_on_after(seconds):
            while self._let_go(leaving()):  # noqa: ASYNC110 (the opening says why)
                await trio.sleep(POLL_SECONDS)
        at_end()
        left = leaving()
        unfinished = sum(session.is_busy for session in left)
        if unfinished:
            log.warning("! %d clients have not finished in %g s", unfinished, seconds)
        for session in left:
            session.end_in_order(self._refusal(session))
        for session in left:
            await session.closed.wait()
        await engine.path.flushed()

    def _let_go(self, sessions: list[ClientSession]) -> bool:
        """End the sessions that have finished; returns whether others have not."""
        busy = False
        for session in sessions:
            if session.is_busy:
                busy = True
            else:
                session.end_in_order(self._refusal(session))
        return busy


async def hand_over(broker: Broker, links: Mesh, *, is_last: bool = False) -> None:
    """Wait until nothing is borrowed from the linked peers, and they have what this node has recorded. If it `is_last`,
    nothing is lent any more, and what is lent must be back, too. At most `HAND_OVER_SECONDS`.
    """
    if links.is_alone:
        return
    lending, borrowing = broker.lending, broker.borrowing
    if is_last:
        lending.cease()

    def is_done() -> bool:
        is_idle = not (is_last and lending.is_lending) and not borrowing.is_withdrawing
        is_handed_over = is_idle and links.is_handed_over(broker.origin, broker.next_sequence - 1)
        return is_handed_over and not broker.queues.paging.pending_deletes.awaits_records()

    with trio.move_on_after(HAND_OVER_SECONDS):
        while borrowing.is_withdrawing:  # noqa: ASYNC110 (the opening says why)
            await trio.sleep(POLL_SECONDS)
        links.offer(borrowing.confirm_returns())
        while not is_done():  # noqa: ASYNC110 (likewise)
            await trio.sleep(POLL_SECONDS)
