"""Mistakes where a follower of a fanout goes from its log to the live messages, or back."""

from collections.abc import Iterator
from unittest.mock import patch

from qmq.broker.consumers.subscription import Subscription
from qmq.sessions.delivery.fanout_subscribers import FanoutSubscribers
from qmq.storage.fanouts.reader import FanoutPage, FanoutPosition
from qmq.storage.store import Store
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug


class _Anywhere(int):
    """A position that equals every other one."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@seeded_bug(
    Family.SLOW,
    "I1",
    "I5",
    found_by="tests/sessions/delivery/test_fanout_subscribers.py::"
    "test_what_is_committed_while_the_log_is_read_reaches_the_reader_once",
)
def live_behind_what_was_committed() -> Iterator[None]:
    """A follower that has read its log to the end goes live, whatever was committed while it was read."""
    fanout_page = Store.fanout_page

    def page(store: Store, destination: str, position: FanoutPosition, bytes_max: int) -> FanoutPage:
        found = fanout_page(store, destination, position, bytes_max)
        reached = found.position._replace(journal_position=_Anywhere(found.position.journal_position))
        return found._replace(position=reached)

    with patch.object(Store, "fanout_page", page):
        yield


@seeded_bug(Family.SLOW, "I1", seed=73)
def read_again_behind_what_was_missed() -> Iterator[None]:
    """A follower beyond its buffer reads again from behind the group of commits that it has not got."""

    def read_again(followers: FanoutSubscribers, subscription: Subscription, begin: int) -> None:
        journal = followers._engine.store.journal
        followers._read_from(subscription, (journal.end, journal.vector()))

    with patch.object(FanoutSubscribers, "_read_again", read_again):
        yield
