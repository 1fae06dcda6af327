"""STOMP for clients that have neither WebSocket nor server-sent events: frames in ordinary requests and responses.

A session of STOMP runs over a `LongPollPipe`. One request at a time waits for what the node sends; others send to it.
Bytes are carried as they are, so a body may be binary.

Surprising: a response that breaks ends the session. What was taken for it may be lost, and a stream with a hole in it
is worse than none. A client that leaves while nothing was taken for its request has lost nothing.
"""

from math import inf
from typing import Final

import trio

from qmq.environment import Pipe
from qmq.server.clients.dialogue import ClientProtocol
from qmq.server.stomp.dialogue import STOMP
from qmq.server.web.stomp.polled_sessions import Asking, PolledContext, PolledPipe, PolledSessions, unless_left
from qmq.wire.http import HttpRefusal, HttpRequest

WAITING_BYTES_MAX: Final = 65536
"""What waits for a receiving request; one larger frame may wait alone."""

RECEIVED_BYTES_MAX: Final = 65536
"""Bytes of the client that its session has not read. Beyond it, the request that sends them is answered later."""

IDLE_SECONDS: Final = 60.0
"""Between two requests of a client. Then its session ends."""

WAIT_SECONDS: Final = 30
WAIT_SECONDS_MAX: Final = 60

ID_BITS: Final = 128

BYTES: Final = ("content-type", "application/octet-stream")

LONG_POLL: Final[ClientProtocol] = STOMP._replace(name="long-poll")

INTERRUPTED: Final = (1002, "Connection interrupted")
IDLE: Final = (1001, "No request for too long")


class LongPollState:
    """What one client is sent; see `PolledState`."""

    __slots__ = ("_requests", "_waiting", "closed", "deadline", "waiting_bytes")

    def __init__(self, now: float) -> None:
        self.closed: tuple[int, str] | None = None
        self.deadline = now + IDLE_SECONDS
        """When `expire` is due; infinite while there is a request."""
        self.waiting_bytes = 0
        self._waiting: list[bytes] = []
        self._requests = 0

    def has_room(self, size: int) -> bool:
        return not self.waiting_bytes or self.waiting_bytes + size <= WAITING_BYTES_MAX

    def send(self, data: bytes) -> bool:
        if self.closed is not None:
            return False
        self._waiting.append(data)
        self.waiting_bytes += len(data)
        return True

    def take(self) -> bytes:
        """All that waits."""
        data = b"".join(self._waiting)
        self.drop_waiting()
        return data

    def close(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = (code, reason)

    def drop_waiting(self) -> None:
        self._waiting = []
        self.waiting_bytes = 0

    def expire(self, now: float) -> bool:
        if now >= self.deadline:
            self.drop_waiting()
            self.close(*IDLE)
        return self.closed is not None and not self.waiting_bytes

    def begin(self) -> None:
        """A request of the client begins."""
        self._requests += 1
        self.deadline = inf

    def end(self, now: float) -> None:
        """A request of the client ends."""
        self._requests -= 1
        if not self._requests:
            self.deadline = now + IDLE_SECONDS


class LongPollPipe(PolledPipe):
    """A pipe over the requests of one session. `with pipe:` is around each request."""

    def __init__(self, first: Pipe) -> None:
        self._polled = LongPollState(trio.current_time())
        self.receives = False
        """A request waits for frames."""
        super().__init__(self._polled, first, RECEIVED_BYTES_MAX)

    def __enter__(self) -> "LongPollPipe":
        self._polled.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._polled.end(trio.current_time())
        self.wake()

    async def receive(self, wait_seconds: float) -> bytes:
        """What waits for the client; b"" when there is nothing for so long, or the session has ended.

        Only while no other request `receives`.
        """
        assert not self.receives, "one request waits at a time"
        self.receives = True
        try:
            with trio.move_on_after(wait_seconds):
                while not self._polled.waiting_bytes and self._polled.closed is None:
                    await self.changed()
        finally:
            self.receives = False
        data = self._polled.take()
        self.wake()
        return data

    def interrupt(self) -> None:
        """What was taken for a response may be lost: the session ends."""
        self._polled.drop_waiting()
        self.end_sending(*INTERRUPTED)

    def leave(self) -> None:
        """The client ends the session, as if its connection had ended."""
        self._polled.drop_waiting()
        self.end_sending()


class LongPollSessions:
    """All sessions of the node over long poll."""

    def __init__(self, context: PolledContext) -> None:
        self._context = context
        self._sessions = PolledSessions[LongPollPipe](context, LONG_POLL)

    async def serve(
        self,
        request: HttpRequest,
        id: str,
        asking: Asking,
    ) -> None:
        """Answer one request; without `id`, begin a session. Raises HttpRefusal and Refused."""
        encoder, put = asking.encoder, asking.put
        if not id:
            id = f"{self._context.environment.rng.getrandbits(ID_BITS):032x}"
            self._sessions.open(id, LongPollPipe(asking.pipe), asking)
            facts = {"session": id, "idle_seconds": int(IDLE_SECONDS), "wait_seconds_max": WAIT_SECONDS_MAX}
            put(encoder.respond(201, facts))
            return
        pipe = self._sessions.known(id, asking)
        with pipe:
            if request.method == "GET":
                await _receive(pipe, _wait_seconds(request), asking)
            elif request.method == "DELETE":
                pipe.leave()
                put(encoder.respond(204, body=b""))
            elif await pipe.pass_on(request.body):
                put(encoder.respond(204, body=b""))
            else:
                raise HttpRefusal(404, "unknown-session", "The session has ended.")

    def body_bytes_max(self, id: str, asking: Pipe) -> int:
        """Bytes that the body of a request about this session may have."""
        return self._sessions.body_bytes_max(id, asking)


async def _receive(pipe: LongPollPipe, seconds: float, asking: Asking) -> None:
    session, encoder = asking.session, asking.encoder
    if pipe.receives:
        raise HttpRefusal(409, "already-receiving", "Another request of this session waits for frames.")
    data = await unless_left(session, lambda: pipe.receive(seconds))
    if data is None:
        return  # The client has left; nothing was taken.
    asking.put(encoder.respond(200, headers=[BYTES], body=data) if data else encoder.respond(204, body=b""))
    await session.outbox.drained()
    if data and (session.outbox.broken or session.finishing):
        pipe.interrupt()


def _wait_seconds(request: HttpRequest) -> float:
    text = request.query.get("wait_seconds", str(WAIT_SECONDS))
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) <= WAIT_SECONDS_MAX):
        raise HttpRefusal(400, "bad-query", f"wait_seconds is a number of seconds from 0 to {WAIT_SECONDS_MAX}.")
    return float(text)
