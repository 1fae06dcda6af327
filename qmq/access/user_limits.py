"""Limits of users: from a principal to what its clients may use together on one node. Pure.

A row is about one user, one group, or every user. For each limit by itself, the row of the user counts; else the
lowest of its groups; else that of every user. `anonymous` is a user of its own here, and no part of every user.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Final

from qmq.access.rules import ANONYMOUS

EVERY_USER: Final = "*"
"""The name that stands for each user that logs in."""


@dataclass(frozen=True, slots=True)
class UserLimits:
    """One row, or what counts for a user. None: not said; 0: no limit, whatever less specific rows say."""

    connections_max: int | None = None
    subscriptions_max: int | None = None
    messages_per_second_max: int | None = None
    """SENDs that the node takes."""
    bytes_per_second_max: int | None = None
    """Bytes that the node reads."""
    queues_max: int | None = None
    """Queues that the user has declared, in the mesh."""
    held_bytes_max: int | None = None
    """Bodies in these queues that one node serves."""


LIMIT_KEYS: Final = tuple(one.name for one in fields(UserLimits))

UNLIMITED: Final = UserLimits()


def limit_name(user: str | None, group: str | None) -> str:
    """The name of the row about this user or this group."""
    return f"user:{user}" if group is None else f"group:{group}"


class LimitTable:
    """The rows that count now, by `limit_name`."""

    def __init__(self, rows: Mapping[str, UserLimits]) -> None:
        self._rows = rows

    def of(self, name: str, groups: Collection[str]) -> UserLimits:
        """What counts for the user `name` of these `groups`."""
        if not self._rows:
            return UNLIMITED
        own = self._rows.get(limit_name(name, None), UNLIMITED)
        of_groups = [row for group in groups if (row := self._rows.get(limit_name(None, group))) is not None]
        every = self._rows.get(limit_name(EVERY_USER, None), UNLIMITED)
        if name == ANONYMOUS.name:
            every = UNLIMITED
        return UserLimits(**{key: _chosen(key, own, of_groups, every) for key in LIMIT_KEYS})


def _chosen(key: str, own: UserLimits, of_groups: list[UserLimits], every: UserLimits) -> int | None:
    said: int | None = getattr(own, key)
    if said is not None:
        return said
    found = [value for row in of_groups if (value := getattr(row, key)) is not None]
    if found:
        return min([value for value in found if value], default=0)
    of_every: int | None = getattr(every, key)
    return of_every
