"""What the queue subscriptions of one client share."""

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.subscription import Ack, Subscription


def subscriptions(count: int) -> list[Subscription]:
    return [Subscription(1, f"s{number}", "/queue/jobs", Ack.CLIENT, 1, b"") for number in range(count)]


def test_a_waiting_subscription_is_in_the_round_once_and_goes_to_its_end_when_served() -> None:
    window = ConnectionPrefetch(1)
    one, two = subscriptions(2)

    window.wait(one)
    window.wait(two)
    window.wait(one)

    assert list(window.round) == [two, one]
    assert [window.next(), window.next(), window.next()] == [two, one, None]


def test_a_member_that_leaves_is_forgotten() -> None:
    window = ConnectionPrefetch(3)
    (one,) = subscriptions(1)
    window.subscriptions[one] = None
    window.wait(one)

    window.leave(one)
    window.leave(one)

    assert not window.subscriptions
    assert window.next() is None


def test_room_is_what_is_not_held() -> None:
    window = ConnectionPrefetch(3)
    window.held = 2

    assert window.room == 1
