"""The login of one connection: from CONNECT to CONNECTED, or to the ERROR that refuses it.

A password check may wait for its turn and takes a while. Meanwhile the client is read only to notice that it has
disconnected.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import trio

from qmq.access.rights import Rights
from qmq.access.rules import Principal
from qmq.auth.credentials import Credentials
from qmq.config import LimitSettings, ListenerSettings
from qmq.environment import Pipe
from qmq.errors import ProtocolError, Refused, RemoteProtocolError
from qmq.gateways.encode import STOMP_ENCODERS
from qmq.gateways.encoder import Encoder
from qmq.gateways.error_frames import encode_error
from qmq.gateways.headers import window
from qmq.gateways.rules import Rules
from qmq.gateways.stomp import StompGateway
from qmq.server.clients.admission import Admission, PendingLogin
from qmq.server.clients.login import Logins, certified_names, credentials_of
from qmq.server.clients.outbox import ClientOutbox
from qmq.server.clients.refusals import Refusals
from qmq.server.clients.token_watch import TokenWatch
from qmq.server.runtime.contexts import Engine
from qmq.server.runtime.heartbeats import Heartbeats
from qmq.server.stomp.client_heartbeats import ClientHeartbeats
from qmq.wire.stomp import Connection, Frame, Version, encode_frame, parse_heartbeat


class LoginContext(Engine, Protocol):
    beats: Heartbeats
    rules: Rules
    limits: LimitSettings
    admission: Admission
    logins: Logins
    refusals: Refusals
    software: str

    def rights_of(self, principal: Principal | None) -> Rights:
        """What a principal may do; None for a client without login."""

    def audit(self, event: str, **facts: Any) -> None:
        """Note an event for the subscribers of `/system/audit`."""


class LoginSession(Protocol):
    """The session that logs in (`ClientSession`)."""

    id: int
    user: str | None
    principal: Principal | None
    authenticator: str
    encoder: Encoder
    listener: ListenerSettings | None
    outbox: ClientOutbox
    finishing: bool

    def finish(self) -> None: ...

    async def until_left(self) -> None: ...

    def dismiss(self, error: Refused) -> None: ...


class LoginDialogue(Protocol):
    """The dialogue that the login begins (`StompDialogue`)."""

    beats: ClientHeartbeats

    def begin(self, gateway: StompGateway) -> None:
        """The client is logged in."""


class LoginExchange:
    """One login."""

    __slots__ = (
        "_checking",
        "_connection",
        "_context",
        "_dialogue",
        "_is_done",
        "_login",
        "_pipe",
        "_session",
        "_token",
    )

    def __init__(
        self,
        context: LoginContext,
        session: LoginSession,
        dialogue: LoginDialogue,
        pipe: Pipe,
        connection: Connection,
        login: PendingLogin,
    ) -> None:
        self._context = context
        self._session = session
        self._dialogue = dialogue
        self._pipe = pipe
        self._connection = connection
        self._login = login
        login.dismiss = self._dismiss
        self._is_done = False
        self._token = TokenWatch(context.beats, context.environment, session)
        # Covers the response to CONNECT.
        self._checking = trio.CancelScope()

    async def respond(self, connect: Frame) -> bool:
        """Respond to CONNECT; False when the login is refused (the client has got the ERROR)."""
        context, session = self._context, self._session
        headers = connect.head.headers
        version = self._connection.version
        self._login.is_silent = False
        try:
            client_beats = parse_heartbeat(headers.get("heart-beat", "0,0"))
            bound = window(headers, context.limits.prefetch_max)
            context.admission.check_open()
            with self._checking:
                grant = await context.logins.check(
                    self._credentials(headers),
                    session.listener,
                    session.until_left,
                    certified_names(self._pipe, session.listener),
                )
                if grant is not None:
                    session.principal, session.authenticator = grant.principal, grant.authenticator
                    session.user = grant.principal.name
                    self._token.expires_us = grant.expires_us or 0
                async with context.admission.turns:
                    await trio.lowlevel.checkpoint()
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
        self._is_done = True
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
            context.audit(
                "login", user=session.user, address=self._pipe.peer_address, authenticator=session.authenticator
            )
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

    def check_time(self, now: float) -> float | None:
        """The time for the login is over."""
        if not self._is_done and not self._session.finishing:
            limit = self._context.limits.login_seconds
            self.refuse(Refused("login-timeout", f"A login must be done within {limit:g} seconds."))
            self._session.finish()
            self._checking.cancel()
        return None

    def _dismiss(self, why: Refused) -> None:
        """End this login at once: another one needs its place."""
        if not self._session.finishing:
            self._session.finishing = True
            self._context.refusals.note(self._pipe.peer_address, why)
            self._pipe.send_now(encode_error(why, None, Version.V12))
            self._pipe.close()
            self._checking.cancel()

    def leave(self) -> None:
        """The connection has ended, and everything that it delivers."""
        self._token.end()
        self._context.admission.leave(self._login)
        self._context.logins.leave(self._session.user)
        # It holds this object: a reference cycle would keep the session and all that it holds until a collection.
        del self._login.dismiss, self._dialogue

    def decided(self) -> None:
        """It is pending no more."""
        self._context.admission.decided(self._login)
