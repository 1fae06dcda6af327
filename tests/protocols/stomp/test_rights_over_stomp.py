"""The table of principals, actions and destinations, as clients of a node get it over STOMP."""

from collections.abc import Iterator

import argon2
import pytest
from trio.testing import MockClock

from qmq.access.rules import ACTIONS, Action, Permission
from qmq.config import PermissionSettings, User
from tests.access.rights_table import (
    ADMINISTER,
    DECLARE,
    EVERYONE,
    GROUPS,
    MAY,
    OBSERVE,
    ROWS,
    SEND,
    SUBSCRIBE,
)
from tests.node.rig import Rig, send, subscribe

PASSWORD_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")

REQUESTS = {
    DECLARE: {"queue": "declare"},
    ADMINISTER: {"queue": "purge", "topic": "delete", "fanout": "delete", "exchange": "purge"},
    OBSERVE: dict.fromkeys(("queue", "topic", "fanout", "exchange"), "list-subscribers"),
}
"""Action → kind of a destination → the verb that needs this action on it."""

OF_CONTROL = {"/control/connections": OBSERVE, "/control/get/a-1-1": SUBSCRIBE, "/control/kick/a/7": ADMINISTER}
"""What these requests need on themselves."""


def users() -> tuple[User, ...]:
    return tuple(
        User(name=name, password_hash=PASSWORD_HASH, groups=tuple(sorted(groups))) for name, groups in GROUPS.items()
    )


def settings_of(one: Permission) -> PermissionSettings:
    actions = tuple(action.value for action in sorted(one.actions, key=ACTIONS.index))
    said = {"allow" if one.is_allowed else "deny": actions}
    return PermissionSettings(user=one.user, group=one.group, destinations=one.patterns, **said)


def frame_of(action: Action, destination: str) -> str | None:
    """A frame that needs `action` on `destination`, and no other right that the table varies; None: there is none."""
    if destination in OF_CONTROL:
        return send(destination, "", "r") if action is OF_CONTROL[destination] else None
    if action is SUBSCRIBE:
        return subscribe(destination)
    kind = destination.split("/")[1]
    if action is SEND:
        return None if kind == "system" or "*" in destination or "#" in destination else send(destination, "", "r")
    verb = REQUESTS[action].get(kind)
    if verb is None or destination.endswith(("*", "#")):
        return None
    return send(f"/control/{verb}{destination}", "", "r")


def asked() -> Iterator[tuple[str, Action, str]]:
    for destination in MAY:
        for action in ACTIONS:
            frame = frame_of(action, destination)
            if frame is not None:
                yield destination, action, frame


ASKED = list(asked())


@pytest.mark.parametrize("user", EVERYONE)
async def test_a_client_gets_exactly_what_the_table_allows(autojump_clock: MockClock, user: str) -> None:
    login = {} if user == "anonymous" else {"login": user, "passcode": "secret"}
    permissions = tuple(map(settings_of, ROWS))
    answers: dict[tuple[str, Action], bool] = {}

    async with Rig(users=users(), permissions=permissions, anonymous=True).run() as rig:
        for destination, action, frame in ASKED:
            # Most refusals end a connection.
            client = await rig.connect(**login)
            await client.send(frame)
            head = (await client.any()).head
            answers[destination, action] = head.headers.get("error-code") != "not-allowed"
            client.pipe.close()

    wrongs = [asked for asked, is_allowed in answers.items() if is_allowed is not (user in MAY[asked[0]][asked[1]])]
    assert not wrongs and len(answers) == len(ASKED)


def test_every_action_is_asked_for_and_each_kind_of_destination() -> None:
    kinds = {destination.split("/")[1] for destination in MAY}

    assert {action for _, action, _ in ASKED} == set(ACTIONS)
    assert {destination.split("/")[1] for destination, _, _ in ASKED} == kinds
