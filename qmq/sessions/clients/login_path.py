"""The one way of every client to its login, whatever its protocol: what is asked, counted, noted and given back.

`ClientLogin` is one login whose steps take time. Protocols without such a login use this path themselves.
"""

import trio

from qmq.access.rights import Rights
from qmq.engine.runtime.contexts import Configured
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.environment import Environment
from qmq.errors import ProtocolError, Refused
from qmq.sessions.clients.access import Access
from qmq.sessions.clients.admission import Admission, PendingLogin
from qmq.sessions.clients.login import Logins
from qmq.sessions.clients.refusals import Audit, Refusals
from qmq.sessions.clients.session import ClientSession


class LoginPath:
    """Of one node, for all its connections."""

    def __init__(
        self,
        node: Configured,
        environment: Environment,
        beats: Heartbeats,
        admission: Admission,
        logins: Logins,
        access: Access,
        refusals: Refusals,
        audit: Audit,
    ) -> None:
        self._node = node
        self._admission = admission
        self._access = access
        self._refusals = refusals
        self._audit = audit
        self.environment = environment
        self.beats = beats
        self.logins = logins

    @property
    def seconds_max(self) -> float:
        """How long a login may take, besides its checks."""
        return self._node.settings.limits.login_seconds

    def check_open(self) -> None:
        """Raises Refused while the node stops."""
        self._admission.check_open()

    async def turn(self, session: ClientSession) -> None:
        """Wait until the session may begin. Raises Refused if its client could not log in any more."""
        async with self._admission.turns:
            await trio.lowlevel.checkpoint()
        # A change of users ends sessions that have begun, and this one has not.
        self._access.check_admitted(session)

    def check_admitted(self, session: ClientSession) -> None:
        """Raises Refused if a client whose login has succeeded could not log in now."""
        self._access.check_admitted(session)

    def rights_of(self, session: ClientSession) -> Rights:
        """What the client that has logged in may do."""
        return self._access.rights_of(session.principal)

    def refused(self, address: str, why: ProtocolError | Refused, login: str | None = None) -> None:
        """Log a refusal before the login is done; `login` is the name that the client gave."""
        self._refusals.note(address, why, login, is_user=self.logins.is_user(login))

    def audit(self, session: ClientSession) -> None:
        """A user has logged in: an event of the audit."""
        if session.user is not None:
            address = session.peer_address
            self._audit("login", user=session.user, address=address, authenticator=session.authenticator)

    def decided(self, login: PendingLogin) -> None:
        """It is pending no more."""
        self._admission.decided(login)

    def leave(self, login: PendingLogin, user: str | None) -> None:
        """A connection that had logged in as `user` has ended, and everything that it delivers."""
        self._admission.leave(login)
        self.logins.leave(user)
