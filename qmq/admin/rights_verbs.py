"""What a client may do, and what the definition of a user has in place of a passcode."""

from collections.abc import Mapping
from typing import Final

import argon2

from qmq.access.rules import ACTIONS, Action, Principal
from qmq.admin.facts.system import AUDIT
from qmq.broker.messages.destination import is_pattern
from qmq.environment import Environment
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.verb_request import ControlResponse, in_body, json_object
from qmq.sessions.clients.access import Access
from qmq.verbs.nodes import PasswordHash, ShowRights
from qmq.verbs.table import needs_of
from qmq.verbs.verb import VerbRequest

USERS: Final = "/control/definitions/get/user/"

GENERAL: Final[Mapping[str, tuple[Action, str]]] = {
    "observe": (Action.OBSERVE, "/control/status"),
    "kick": (Action.ADMINISTER, "/control/kick"),
    "retire": (Action.ADMINISTER, "/control/retire/*"),
    "definitions": (Action.ADMINISTER, "/control/definitions/*"),
    "audit": (Action.ADMINISTER, AUDIT),
    "trace": (Action.OBSERVE, "/control/trace/*"),
    "redrive": (Action.ADMINISTER, "/queue/*"),
}
"""What a client may do that is not about one destination."""

PASSCODE_CHARS_MAX: Final = 1024


class RightsVerbs:
    """Responds to `rights` and `password-hash`."""

    def __init__(self, node: str, environment: Environment, access: Access) -> None:
        self._node = node
        self._environment = environment
        self._access = access

    async def rights(self, asked: VerbRequest[ShowRights]) -> ControlResponse:
        """What the client may do, or with `user` another one."""
        access, principal = self._access, asked.principal
        user, about = asked.options.user, asked.options.about
        if user is not None and (principal is None or user != principal.name):
            access.rights_of(principal).check_needs(needs_of(f"{USERS}{user}"))
            principal = Principal(user)
        rights = access.rights_of(principal)
        if about and is_pattern(about) and not about.endswith("*"):
            raise Refused("bad-destination", "The header about is a destination, or the beginning of one with *.")
        facts: Facts = {
            "node": self._node,
            "user": None if principal is None else principal.name,
            "may": {name: rights.allows(action, on) for name, (action, on) in GENERAL.items()},
        }
        if about:
            facts["about"] = {action.value: rights.allows(action, about) for action in ACTIONS}
        return await in_body(facts)

    async def password_hash(self, asked: VerbRequest[PasswordHash]) -> ControlResponse:
        """What the definition of a user has in place of its passcode. Takes about a tenth of a second, in a thread."""
        try:
            passcode = json_object(asked.body, asked.verb)["passcode"]
        except (Refused, KeyError):
            passcode = None
        if not isinstance(passcode, str) or not 1 <= len(passcode) <= PASSCODE_CHARS_MAX:
            raise Refused("bad-body", f'The body is {{"passcode": …}}, with 1 to {PASSCODE_CHARS_MAX} characters.')
        hasher = argon2.PasswordHasher()
        return await in_body({"password_hash": await self._environment.run_blocking(hasher.hash, passcode)})
