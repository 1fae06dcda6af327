"""The login of one client of STOMP."""

from collections.abc import Mapping
from typing import Protocol

from qmq.auth.credentials import Credentials
from qmq.environment import Pipe
from qmq.errors import ProtocolError, Refused, RemoteProtocolError
from qmq.gateways.encode import STOMP_ENCODERS
from qmq.gateways.error_frames import encode_error
from qmq.gateways.headers import window
from qmq.gateways.stomp import StompGateway
from qmq.server.clients.admission import PendingLogin
from qmq.server.clients.client_login import ClientLogin, LoginContext
from qmq.server.clients.login import certified_names, credentials_of
from qmq.server.clients.session import ClientSession
from qmq.server.stomp.client_heartbeats import ClientHeartbeats
from qmq.wire.stomp import Connection, Frame, Version, encode_frame, parse_heartbeat


class LoginDialogue(Protocol):
    """The dialogue that the login begins (`StompDialogue`)."""

    beats: ClientHeartbeats

    def begin(self, gateway: StompGateway) -> None:
        """The client is logged in."""


class LoginExchange(ClientLogin):
    """From CONNECT to CONNECTED, or to the ERROR that refuses it."""

    __slots__ = ("_connection", "_dialogue")

    def __init__(
        self,
        context: LoginContext,
        session: ClientSession,
        dialogue: LoginDialogue,
        pipe: Pipe,
        connection: Connection,
        login: PendingLogin,
    ) -> None:
        super().__init__(context, session, pipe, login)
        self._dialogue = dialogue
        self._connection = connection

    async def respond(self, connect: Frame) -> bool:
        """Respond to CONNECT; False when the login is refused (the client has got the ERROR)."""
        context, session = self._context, self._session
        headers = connect.head.headers
        version = self._connection.version
        self._login.is_silent = False
        try:
            client_beats = parse_heartbeat(headers.get("heart-beat", "0,0"))
            bound = window(headers, context.limits.prefetch_max)
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
        offer = beats.agree(client_beats, context.limits)
        session.encoder = STOMP_ENCODERS[version]
        self.is_done = True
        self._dialogue.begin(
            StompGateway(
                session.id,
                context.broker,
                context.rules,
                version,
                headers.get("on-error") == "keep-open",
                client_id=headers.get("client-id", ""),
                window=bound,
                user=session.user,
                rights=context.rights_of(session.principal),
                answers_early=context.logins.answers_early(session.user, session.listener),
            )
        )
        context.admission.decided(self._login)
        answer = [
            ("version", version.text),
            ("server", context.software),
            ("session", f"{context.broker.origin}-{session.id}"),
            ("heart-beat", f"{offer[0]},{offer[1]}"),
        ]
        if session.user is not None:
            self._audit()
            answer.append(("user-name", session.user))
        session.outbox.put(encode_frame("CONNECTED", answer, version=version))
        session.outbox.flush()
        beats.start()
        self._token.begin()
        return True

    def _credentials(self, headers: Mapping[str, str]) -> Credentials:
        login, passcode, token = headers.get("login"), headers.get("passcode", ""), headers.get("token")
        return credentials_of(self._pipe, self._context.broker.origin.node, login, passcode, token)

    def refuse(self, error: ProtocolError | Refused, receipt: str | None = None, login: str | None = None) -> None:
        """Send the ERROR; the session finishes next."""
        context = self._context
        context.refusals.note(self._pipe.peer_address, error, login, is_user=context.logins.is_user(login))
        self._session.outbox.put(encode_error(error, receipt, self._connection.version))
        self._session.outbox.flush()

    def _send_dismissal(self, why: Refused) -> None:
        self._pipe.send_now(encode_error(why, None, Version.V12))

    def leave(self) -> None:
        super().leave()
        del self._dialogue
