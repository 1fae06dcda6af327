"""The sessions of STOMP whose bytes come and go in HTTP requests: SockJS and long poll have a registry each.

The requests of one session find its pipe by an id. That id is all that names the session, so it must be hard to guess.
A request from another address does not find it.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import trio

from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.gateways.http.responses import HttpEncoder
from qmq.server.clients.admission import PendingLogin
from qmq.server.clients.dialogue import ClientProtocol
from qmq.server.clients.session import ClientSession, SessionContext
from qmq.server.runtime.contexts import Tasks
from qmq.server.web.stomp.polled_pipe import PolledPipe
from qmq.wire.http import HttpRefusal

SESSIONS_MAX: Final = 10_000
"""Of each kind in one node. Beyond it a new one is refused; each is also a connection, with the bounds of these."""

LOGIN_BYTES_MAX: Final = 64 << 10
"""Of a request, and of a message of a WebSocket, while its session has not logged in."""

BODY_BYTES_MAX: Final = 16 << 20
"""Of both after the login: room for the largest frame of STOMP."""

SWEEP_SECONDS: Final = 5.0
"""Between two looks for sessions that have ended."""

T = TypeVar("T")
P = TypeVar("P", bound=PolledPipe)


class Asking(NamedTuple):
    """The connection on which a request came, and how it is answered."""

    session: ClientSession
    pipe: Pipe
    login: PendingLogin
    encoder: HttpEncoder
    put: Callable[[bytes], None]


class PolledContext(SessionContext, Tasks, Protocol):
    """What these sessions need of the node."""


class PolledSessions(Generic[P]):
    """The sessions of one kind; `protocol` is how lists of connections name it."""

    def __init__(self, context: PolledContext, protocol: ClientProtocol) -> None:
        self._context = context
        self._protocol = protocol
        self._pipes: dict[str, P] = {}
        self._sweeps = False

    def find(self, id: str, asking: Asking) -> P | None:
        """The session with this id."""
        known = self._get(id, asking.pipe)
        if known is not None:
            self._carry(known, asking.login)
        return known

    def known(self, id: str, asking: Asking) -> P:
        """The same. Raises HttpRefusal, 404."""
        known = self.find(id, asking)
        if known is None:
            raise HttpRefusal(404, "unknown-session", "There is no session with this id, or it has ended.")
        return known

    def open(self, id: str, pipe: P, asking: Asking) -> P:
        """Begin a session that requests find. Raises Refused, HttpRefusal."""
        if id in self._pipes and not self._pipes[id].is_over:
            raise HttpRefusal(404, "unknown-session", "There is no session with this id.")
        if len(self._pipes) >= SESSIONS_MAX:
            raise Refused("too-many-connections", f"At most {SESSIONS_MAX} such sessions may be open.")
        self.begin(pipe, asking.session, asking.login)
        self._pipes[id] = pipe
        if not self._sweeps:
            self._sweeps = True
            self._context.spawn(self._sweep)
        return pipe

    def begin(self, pipe: P, session: ClientSession, carrier: PendingLogin) -> None:
        """Begin a session of STOMP over `pipe`, on the listener of `session`; it is a connection of its own.

        `carrier` is the login of the connection below. Raises Refused.
        """
        login = pipe.login = self._context.admission.admit(pipe.peer_address, now=trio.current_time())
        self._carry(pipe, carrier)
        self._context.spawn(ClientSession(self._context, pipe, session.listener, login, self._protocol).serve)

    def body_bytes_max(self, id: str, asking: Pipe) -> int:
        """Bytes that the body of a request of this session may have."""
        known = self._get(id, asking)
        return LOGIN_BYTES_MAX if known is None else bytes_max(known)

    def _get(self, id: str, asking: Pipe) -> P | None:
        known = self._pipes.get(id)
        return None if known is None or known.is_over or known.peer_address != asking.peer_address else known

    def _carry(self, pipe: P, carrier: PendingLogin) -> None:
        """A client that has logged in over requests must not lose their connections to other logins."""
        assert pipe.login is not None
        self._context.admission.decided_with(carrier, pipe.login)

    async def _sweep(self) -> None:
        while self._pipes:
            await trio.sleep(SWEEP_SECONDS)
            self._pipes = {id: pipe for id, pipe in self._pipes.items() if not pipe.is_over}
        self._sweeps = False


def bytes_max(pipe: PolledPipe) -> int:
    """Bytes that the client may send at once."""
    return LOGIN_BYTES_MAX if pipe.login is None or pipe.login.is_pending else BODY_BYTES_MAX


async def unless_left(session: ClientSession, take: Callable[[], Awaitable[T]]) -> T | None:
    """What `take` returns; None when the client of `session` has left before."""
    taken: T | None = None
    async with trio.open_nursery() as nursery:

        async def until_left() -> None:
            try:
                await session.until_left()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_left)
        taken = await take()
        nursery.cancel_scope.cancel()
    return taken
