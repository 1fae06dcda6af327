"""Which row of limits counts for a user."""

import pytest

from qmq.access.user_limits import UNLIMITED, LimitTable, UserLimits

ROWS = {
    "user:ann": UserLimits(queues_max=7),
    "user:bob": UserLimits(queues_max=0),
    "group:g": UserLimits(queues_max=5, connections_max=50),
    "group:h": UserLimits(queues_max=3, connections_max=0),
    "user:*": UserLimits(queues_max=9, connections_max=90, subscriptions_max=900),
    "user:anonymous": UserLimits(subscriptions_max=2),
}


@pytest.mark.parametrize(
    ("name", "groups", "queues", "connections", "subscriptions"),
    [
        ("ann", [], 7, 90, 900),
        ("ann", ["h"], 7, 0, 900),  # each limit by itself
        ("bob", ["g", "h"], 0, 50, 900),  # 0 is no limit, and of two groups the lowest that is one counts
        ("eve", ["g", "h"], 3, 50, 900),
        ("eve", ["h", "unknown"], 3, 0, 900),
        ("eve", [], 9, 90, 900),
        ("anonymous", [], None, None, 2),  # no part of `*`
    ],
)
def test_the_row_of_the_user_counts_before_its_groups_and_these_before_every_user(
    name: str, groups: list[str], queues: int | None, connections: int | None, subscriptions: int | None
) -> None:
    found = LimitTable(ROWS).of(name, groups)

    assert (found.queues_max, found.connections_max, found.subscriptions_max) == (queues, connections, subscriptions)
    assert found.messages_per_second_max is None


def test_without_rows_there_is_no_limit() -> None:
    assert LimitTable({}).of("ann", ["g"]) == UNLIMITED
