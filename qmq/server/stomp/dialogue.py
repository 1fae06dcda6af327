"""A session that speaks STOMP: codec, login, heartbeats, and the loop that decides frames."""

from typing import Final, Protocol

import trio

from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.gateways.encode import STOMP_ENCODERS
from qmq.gateways.error_frames import encode_error
from qmq.gateways.stomp import StompGateway
from qmq.server.clients.admission import PendingLogin
from qmq.server.clients.client_login import LoginContext
from qmq.server.clients.dialogue import ClientDialogue, ClientProtocol
from qmq.server.clients.session import ClientSession
from qmq.server.stomp.client_heartbeats import ClientHeartbeats
from qmq.server.stomp.frame_loop import FrameContext, FrameLoop, only_requests
from qmq.server.stomp.login_exchange import LoginExchange
from qmq.wire.stomp import Connection, Frame, HeadCaches, Limits, Role, Version


class StompContext(FrameContext, LoginContext, Protocol):
    wire_limits: Limits
    caches: HeadCaches


class StompDialogue(ClientDialogue):
    awaits_frame = False

    def __init__(self, context: StompContext, session: ClientSession, pipe: Pipe, login: PendingLogin) -> None:
        self._context = context
        self._session = session
        self._connection = Connection(Role.SERVER, context.wire_limits, context.caches, gathers=True)
        session.encoder = STOMP_ENCODERS[Version.V10]
        self.beats = ClientHeartbeats(context.beats, session)
        self._login = LoginExchange(context, session, self, pipe, self._connection, login)
        self._gateway: StompGateway | None = None
        self._frames: FrameLoop | None = None
        self._received: list[Frame] = []

    @property
    def keep_open(self) -> bool:
        return self._gateway is not None and self._gateway.keep_open

    @property
    def unfinished_bytes(self) -> int:
        return self._connection.unfinished_bytes

    def start(self) -> None:
        self.beats.watch_login(self._context.limits.login_seconds, self._login.check_time)

    def begin(self, gateway: StompGateway) -> None:
        """The client is logged in."""
        self._gateway = gateway
        self._frames = FrameLoop(self._context, self._session, gateway, self._connection)
        self._session.begin()

    def receive(self, data: bytes) -> None:
        self.beats.received_at = trio.current_time()
        self._received = self._connection.receive(data)
        if self._received:
            self.awaits_frame = False

    async def respond(self) -> None:
        session = self._session
        frames, self._received = self._received, []
        if self._frames is None and frames and not await self._login.respond(frames.pop(0)):
            session.finish()
            return
        session.waits_for_slot = True
        await self._context.slot(session.id, asks=only_requests(frames))
        session.waits_for_slot = False
        if session.ending or session.finishing:
            return
        if self._frames is not None:
            await self._frames.obey(frames)
        elif self._connection.error is not None:
            self._login.refuse(self._connection.error, self._connection.error_receipt)
            session.finish()

    def note_stop(self) -> None:
        self.awaits_frame = self._connection.is_amid_frame

    def release(self) -> None:
        self._connection.forget()

    def finish(self) -> None:
        self._login.decided()

    def stop(self) -> None:
        self.beats.stop()

    def leave(self) -> None:
        self._login.leave()
        del self._login, self._frames, self.beats, self._session


def _refusal(refused: Refused) -> bytes:
    return encode_error(refused, None, Version.V12)


STOMP: Final = ClientProtocol("stomp", StompDialogue, _refusal)
