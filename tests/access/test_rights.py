"""The decision of qmq.access: principal × action × destination, and what patterns of subscriptions reach."""

import gc

import pytest

from benchmarks.growth import Order
from benchmarks.work import work_of
from qmq.access.rights import REMEMBERED_MAX, SYSTEM, SYSTEM_TOPICS, AccessTable, Rights
from qmq.access.rules import ACTIONS, ANONYMOUS, Action, Permission, Principal, beginning
from qmq.errors import Refused
from qmq.verbs.table import VERBS, needs_of
from qmq.verbs.verb import CONTROL
from tests.access.rights_table import (
    ADMINISTER,
    EVERYONE,
    GROUPS,
    MAY,
    OBSERVE,
    ROWS,
    SEND,
    SUBSCRIBE,
    row,
)


def table(*rows: Permission) -> AccessTable:
    made = AccessTable()
    made.change(GROUPS, rows)
    return made


def is_allowed(rights: Rights, action: Action, destination: str) -> bool:
    """As gateways ask it."""
    try:
        if destination.startswith((CONTROL, SYSTEM)):
            rights.check(action, destination)
        elif action is SEND:
            rights.check_send(destination)
        elif action is SUBSCRIBE:
            rights.check_subscribe(destination)
        else:
            rights.check(action, destination)
    except Refused:
        return False
    return True


@pytest.mark.parametrize("destination", MAY)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_principal_may_exactly_what_the_table_says(destination: str, action: Action) -> None:
    access = table(*ROWS)

    may = {name for name in EVERYONE if is_allowed(access.rights_of(Principal(name)), action, destination)}

    assert may == MAY[destination][action]


@pytest.mark.parametrize(
    ("rows", "subscription", "is_allowed"),
    [
        ([row("new", "allow", "subscribe", "/topic/a.*")], "/topic/a.b", True),
        ([row("new", "allow", "subscribe", "/topic/a.*")], "/topic/a.*", True),
        ([row("new", "allow", "subscribe", "/topic/a.*")], "/topic/a.*.c", True),
        ([row("new", "allow", "subscribe", "/topic/a.*")], "/topic/a.#", False),  # that is also /topic/a
        ([row("new", "allow", "subscribe", "/topic/a*")], "/topic/a.#", True),
        ([row("new", "allow", "subscribe", "/topic/a.*")], "/topic/*", False),
        ([row("new", "allow", "subscribe", "/topic/a.*")], "/topic/#.b", False),
        ([row("new", "allow", "subscribe", "/topic/a")], "/topic/a*", False),
        (
            [row("new", "allow", "subscribe", "/topic/*"), row("new", "deny", "subscribe", "/topic/s")],
            "/topic/*",
            False,
        ),
        (
            [row("new", "allow", "subscribe", "/topic/*"), row("new", "deny", "subscribe", "/topic/s.*")],
            "/topic/#",
            False,
        ),
        (
            [row("new", "allow", "subscribe", "/topic/*"), row("new", "deny", "subscribe", "/topic/s*")],
            "/topic/s.*",
            False,
        ),
        (
            [row("new", "allow", "subscribe", "/topic/*"), row("new", "deny", "subscribe", "/topic/s")],
            "/topic/s.#",
            False,
        ),
        (
            [row("new", "allow", "subscribe", "/topic/*"), row("new", "deny", "subscribe", "/topic/s")],
            "/topic/t.#",
            True,
        ),
    ],
)
def test_a_wildcard_reaches_no_more_than_names_do(rows: list[Permission], subscription: str, is_allowed: bool) -> None:
    assert table(*rows).rights_of(Principal("new")).allows(SUBSCRIBE, subscription) is is_allowed


@pytest.mark.parametrize(
    ("destination", "needs"),
    [
        ("/control/status", (OBSERVE, "/control/status")),
        ("/control/count-msgs/queue/a", (OBSERVE, "/queue/a")),
        ("/control/count-subscribers/topic/a", (OBSERVE, "/topic/a")),
        ("/control/list/queue", (OBSERVE, "/queue/*")),
        ("/control/list/queue/a", (OBSERVE, "/queue/a*")),
        ("/control/list/queue/a*", (OBSERVE, "/queue/a*")),
        ("/control/list-subscribers/fanout/a", (OBSERVE, "/fanout/a")),
        ("/control/connections", (OBSERVE, "/control/connections")),
        ("/control/peek/queue/a", (SUBSCRIBE, "/queue/a")),
        ("/control/get/a-1-1", (SUBSCRIBE, "/control/get/a-1-1")),
        ("/control/trace/a-1-1", (OBSERVE, "/control/trace/a-1-1")),
        ("/control/redrive/queue/*", (ADMINISTER, "/queue/*")),
        ("/control/kick/a/7", (ADMINISTER, "/control/kick/a/7")),
        ("/control/delete/fanout/a", (ADMINISTER, "/fanout/a")),
        ("/control/retire/c", (ADMINISTER, "/control/retire/c")),
        ("/control/added-later/queue/a", (ADMINISTER, "/queue/a")),
        ("/control/count-msgs", (OBSERVE, "/control/count-msgs")),
        ("/control/list/nonsense", (OBSERVE, "/control/list/nonsense")),
    ],
)
def test_a_control_request_needs_an_action_on_what_it_is_about(destination: str, needs: tuple[Action, str]) -> None:
    first = needs_of(destination)[0]

    assert (first.action, first.about) == needs


