"""The sessions of STOMP whose bytes come and go in HTTP requests: SockJS and long poll have a registry each.

The bytes of each are a pipe for its session. What waits for the client, and when the session ends, is up to its
`PolledState`: SockJS and long poll have one each.

The requests of one session find its pipe by an id. That id is all that names the session, so it must be hard to guess.
A request from another address does not find it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import trio

from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.gateways.http.responses import HttpEncoder
from qmq.server.clients.admission import PendingLogin
from qmq.server.clients.dialogue import ClientProtocol
from qmq.server.clients.outbox import count_nothing
from qmq.server.clients.session import ClientSession, SessionContext
from qmq.server.runtime.contexts import Tasks
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
P = TypeVar("P", bound="PolledPipe")


NORMAL_CLOSE = (1000, "Normal closure")
GO_AWAY = (3000, "Go away!")


class PolledState(Protocol):
    """What one client is sent. It reads no clock and never waits."""

    closed: tuple[int, str] | None
    """Code and reason, once it takes no more."""
    deadline: float
    """When `expire` is due."""
    waiting_bytes: int

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes more may wait."""

    def send(self, data: bytes) -> bool:
        """Add bytes; False if it is closed, or cannot carry them, which closes it."""

    def close(self, code: int, reason: str) -> None:
        """Take no more. The client still gets what waits; the first code counts."""

    def drop_waiting(self) -> None:
        """Drop what waits."""

    def expire(self, now: float) -> bool:
        """Whether the session is over. If its client was silent for too long, it then closes."""


class PolledPipe:
    """`qmq.environment.Pipe` over requests. `first` is the connection of the first one."""

    def __init__(self, state: PolledState, first: Pipe, received_bytes_max: int) -> None:
        self.peer_address = first.peer_address
        self.peer_certificate_names = first.peer_certificate_names
        self.peer_certificate_subject = first.peer_certificate_subject
        self.login: PendingLogin | None = None
        """That of the session of STOMP, once it has begun."""
        self._state = state
        self._received = bytearray()
        self._received_bytes_max = received_bytes_max
        self._closed = False
        self._changed = trio.Event()
        self.grew: Callable[[int], None] = count_nothing
        """Called with each change of `held_bytes`."""
        self._counted = 0

    def wake(self) -> None:
        """Something has changed: all that wait look again. There are three at most: reader, writer and response, and
        one for each request under way that sends.
        """
        self.count()
        self._changed.set()
        self._changed = trio.Event()

    def count(self) -> None:
        """Count what is held. Called after each change."""
        delta = self.held_bytes - self._counted
        if delta:
            self._counted += delta
            self.grew(delta)

    # For the STOMP session

    async def receive_some(self, bytes_max: int) -> bytes:
        """What the client has sent; b"" when the session is closed, or its client was silent for too long."""
        await trio.lowlevel.checkpoint()
        while not self._received:
            if self._closed:
                raise trio.ClosedResourceError
            if self._state.closed is not None:
                return b""
            changed = self._changed
            with trio.move_on_at(self._state.deadline):
                await changed.wait()
            if self._state.expire(trio.current_time()):
                self.wake()
        data = bytes(self._received[:bytes_max])
        del self._received[:bytes_max]
        self.wake()
        return data

    def send_now(self, data: bytes) -> int:
        """Take all of `data` or nothing."""
        if not data or not self._state.has_room(len(data)):
            return 0
        taken = self._state.send(data)
        self.wake()
        return len(data) if taken else 0

    async def send_all(self, data: bytes) -> None:
        """Wait until `data` may wait for a response. Raises BrokenResourceError when the session is closed."""
        await trio.lowlevel.checkpoint()
        while data and not self.send_now(data):
            if self._closed:
                raise trio.ClosedResourceError
            if self._state.closed is not None:
                raise trio.BrokenResourceError
            await self._changed.wait()

    def end_sending(self, code: int = NORMAL_CLOSE[0], reason: str = NORMAL_CLOSE[1]) -> None:
        """The next responses get what waits, and then the end. There is nothing more to receive."""
        self._state.close(code, reason)
        self.wake()

    def close(self) -> None:
        """Close at once. What waits is dropped, unless `end_sending` was called: then it still gets to the client."""
        if not self._closed:
            self._closed = True
            if self._state.closed is None:
                self._state.drop_waiting()
            self._state.close(*GO_AWAY)
            self._received.clear()
            self.wake()
            # It refers to the session, which has ended.
            self.grew = count_nothing

    # For the HTTP side

    async def pass_on(self, data: bytes) -> bool:
        """Pass bytes of the client to the session; returns when it has room for them. False: it is closed."""
        await trio.lowlevel.checkpoint()
        while self._state.closed is None:
            if not self._received or len(self._received) + len(data) <= self._received_bytes_max:
                self._received += data
                self.wake()
                return True
            await self._changed.wait()
        return False

    async def changed(self) -> None:
        await self._changed.wait()

    @property
    def is_over(self) -> bool:
        """Whether no request can find this session any more. A session that is not read expires here, too."""
        if self._state.expire(trio.current_time()):
            self.wake()
            return True
        return False

    @property
    def held_bytes(self) -> int:
        """Bytes from and to the client that this holds."""
        return len(self._received) + self._state.waiting_bytes


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
        begun = ClientSession(self._context, pipe, session.listener, login, self._protocol)
        pipe.grew = partial(self._context.memory_budget.change, begun)
        self._context.spawn(begun.serve)

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
