"""The one way of every client to its login, whatever its protocol: what is asked, counted, noted and given back.

`ClientLogin` is one login whose steps take time. Protocols without such a login use this path themselves.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class LoginPath:
    """Of one node, for all its connections."""

    node: Configured
    environment: Environment
    beats: Heartbeats
    admission: Admission
    logins: Logins
    access: Access
    refusals: Refusals
    add_audit: Audit

    async def turn(self, session: ClientSession) -> None:
        """Wait until the session may begin. Raises Refused if its client could not log in any more."""
        async with self.admission.turns:
            pass  # That was the checkpoint: one that gets a place at once has it meanwhile.
        # A change of users ends sessions that have begun, and this one has not.
        self.access.check_admitted(session)

    def rights_of(self, session: ClientSession) -> Rights:
        """What the client that has logged in may do."""
        return self.access.rights_of(session.principal)

    def refused(self, address: str, why: ProtocolError | Refused, login: str | None = None) -> None:
        """Log a refusal before the login is done; `login` is the name that the client gave."""
        self.refusals.note(address, why, login, is_user=self.logins.is_user(login))

    def audit(self, session: ClientSession) -> None:
        """A user has logged in: an event of the audit."""
        grant, address = session.grant, session.peer_address
        if grant is not None:
            self.add_audit("login", user=grant.principal.name, address=address, authenticator=grant.authenticator)

    def leave(self, login: PendingLogin, user: str | None) -> None:
        """A connection that had logged in as `user` has ended, and everything that it delivers."""
        self.admission.leave(login)
        self.logins.leave(user)
