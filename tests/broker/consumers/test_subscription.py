from qmq.broker.consumers.subscription import ACK_MODES, Ack, Delivery, Subscription
from qmq.model.dots import Origin

from ..rig import JOBS, message_of


def test_room_is_credit_minus_what_is_in_flight() -> None:
    subscription = Subscription(1, "s", JOBS, Ack.CLIENT, 2, b"")

    assert subscription.free == 2
    subscription.in_flight = {1: Delivery(1, subscription, message_of(Origin("a", 1), 1))}
    assert subscription.free == 1


def test_new_subscription_is_open_and_not_in_line() -> None:
    subscription = Subscription(1, "s", JOBS, Ack.AUTO, 1, b"")

    assert not subscription.closed and not subscription.waiting


def test_ack_modes_are_the_three_of_the_specification() -> None:
    assert set(ACK_MODES) == {"auto", "client", "client-individual"}
