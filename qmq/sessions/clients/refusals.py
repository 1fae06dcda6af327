"""The log of refused clients: a line at once for each reason, then at most one a minute with a count.

A flood of connections or of wrong passwords must not fill the disk that the journal needs. With each line about a login
or a permission goes an event of the audit. Neither has a passcode or a body.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.errors import LoginRefused, ProtocolError, Refused
from qmq.sessions.clients.session import ClientSession

SUM_SECONDS: Final = 60.0
USER_CHARACTERS_MAX: Final = 128

AUDITED: Final = ("login-failed", "login-required", "not-allowed", "token-expired", "authentication-unavailable")
"""Codes of refusals that are events of the audit."""

Audit = Callable[..., None]
"""As `SystemTopics.audit`."""

log = logging.getLogger("qmq.login")


@dataclass(slots=True)
class _Counted:
    """For one reason: how many refusals since its last line, and the last of them, as text and as facts."""

    count: int = 0
    last: str = ""
    facts: dict[str, str | None] = field(default_factory=dict)


class Refusals:
    """Recent refusals of one node."""

    def __init__(self, heartbeats: Heartbeats, audit: Audit = lambda event, **facts: None) -> None:
        self._heartbeats = heartbeats
        self._audit = audit
        # By reason: the codes of errors before login, and one more for each configured user.
        self._reasons: dict[str, _Counted] = {}

    def note(
        self, address: str, why: ProtocolError | Refused, login: str | None = None, *, is_user: bool = False
    ) -> None:
        """A client of `address` was refused. `login` is the name that it gave; a name of a user here (`is_user`) has
        its own lines.
        """
        name = None if login is None else login[:USER_CHARACTERS_MAX]
        text = f"{address}{'' if name is None else f' as {name!r}'}: {why}"
        facts = {"user": name, "address": address, "reason": why.message}
        if isinstance(why, LoginRefused):
            text += f" ({why.authenticator}: {why.why})" if why.authenticator else f" ({why.why})"
            facts |= {"authenticator": why.authenticator, "reason": why.why}
        reason = f"{why.code} {login}" if is_user else why.code
        known = self._reasons.get(reason)
        if known is not None:
            known.count += 1
            known.last, known.facts = text, facts
            return
        self._reasons[reason] = _Counted()
        log.warning("! %s", text)
        if why.code in AUDITED:
            self._audit(why.code, count=1, **facts)
        self._heartbeats.watch(trio.current_time() + SUM_SECONDS, partial(self._sum_up, reason))

    def note_client(self, session: ClientSession, why: ProtocolError | Refused) -> None:
        """A client was refused after its login, or where it needs none."""
        self.note(session.peer_address, why, session.user, is_user=session.user is not None)

    def _sum_up(self, reason: str, now: float) -> float | None:
        known = self._reasons[reason]
        if not known.count:
            del self._reasons[reason]
            return None
        self._log(reason, known)
        return now + SUM_SECONDS

    def close(self) -> None:
        """Log what was counted and not logged yet: the node is stopping."""
        for reason, known in self._reasons.items():
            if known.count:
                self._log(reason, known)

    def _log(self, reason: str, known: _Counted) -> None:
        log.warning("! %d more of these within %g s, the last: %s", known.count, SUM_SECONDS, known.last)
        code = reason.partition(" ")[0]
        if code in AUDITED:
            self._audit(code, count=known.count, **known.facts)
        known.count = 0
