"""What the clients of one node share, because each takes it up and gives it back.

Surprising: `ClientSession` is `Any` here, because its module imports this one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import ClientState as Client
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Configured, Tasks
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.errors import Refused
from qmq.sessions.clients.admission import counted_address
from qmq.sessions.clients.memory_budget import MemoryBudget
from qmq.sessions.clients.traffic import Traffic
from qmq.settings.limits.usage import ClientUsages

REPLY_KEY_BITS: Final = 64


@dataclass(slots=True, eq=False)
class SessionHost:
    """What the sessions of one node share, and what begins and ends with each of them."""

    engine: EngineParts
    node: Configured
    tasks: Tasks
    sessions: dict[int, Any]
    """Those that are logged in (`ClientSession`), by id."""
    usages: ClientUsages
    budget: MemoryBudget
    beats: Heartbeats
    traffic: Traffic
    left: Callable[[int], None]
    """Called with the id of each client that has left, or is followed by another one on its connection."""
    after_delivery: Callable[[int, Callable[[], None]], None]
    """Calls a function when all topic messages that a session sent are delivered."""
    ids: int = 0

    def new_id(self) -> int:
        """A number never used before in this process."""
        self.ids += 1
        return self.ids

    def enter(self, session: Any) -> Client:
        """The client is logged in: from now on it may get messages."""
        self.sessions[session.id] = session
        address = None if session.listener is None else counted_address(session.peer_address)
        session.allowance = self.usages.join(session.id, session.principal, address)
        return self.engine.broker.open_session(session.id, self.engine.environment.rng.getrandbits(REPLY_KEY_BITS))

    def requeue(self, session: int) -> None:
        """Requeue what the client has in flight, however long its connection stays open."""
        engine = self.engine
        if session in engine.broker.sessions:
            out = Outcome(now_us=engine.environment.now_us())
            engine.broker.close_session(session, out)
            engine.path.submit(out)

    def leave(self, session: int) -> None:
        """It gets nothing more, and counts for no limit."""
        del self.sessions[session]
        self.usages.leave(session)

    def ended(self, session: Any, delivered: Callable[[], None]) -> None:
        """The connection has ended. Calls `delivered` when all that it sent is."""
        self.traffic.end(session)
        self.left(session.id)
        self.after_delivery(session.id, delivered)


class OwnChange:
    """A change of definitions that the client itself has requested."""

    __slots__ = ("dismissal", "is_due")

    def __init__(self) -> None:
        self.is_due = False
        """It is not answered yet."""
        self.dismissal: Refused | None = None
        """With which ERROR the connection ends after that answer."""


def first_of(group: BaseException) -> BaseException:
    """The first of the errors inside nested groups."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
