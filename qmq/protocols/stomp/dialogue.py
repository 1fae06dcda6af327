"""A session that speaks STOMP: codec, login, heartbeats, and the loop that decides frames."""

from collections.abc import Mapping
from functools import partial
from typing import Final

import trio

from qmq import __version__
from qmq.admin.protocol_parts import ProtocolParts
from qmq.auth.credentials import Credentials
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Configured
from qmq.environment import Pipe
from qmq.errors import ProtocolError, Refused, RemoteProtocolError
from qmq.gateways.encode import STOMP_ENCODERS
from qmq.gateways.error_frames import encode_error
from qmq.gateways.headers import window
from qmq.gateways.stomp import StompGateway
from qmq.sessions.client_heartbeats import ClientHeartbeats
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.client_login import ClientLogin
from qmq.sessions.clients.dialogue import ClientDialogue, ClientProtocol
from qmq.sessions.clients.login import certified_names, credentials_of
from qmq.sessions.clients.login_path import LoginPath
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.frame_loop import FrameLoop, FrameLoops, only_requests
from qmq.settings.rules_of_settings import wire_limits
from qmq.wire.stomp import Connection, Frame, HeadCaches, Role, Version, encode_frame, parse_heartbeat

PRODUCT: Final = "client-product"
"""A header of CONNECT."""


class LoginExchange(ClientLogin):
    """From CONNECT to CONNECTED, or to the ERROR that refuses it."""

    __slots__ = ("_connection", "_dialogue", "_engine", "_loops", "_node")

    def __init__(
        self,
        engine: EngineParts,
        node: Configured,
        path: LoginPath,
        loops: FrameLoops,
        session: ClientSession,
        dialogue: "StompDialogue",
        pipe: Pipe,
        connection: Connection,
        login: PendingLogin,
    ) -> None:
        super().__init__(path, session, pipe, login)
        self._engine = engine
        self._node = node
        self._loops = loops
        self._dialogue = dialogue
        self._connection = connection

    async def respond(self, connect: Frame) -> bool:
        """Respond to CONNECT; False when the login is refused (the client has got the ERROR)."""
        session, path, limits = self._session, self._path, self._node.settings.limits
        headers = connect.head.headers
        version = self._connection.version
        self._login.is_silent = False
        if PRODUCT in headers:
            session.dialogue.note_product(headers[PRODUCT])
        try:
            client_beats = parse_heartbeat(headers.get("heart-beat", "0,0"))
            bound = window(headers, limits.prefetch_max)
            certified = certified_names(self._pipe, session.listener)
            await self._admit(self._credentials(headers), certified)
        except (Refused, RemoteProtocolError) as error:
            session.encoder = STOMP_ENCODERS[version]
            if not session.finishing:
                self.refuse(error, connect.receipt, headers.get("login"))
            return False
        if session.finishing:
            return False
        beats = self._dialogue.beats
        offer = beats.agree(client_beats, limits)
        session.encoder = STOMP_ENCODERS[version]
        self.is_done = True
        self._dialogue.begin(
            self._loops.gateway_of(
                session,
                session.encoder,
                path.rights_of(session),
                version=version,
                keep_open=headers.get("on-error") == "keep-open",
                client_id=headers.get("client-id", ""),
                window=bound,
                answers_early=path.logins.answers_early(session.user, session.listener),
            )
        )
        self.decided()
        answer = [
            ("version", version.text),
            ("server", f"qmq/{__version__}"),
            ("session", f"{self._engine.broker.origin}-{session.id}"),
            ("heart-beat", f"{offer[0]},{offer[1]}"),
        ]
        if session.user is not None:
            path.audit(session)
            answer.append(("user-name", session.user))
        session.outbox.put(encode_frame("CONNECTED", answer, version=version))
        session.outbox.flush()
        beats.start()
        self._watch_token()
        return True

    def _credentials(self, headers: Mapping[str, str]) -> Credentials:
        login, passcode, token = headers.get("login"), headers.get("passcode", ""), headers.get("token")
        return credentials_of(self._pipe, self._engine.broker.origin.node, login, passcode, token)

    def refuse(self, error: ProtocolError | Refused, receipt: str | None = None, login: str | None = None) -> None:
        """Send the ERROR; the session finishes next."""
        self._path.refused(self._pipe.peer_address, error, login)
        self._session.outbox.put(encode_error(error, receipt, self._connection.version))
        self._session.outbox.flush()

    def _send_dismissal(self, why: Refused) -> None:
        self._pipe.send_now(encode_error(why, None, Version.V12))

    def leave(self) -> None:
        super().leave()
        del self._dialogue


NONE_RECEIVED: Final[list[Frame]] = []
"""One for all clients, and nothing writes into it."""


class StompDialogue(ClientDialogue):
    awaits_frame = False

    def __init__(
        self,
        engine: EngineParts,
        node: Configured,
        path: LoginPath,
        loops: FrameLoops,
        caches: HeadCaches,
        session: ClientSession,
        pipe: Pipe,
        login: PendingLogin,
    ) -> None:
        self._path = engine.path
        self._loops = loops
        self._session = session
        self._connection = Connection(Role.SERVER, wire_limits(node.settings.limits), caches, gathers=True)
        session.encoder = STOMP_ENCODERS[Version.V10]
        self.beats = ClientHeartbeats(path.beats, session)
        self._login = LoginExchange(engine, node, path, loops, session, self, pipe, self._connection, login)
        self._gateway: StompGateway | None = None
        self._frames: FrameLoop | None = None
        self._received: list[Frame] = NONE_RECEIVED

    @property
    def keep_open(self) -> bool:
        return self._gateway is not None and self._gateway.keep_open

    @property
    def unfinished_bytes(self) -> int:
        return self._connection.unfinished_bytes

    def start(self) -> None:
        self.beats.watch_login(self._login.seconds_max, self._login.check_time)

    def begin(self, gateway: StompGateway) -> None:
        """The client is logged in."""
        self._gateway = gateway
        self._frames = self._loops.begin(self._session, gateway, self._connection)
        self._session.begin()

    def receive(self, data: bytes) -> None:
        self.beats.received_at = trio.current_time()
        self._received = self._connection.receive(data)
        if self._received:
            self.awaits_frame = False

    async def respond(self) -> None:
        session = self._session
        frames, self._received = self._received, NONE_RECEIVED
        if self._frames is None and frames and not await self._login.respond(frames.pop(0)):
            session.finish()
            return
        if not frames and self._connection.error is None:
            return
        session.waits_for_slot = True
        await self._path.slot(session.id, asks=only_requests(frames))
        session.waits_for_slot = False
        if session.ending or session.finishing:
            return
        if self._frames is not None:
            await self._frames.obey([*frames])
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


def protocol(of_node: ProtocolParts) -> ClientProtocol:
    """STOMP on one node."""
    sessions = of_node.sessions
    begin = partial(StompDialogue, of_node.engine, of_node.node, sessions.login_path, sessions.loops, HeadCaches())
    return ClientProtocol("stomp", begin, _refusal)
