"""The permissions of this node: the table of `qmq.access`, filled from definitions, and its effect on live sessions.

`Access.change` is the one way to new users, groups and permissions. It re-checks every session: a subscription that is
not allowed any more ends with ERROR `not-allowed`, and what it had in flight is requeued. A session whose user has
another passcode than the one it logged in with ends.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from qmq.access.rights import AccessTable, Rights
from qmq.access.rules import ANONYMOUS, Action, Permission, Principal
from qmq.auth.credentials import CERTIFICATE, USERS
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.config import AuthenticationSettings, NodeSettings, User
from qmq.config.authentication import asks_others, asks_users
from qmq.config.secrecy import readable_hashes
from qmq.engine.parts import EngineParts
from qmq.errors import Refused
from qmq.gateways.bound_queues import subscriber_of
from qmq.gateways.durable_headers import check_owner
from qmq.gateways.rules import Rules
from qmq.sessions.clients.session import ClientSession

OPEN: Final = "= no users are configured: every client on this machine may do everything, administration included"

log = logging.getLogger("qmq.node")


class Access:
    """The users, groups and permissions of one node."""

    def __init__(
        self,
        engine: EngineParts,
        sessions: dict[int, ClientSession],
        rules: Rules,
        authentication: Sequence[AuthenticationSettings],
        users: Iterable[User],
        permissions: Iterable[Permission],
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._rules = rules
        self._table = AccessTable()
        self._users: dict[str, str | None] = {}
        """User → the hash of its passcode."""
        self._asks_others = asks_others(authentication)
        self._has_user_logins = asks_users(authentication)
        self._take(users, permissions)

    def _take(self, users: Iterable[User], permissions: Iterable[Permission]) -> None:
        # Else another login with the name of a user would have its groups.
        groups = {user.name: frozenset(user.groups) for user in users if self._has_user_logins}
        self._users = {user.name: user.password_hash for user in users if user.name in groups}
        self._table.change(groups, permissions, has_others=self._asks_others)

    def rights_of(self, principal: Principal | None) -> Rights:
        """The rights of `principal`; None for a client without login."""
        return self._table.rights_of(ANONYMOUS if principal is None else principal)

    def groups_of(self, principal: Principal) -> frozenset[str]:
        return self._table.groups_of(principal)

    def change(self, users: Iterable[User], permissions: Iterable[Permission]) -> None:
        """Let these count from now on, also for clients that are connected and their subscriptions. Never waits."""
        self._take(users, permissions)
        for session in list(self._sessions.values()):
            try:
                self.check_admitted(session)
            except Refused as refused:
                session.dismiss(refused)
            else:
                self._recheck(session)

    def check_admitted(self, session: ClientSession) -> None:
        """Raises Refused if the client, whose login has succeeded, could not log in now."""
        if session.listener is None:
            return
        grant = session.grant
        if grant is None:
            if not session.listener.serves_anonymous(has_users=self._asks_others or bool(self._users)):
                raise Refused("login-required", "From now on this listener serves only users that log in.")
        # The name of another login than a user's may have become that of a user, with its permissions.
        elif ((user := grant.principal.name) in self._users) != (grant.authenticator in (USERS, CERTIFICATE)):
            raise Refused("user-removed", f"The user {user} may not log in here any more.")
        elif grant.authenticator == USERS and grant.proof != self._users[user]:
            raise Refused("passcode-changed", f"The passcode of the user {user} has changed: log in again.")

    def _recheck(self, session: ClientSession) -> None:
        """End what the client of `session` is subscribed to and may not be any more, or with what dead letter queue."""
        known = self._engine.broker.sessions.get(session.id)
        if known is None or session.finishing:
            return
        rights = self.rights_of(session.principal)
        light = {} if known.listener is None else known.listener.topics
        dead_letters = {id: one.asks.dead_letter for id, one in known.subscriptions.items() if one.asks is not None}
        sources = {id: one.source for id, one in known.subscriptions.items() if one.source}
        subscribed = {id: one.destination for id, one in known.subscriptions.items()}
        owners = {id: self._owner_of(one) for id, one in known.subscriptions.items()}
        for id, destination in [*subscribed.items(), *light.items()]:
            try:
                rights.check_subscribe(destination)
                if owner := owners.get(id):
                    check_owner(rights, destination, owner)
                if source := sources.get(id):
                    rights.check_subscribe(source)
                if target := dead_letters.get(id):
                    rights.check(Action.SEND, target)
            except Refused as refused:
                if not session.keep_open:
                    session.evict(refused, id)
                    return
                self._end(session, id, refused)

    def _owner_of(self, subscription: Subscription) -> str:
        """The user that has begun this durable subscription; "": none, or it is not a durable one."""
        if subscription.durable is not None:
            return self._engine.broker.durable_subscriptions.owner_of(subscription.durable.name)
        return subscriber_of(subscription.destination, self._rules.begun_by)

    def _end(self, session: ClientSession, subscription: str, why: Refused) -> None:
        """End one subscription of a client that asked to stay connected."""
        out = Outcome(session.id, self._engine.environment.now_us())
        self._engine.broker.subscriptions.unsubscribe(session.id, subscription, out)
        out.frames.append(session.encoder.error(why, None, subscription))
        self._engine.path.submit(out)


def note_openness(settings: NodeSettings, users: Sequence[User]) -> None:
    """Log that the node has no users, and what that means; its listeners are all on loopback then. And that other users
    of the machine can read the hashes of passcodes."""
    if note := readable_hashes(settings):
        log.warning("! %s", note)
    if not users and not asks_others(settings.authentication):
        log.info(OPEN)
