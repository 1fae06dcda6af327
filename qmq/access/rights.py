"""The rights of principals: one decision function, and what it decided kept for the busy senders.

`AccessTable` has the users and permissions of a node. `Rights` are those of one principal; its sessions hold them, and
a change of the table changes them in place. `Rights.sends` makes the hot path cheap: a destination in it was decided
before, and None allows all of them, on a node without users. So a SEND costs one look-up in a set, or none.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from qmq.access.rules import ANONYMOUS, ROLES, Action, Patterns, Permission, Principal
from qmq.errors import Refused

NOT_ALLOWED: Final = "not-allowed"
"""The code of a refusal."""

REMEMBERED_MAX: Final = 10_000
"""Destinations to which a principal has sent; at the bound they are forgotten and decided again."""

EXCHANGE: Final = "/exchange/"
KINDS: Final = ("/queue/", "/topic/", "/fanout/", EXCHANGE)
SYSTEM: Final = "/system/"

SYSTEM_TOPICS: Final[Mapping[str, Action]] = {
    "/system/events": Action.OBSERVE,
    "/system/peers": Action.OBSERVE,
    "/system/stats": Action.OBSERVE,
    "/system/journal": Action.SUBSCRIBE,
}
"""What a SUBSCRIBE needs; to others `administer`. The journal has the bodies of all destinations."""


class Need(NamedTuple):
    """A right that a request needs. `or_any`: any other action on the same destination does as well."""

    action: Action
    about: str
    or_any: bool = False


class Rights:
    """What `principal` may do now."""

    __slots__ = ("__weakref__", "_allowed", "_denied", "_is_unlimited", "principal", "sends")

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.sends: set[str] | None = set()
        """Destinations to which it may send, as decided before; None for all."""
        self._is_unlimited = False
        self._allowed: dict[Action, Patterns] = {}
        self._denied: dict[Action, Patterns] = {}

    def lift(self) -> None:
        """Allow everything."""
        self._is_unlimited = True
        self.sends = None

    def take(self, permissions: Iterable[Permission]) -> None:
        """Allow from now on what `permissions`, all about this principal, allow."""
        allowed: dict[Action, list[str]] = {}
        denied: dict[Action, list[str]] = {}
        for one in permissions:
            for action in one.actions:
                (allowed if one.is_allowed else denied).setdefault(action, []).extend(one.patterns)
        self._allowed = {action: Patterns(tuple(patterns)) for action, patterns in allowed.items()}
        self._denied = {action: Patterns(tuple(patterns)) for action, patterns in denied.items()}
        self._is_unlimited = False
        self.sends = set()

    def allows(self, action: Action, destination: str) -> bool:
        """The decision. `destination` may be a pattern of topics, or of a list."""
        if self._is_unlimited:
            return True
        is_pattern = "*" in destination or "#" in destination
        denied = self._denied.get(action)
        if denied is not None and denied.touch(destination, is_pattern=is_pattern):
            return False
        allowed = self._allowed.get(action)
        return allowed is not None and allowed.cover(destination, is_pattern=is_pattern)

    def has(self, need: Need) -> bool:
        """Whether it has this right. Any right to an exchange may be one to some of its routing keys."""
        if self.allows(need.action, need.about):
            return True
        if not need.or_any:
            return False
        if not need.about.startswith(EXCHANGE):
            return any(self.allows(action, need.about) for action in Action)
        exchange = need.about.removesuffix("/*")
        names = (exchange, f"{exchange}/*")
        return any(one.touch(name, is_pattern="*" in name) for one in self._allowed.values() for name in names)

    def check(self, action: Action, destination: str) -> None:
        """Raises Refused when the principal may not do this."""
        self.check_need(Need(action, destination))

    def check_need(self, need: Need) -> None:
        """The same of a need."""
        if not self.has(need):
            action, destination = need.action, need.about
            is_anonymous = self.principal.name == ANONYMOUS.name
            client = "A client without login" if is_anonymous else f"The user {self.principal.name}"
            raise Refused(NOT_ALLOWED, f"{client} may not {action.value} {_preposition(action)}{destination}.")

    def check_send(self, destination: str) -> None:
        """`check` for a SEND, remembered. Temporary queues and reply addresses are always allowed."""
        sends = self.sends
        if sends is None or destination in sends or not destination.startswith(KINDS):
            return
        self.check(Action.SEND, destination)
        if len(sends) >= REMEMBERED_MAX:
            sends.clear()
        sends.add(destination)

    def check_subscribe(self, destination: str) -> None:
        """`check` for a SUBSCRIBE. A temporary queue of one's own is always allowed."""
        if destination.startswith(SYSTEM):
            self.check(SYSTEM_TOPICS.get(destination, Action.ADMINISTER), destination)
        elif destination.startswith(KINDS):
            self.check(Action.SUBSCRIBE, destination)

    def check_needs(self, needs: Iterable[Need]) -> None:
        """`check` of all that a request needs."""
        for need in needs:
            self.check_need(need)

    def has_all(self, needs: Iterable[Need]) -> bool:
        """Whether `check_needs` finds nothing to refuse."""
        return all(map(self.has, needs))


def _preposition(action: Action) -> str:
    return "to " if action in (Action.SEND, Action.SUBSCRIBE) else ""


class AccessTable:
    """The users and permissions that count now. Without logins it is open: everything is allowed."""

    def __init__(self) -> None:
        self._is_open = True
        self._groups: Mapping[str, frozenset[str]] = {}
        # User and group, of which one is None → what is about it. A table has thousands of both.
        self._permissions: dict[tuple[str | None, str | None], list[Permission]] = {}
        self._rights: WeakValueDictionary[Principal, Rights] = WeakValueDictionary()

    def change(
        self, groups: Mapping[str, frozenset[str]], permissions: Iterable[Permission], *, has_others: bool = False
    ) -> None:
        """Let these count from now on: user → its groups, and the permissions besides those of ROLES. `has_others`:
        clients can log in that are none of these users.
        """
        self._is_open = not groups and not has_others
        self._groups = dict(groups)
        self._permissions = {}
        for one in chain(*ROLES.values(), permissions):
            self._permissions.setdefault((one.user, one.group), []).append(one)
        for rights in list(self._rights.values()):
            self._decide(rights)

    def rights_of(self, principal: Principal) -> Rights:
        """The rights of `principal`; the same object for all its sessions. Its groups here are added to its own."""
        rights = self._rights.get(principal)
        if rights is None:
            rights = self._rights[principal] = Rights(principal)
            self._decide(rights)
        return rights

    def groups_of(self, principal: Principal) -> frozenset[str]:
        """All groups of `principal`: its own, and those that it has here."""
        return principal.groups | self._groups.get(principal.name, frozenset())

    def _decide(self, rights: Rights) -> None:
        if self._is_open:
            rights.lift()
            return
        principal = rights.principal
        subjects = [(principal.name, None), *((None, group) for group in self.groups_of(principal))]
        rights.take(one for subject in subjects for one in self._permissions.get(subject, ()))
