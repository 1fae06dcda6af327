from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.message import Message
from qmq.model.dots import Dot, Origin

from ..rig import JOBS, message_of

A = Origin("a", 1)


def deliver(out: Outcome, subscription: Subscription, tag: int, message: Message) -> Delivery:
    delivery = Delivery(tag, subscription, message)
    subscription.in_flight = {**subscription.in_flight, tag: delivery}
    out.deliver(delivery)
    return delivery


def consumer(ack: Ack = Ack.CLIENT_INDIVIDUAL) -> Subscription:
    return Subscription(1, "s", JOBS, ack, 10, b"")


def test_topic_messages_for_the_same_subscribers_are_one_run() -> None:
    out, both, one = Outcome(), (consumer(), consumer()), (consumer(),)
    messages = [message_of(A, -n, destination="/topic/t") for n in range(1, 5)]

    for subscriptions, message in zip((both, both, one, both), messages, strict=True):
        out.publish_topic(subscriptions, message)

    assert [(run.subscriptions, run.messages) for run in out.topic_runs] == [
        (both, messages[:2]),
        (one, messages[2:3]),
        (both, messages[3:]),
    ]
    assert not out.needs_commit


def test_fanout_messages_of_one_destination_are_one_run_that_waits_for_the_journal() -> None:
    out = Outcome()
    messages = [message_of(A, n, destination="/fanout/f") for n in range(1, 4)]

    out.publish_fanout("/fanout/f", messages[0])
    out.publish_fanout("/fanout/f", messages[1])
    out.publish_fanout("/fanout/g", messages[2])

    assert [(run.destination, run.messages) for run in out.fanout_runs] == [
        ("/fanout/f", messages[:2]),
        ("/fanout/g", messages[2:]),
    ]
    assert out.needs_commit


def test_own_durable_message_is_delivered_after_it_is_recorded() -> None:
    out, subscription = Outcome(), consumer()

    delivery = deliver(out, subscription, 1, message_of(A, 1))

    assert out.deliveries_after == {subscription: [delivery]}
    assert not out.deliveries_now
    assert out.needs_commit


def test_memory_only_and_borrowed_messages_are_delivered_at_once() -> None:
    out, subscription = Outcome(), consumer()

    memory = deliver(out, subscription, 1, message_of(A, -1))
    borrowed = deliver(out, subscription, 2, message_of(Origin("b", 1), 1, owner="b"))

    assert out.deliveries_now == {subscription: [memory, borrowed]}
    assert not out.needs_commit


def test_nothing_overtakes_a_waiting_message_where_an_ack_covers_all_before_it() -> None:
    subscription = consumer(Ack.CLIENT)
    first, second = Outcome(), Outcome()

    waiting = deliver(first, subscription, 1, message_of(A, 1))
    behind = deliver(second, subscription, 2, message_of(A, -1))

    assert first.deliveries_after == {subscription: [waiting]}
    assert second.deliveries_after == {subscription: [behind]}
    assert second.needs_commit


def test_memory_only_message_goes_at_once_again_when_nothing_before_it_waits() -> None:
    subscription = consumer(Ack.CLIENT)
    deliver(Outcome(), subscription, 1, message_of(A, 1))
    subscription.in_flight.clear()
    out = Outcome()

    deliver(out, subscription, 2, message_of(A, -1))
    deliver(out, subscription, 3, message_of(A, -2))

    assert [d.tag for d in out.deliveries_now[subscription]] == [2, 3]
    assert not out.needs_commit


def test_lent_messages_and_settles_of_durable_ones_wait_for_the_journal() -> None:
    lent, settled, returned, told = Outcome(), Outcome(), Outcome(), Outcome()
    lent.peer_deliveries["b"] = [message_of(A, -1)]
    settled.peer_settled_after["b"] = [Dot(A, 1)]
    returned.peer_returns["b"] = [(message_of(A, 1), False)]
    told.peer_settled_now["b"] = [Dot(A, -1)]

    assert lent.needs_commit and settled.needs_commit
    assert not returned.needs_commit and not told.needs_commit
