"""The client of an HTTP connection: it logs in with each request.

The result of a login is remembered while the connection sends the same credentials. With other credentials it is
another client. Messages that the former client has received stay in flight until they are settled or their time is
over.
"""

from dataclasses import dataclass

import trio

from qmq.auth.credentials import Credentials, Grant
from qmq.engine.parts import EngineParts
from qmq.environment import Pipe
from qmq.errors import Refused
from qmq.gateways.stomp import StompGateway
from qmq.protocols.http.codec import HttpRequest
from qmq.protocols.http.gateway.authorization import authorization_of, parse_authorization
from qmq.protocols.http.gateway.bodies import MESSAGES_MAX
from qmq.protocols.http.gateway.responses import HttpEncoder
from qmq.protocols.http.part import WebPart
from qmq.protocols.http.pull_session import PullSession
from qmq.sessions.clients.admission import PendingLogin
from qmq.sessions.clients.login import certified_names, credentials_of
from qmq.sessions.clients.login_path import LoginPath
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.frame_loop import FrameLoop, FrameLoops


@dataclass(eq=False, repr=False)
class WebClient:
    """The client that is logged in, if there is one, and its login."""

    _engine: EngineParts
    _path: LoginPath
    _loops: FrameLoops
    _part: WebPart
    session: ClientSession
    pipe: Pipe
    login: PendingLogin
    encoder: HttpEncoder

    def __post_init__(self) -> None:
        self.gateway: StompGateway | None = None
        """None: no client is logged in."""
        self.frames: FrameLoop | None = None
        self.cookie: str | None = None
        """The token of a browser that is logged in by its cookie."""
        self._said: str | None = None
        self.expires_us = 0
        """When its login ends, in microseconds since 1970; 0: never."""
        self._checking = trio.CancelScope()
        self._pull: PullSession | None = None

    @property
    def has_in_flight(self) -> bool:
        return self._pull is not None and self._pull.has_in_flight

    @property
    def is_expired(self) -> bool:
        """Whether its token, or the login of its browser, has ended."""
        if self.cookie is not None and not self._part.console.is_open(self.cookie):
            return True
        return bool(self.expires_us) and self._path.environment.now_us() >= self.expires_us

    async def log_in(self, request: HttpRequest, bytes_before: int, *, sends: bool = False) -> bool:
        """Log the client in with the credentials of the request; False when it has left. Raises Refused.

        `bytes_before` is how much the connection had sent when its last request was answered: the rate of a new client
        does not have them. While the node is drained, a client that `sends` is refused.
        """
        path, session = self._path, self.session
        said = authorization_of(request)
        cookie = None if said else self._part.console.cookie_of(request)
        if self.gateway is not None and (said, cookie) == (self._said, self.cookie) and not self.is_expired:
            return True
        self.login.is_silent = False
        path.admission.check_open(is_operators=not sends)
        self._checking = trio.CancelScope()
        grant: Grant | None = None
        try:
            with self._checking:
                grant = self._part.console.grant_of(cookie, session.user) or await path.logins.check(
                    self._credentials(said),
                    session.listener,
                    session.until_left,
                    certified_names(self.pipe, session.listener),
                    session.user,
                )
        except Refused as refused:
            path.refused(session.peer_address, refused, self._credentials(said).login)
            raise
        if session.finishing:
            path.logins.leave(None if grant is None else grant.principal.name)
            return False
        is_first = self.gateway is None
        if not is_first:
            before = session.user
            self.log_out()
            if before != (None if grant is None else grant.principal.name):
                session.renumber()
        self._become(grant)
        self._said, self.cookie = said, cookie
        if not is_first and session.allowance.is_limited:
            session.allowance.skip(bytes_before)
        self._engine.broker.sessions[session.id].transaction_frames_max = MESSAGES_MAX
        path.admission.decided(self.login)
        if cookie is None:
            path.audit(session)
        return True

    def _become(self, grant: Grant | None) -> None:
        session, loops = self.session, self._loops
        session.grant = grant
        self.expires_us = 0 if grant is None else grant.expires_us or 0
        self.gateway = loops.gateway_of(session, self.encoder, self._path.rights_of(session), is_atomic=True)
        self.frames = loops.begin(session, self.gateway)
        session.begin()

    def log_out(self) -> None:
        """End the client that is logged in, if there is one; the connection stays."""
        if self.gateway is None:
            return
        self.leave_pull()
        self.session.close_client()
        self._path.logins.leave(self.session.user)
        self.session.grant = None
        self.gateway = self.frames = None

    async def pull(self) -> PullSession:
        """The session for what it receives. Raises Refused."""
        if self._pull is None or self._pull.has_ended:
            self._pull = await self._part.pulls.open(self.session)
        return self._pull

    def leave_pull(self) -> None:
        """It receives nothing more. What it has stays in flight until it is settled or its time is over."""
        if self._pull is not None:
            self._pull.leave()
            self._pull = None

    def cancel(self) -> None:
        """End the check of a login: the client has left, or another one needs its place."""
        self._checking.cancel()

    def leave(self) -> None:
        """The connection has ended."""
        self._path.leave(self.login, self.session.user)
        self.gateway = self.frames = None

    def _credentials(self, said: str | None) -> Credentials:
        return credentials_of(self.pipe, self._engine.broker.origin.node, *parse_authorization(said))