@pytest.mark.parametrize("verb", sorted(word for word, verb in VERBS.items() if not verb.kinds() and verb.form != word))
def test_a_verb_about_no_destination_needs_the_right_for_itself_whatever_follows_it(verb: str) -> None:
    assert [need.about for need in needs_of(f"/control/{verb}/queue/own")] == [f"/control/{verb}/queue/own"]


def test_a_system_topic_that_is_added_later_is_for_administrators() -> None:
    assert SYSTEM_TOPICS["/system/events"] is OBSERVE
    assert SYSTEM_TOPICS["/system/journal"] is SUBSCRIBE
    with pytest.raises(Refused, match="administer /system/later"):
        table().rights_of(Principal("new")).check_subscribe("/system/later")


def test_without_users_everything_is_allowed_and_a_send_needs_no_look_up() -> None:
    rights = AccessTable().rights_of(ANONYMOUS)

    assert rights.sends is None
    rights.check_send("/queue/a")
    rights.check_subscribe("/system/journal")
    rights.check_needs(needs_of("/control/retire/c"))


def test_a_refusal_names_the_user_the_action_and_the_destination() -> None:
    access = table()

    with pytest.raises(Refused) as refused:
        access.rights_of(Principal("new")).check_send("/queue/a")
    with pytest.raises(Refused) as anonymous:
        access.rights_of(ANONYMOUS).check_needs(needs_of("/control/delete/fanout/a"))

    assert (refused.value.code, refused.value.message) == ("not-allowed", "The user new may not send to /queue/a.")
    assert anonymous.value.message == "A client without login may not administer /fanout/a."


def test_temporary_queues_and_reply_addresses_are_implied() -> None:
    rights = table().rights_of(Principal("new"))

    rights.check_send("/reply-queue/0123")
    rights.check_send("/temp-queue/a")
    rights.check_subscribe("/temp-queue/a")


def test_a_change_counts_for_the_rights_that_sessions_hold() -> None:
    access = table(*ROWS)
    rights = access.rights_of(Principal("bill"))
    rights.check_send("/queue/billing.in")
    assert rights.sends == {"/queue/billing.in"}

    access.change(GROUPS, [])

    assert rights.sends == set()
    with pytest.raises(Refused):
        rights.check_send("/queue/billing.in")
    access.change({}, [])
    assert rights.sends is None


def test_sessions_of_one_principal_share_their_rights_and_the_last_one_frees_them() -> None:
    access = table()
    first: Rights | None = access.rights_of(Principal("app"))
    assert access.rights_of(Principal("app")) is first

    del first
    gc.collect()

    assert not access._rights


def test_groups_of_the_login_are_added_to_those_of_the_table() -> None:
    assert table().rights_of(Principal("new", frozenset({"observer"}))).allows(OBSERVE, "/queue/a")


def test_a_principal_that_sends_everywhere_takes_bounded_memory() -> None:
    rights = table().rights_of(Principal("app"))

    for number in range(REMEMBERED_MAX + 1):
        rights.check_send(f"/queue/{number}")

    assert rights.sends == {f"/queue/{REMEMBERED_MAX}"}


def test_rights_that_were_not_decided_allow_nothing() -> None:
    assert not Rights(Principal("new")).allows(SEND, "/queue/a")


@pytest.mark.parametrize(
    ("pattern", "fixed"),
    [("/topic/a", "/topic/a"), ("/topic/a.*", "/topic/a."), ("/topic/a.#.b", "/topic/a"), ("/topic/#", "/topic/")],
)
def test_all_names_of_a_pattern_begin_alike(pattern: str, fixed: str) -> None:
    assert beginning(pattern) == fixed


def test_a_change_decides_again_in_proportion_to_the_users_that_are_connected() -> None:
    works = []
    for users in (10, 100):
        names = [f"user {number}" for number in range(users)]
        rows = [Permission(name, None, True, frozenset({SEND}), ("/queue/q",)) for name in names]
        made = AccessTable()
        connected = [made.rights_of(Principal(name)) for name in names]
        works.append(work_of(lambda made=made, rows=rows: made.change({}, rows, has_others=True)))  # type: ignore[misc]
        assert all(rights.allows(SEND, "/queue/q") for rights in connected)

    assert Order.LINEAR.allows(10, 100, *works)
