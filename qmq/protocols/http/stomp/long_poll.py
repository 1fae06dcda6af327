"""STOMP for clients that have neither WebSocket nor server-sent events: frames in ordinary requests and responses.

A session of STOMP runs over a `LongPollPipe`. One request at a time waits for what the node sends; others send to it.
Bytes are carried as they are, so a body may be binary. The requests of one session find its pipe by an id. That id is
all that names the session, so it is drawn at random. A request from another address does not find it.

Surprising: a response that breaks ends the session. What was taken for it may be lost, and a stream with a hole in it
is worse than none. A client that leaves while nothing was taken for its request has lost nothing.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

import trio

from qmq.engine.runtime.contexts import Tasks
from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.protocols.http.codec import HttpRefusal, HttpRequest
from qmq.protocols.http.gateway.responses import HttpEncoder
from qmq.protocols.http.stomp.long_poll_pipe import IDLE_SECONDS, LongPollPipe
from qmq.sessions.clients.admission import Admission, PendingLogin
from qmq.sessions.clients.dialogue import ClientProtocol
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.session_host import SessionHost

SESSIONS_MAX: Final = 10_000
"""In one node. Beyond it a new one is refused; each is also a connection, with the bounds of these."""

LOGIN_BYTES_MAX: Final = 64 << 10
"""Of a request while its session has not logged in."""

BODY_BYTES_MAX: Final = 16 << 20
"""Of a request after the login: room for the largest frame of STOMP."""

SWEEP_SECONDS: Final = 5.0
"""Between two looks for sessions that have ended."""

WAIT_SECONDS: Final = 30
WAIT_SECONDS_MAX: Final = 60

ID_BITS: Final = 128

BYTES: Final = ("content-type", "application/octet-stream")

T = TypeVar("T")


class Asking(NamedTuple):
    """The connection on which a request came, and how it is answered."""

    session: ClientSession
    pipe: Pipe
    login: PendingLogin
    encoder: HttpEncoder
    put: Callable[[bytes], None]


class _Left:
    """What a session that has ended has left for its client, to the memory budget: near the bound it may be dropped."""

    finishing = False

    def __init__(self, pipe: LongPollPipe) -> None:
        self.held_bytes = 0
        self._pipe = pipe

    def evict(self, error: Refused) -> None:
        self._pipe.interrupt()


class LongPollSessions:
    """All sessions of the node over long poll."""

    def __init__(self, node: Tasks, host: SessionHost, admission: Admission, protocol: ClientProtocol) -> None:
        self._node = node
        self._host = host
        self._admission = admission
        self._protocol = protocol
        self._pipes: dict[str, LongPollPipe] = {}
        self._sweeps = False

    async def serve(
        self,
        request: HttpRequest,
        id: str,
        asking: Asking,
    ) -> None:
        """Answer one request; without `id`, begin a session. Raises HttpRefusal and Refused."""
        encoder, put = asking.encoder, asking.put
        if not id:
            facts = {"session": self._open(asking), "idle_seconds": int(IDLE_SECONDS)}
            put(encoder.respond(201, facts | {"wait_seconds_max": WAIT_SECONDS_MAX}))
            return
        pipe = self._find(id, asking.pipe)
        if pipe is None:
            raise HttpRefusal(404, "unknown-session", "There is no session with this id, or it has ended.")
        self._carry(pipe, asking.login)
        with pipe:
            if request.method == "GET":
                await _receive(pipe, _wait_seconds(request), asking)
            elif request.method == "DELETE":
                pipe.interrupt()
                put(encoder.respond(204, body=b""))
            elif await pipe.pass_on(request.body):
                put(encoder.respond(204, body=b""))
            else:
                raise HttpRefusal(404, "unknown-session", "The session has ended.")

    def body_bytes_max(self, id: str, asking: Pipe) -> int:
        """Bytes that the body of a request about this session may have."""
        pipe = self._find(id, asking)
        return LOGIN_BYTES_MAX if pipe is None or pipe.login is None or pipe.login.is_pending else BODY_BYTES_MAX

    def _open(self, asking: Asking) -> str:
        """Begin a session of STOMP, on the listener of the request; it is a connection of its own. Returns its id.

        Raises Refused.
        """
        if len(self._pipes) >= SESSIONS_MAX:
            raise Refused("too-many-connections", f"At most {SESSIONS_MAX} such sessions may be open.")
        host = self._host
        id = f"{host.engine.environment.rng.getrandbits(ID_BITS):032x}"
        pipe = LongPollPipe(asking.pipe)
        login = pipe.login = self._admission.admit(pipe.peer_address, now=trio.current_time())
        self._carry(pipe, asking.login)
        session = ClientSession(host, pipe, asking.session.listener, login, self._protocol)
        pipe.grew, pipe.left_grew = partial(host.budget.change, session), partial(host.budget.change, _Left(pipe))
        self._node.spawn(session.serve)
        self._pipes[id] = pipe
        if not self._sweeps:
            self._sweeps = True
            self._node.spawn(self._sweep)
        return id

    def _find(self, id: str, asking: Pipe) -> LongPollPipe | None:
        pipe = self._pipes.get(id)
        return None if pipe is None or pipe.is_over or pipe.peer_address != asking.peer_address else pipe

    def _carry(self, pipe: LongPollPipe, carrier: PendingLogin) -> None:
        """A client that has logged in over requests must not lose their connections to other logins."""
        assert pipe.login is not None
        self._admission.decided_with(carrier, pipe.login)

    async def _sweep(self) -> None:
        while self._pipes:
            await trio.sleep(SWEEP_SECONDS)
            self._pipes = {id: pipe for id, pipe in self._pipes.items() if not pipe.is_over}
        self._sweeps = False


async def _receive(pipe: LongPollPipe, seconds: float, asking: Asking) -> None:
    session, encoder = asking.session, asking.encoder
    if pipe.receives:
        raise HttpRefusal(409, "already-receiving", "Another request of this session waits for frames.")
    data = await _unless_left(session, lambda: pipe.receive(seconds))
    if data is None:
        return  # The client has left; nothing was taken.
    asking.put(encoder.respond(200, headers=[BYTES], body=data) if data else encoder.respond(204, body=b""))
    await session.outbox.drained()
    if data and (session.outbox.broken or session.finishing):
        pipe.interrupt()


async def _unless_left(session: ClientSession, take: Callable[[], Awaitable[T]]) -> T | None:
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


def _wait_seconds(request: HttpRequest) -> float:
    text = request.query.get("wait_seconds", str(WAIT_SECONDS))
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) <= WAIT_SECONDS_MAX):
        raise HttpRefusal(400, "bad-query", f"wait_seconds is a number of seconds from 0 to {WAIT_SECONDS_MAX}.")
    return float(text)
