"""What stock clients of other brokers say, and the specification does not foresee."""

import pytest

from qmq.broker.consumers.outcome import COST_MAX
from tests.gateways.test_stomp import Client

JOBS = "destination:/queue/jobs"


def consumer(
    version: str = "1.2", *, count: int = 3, headers: str = "id:0\n", ack: str = "client-individual"
) -> Client:
    client = Client(version)
    client.say(f"SUBSCRIBE\n{headers}ack:{ack}\n{JOBS}", *[f"SEND\n{JOBS}\n\n{number}" for number in range(count)])
    return client


def in_flight(client: Client) -> list[bytes]:
    deliveries = client.broker.queues.deliveries.values()
    return [delivery.message.body for delivery in deliveries if delivery.subscription.session == client.session]


def message_id(client: Client, body: bytes) -> str:
    (found,) = [d.message for d in client.broker.queues.deliveries.values() if d.message.body == body]
    return found.message_id


@pytest.mark.parametrize("persistent", ["true", "false"])
def test_an_ack_of_1_2_may_name_the_message_id(persistent: str) -> None:
    client = consumer(count=0)
    client.say(*[f"SEND\n{JOBS}\npersistent:{persistent}\n\n{number}" for number in range(3)])

    out = client.say(f"ACK\nid:{message_id(client, b'1')}\nreceipt:r")

    assert out.receipts == ["r"]
    assert in_flight(client) == [b"0", b"2"]


def test_a_nack_of_1_2_may_name_the_message_id() -> None:
    client = consumer()

    client.say(f"NACK\nid:{message_id(client, b'1')}\nrequeue:false")

    assert in_flight(client) == [b"0", b"2"]
    assert client.broker.queues.by_name["/queue/dead-letters"].depth == 1


def test_an_ack_by_message_id_covers_what_came_before_in_client_mode() -> None:
    client = consumer(ack="client")

    client.say(f"ACK\nid:{message_id(client, b'1')}")

    assert in_flight(client) == [b"2"]


def test_acks_that_are_searched_for_give_others_their_turn() -> None:
    client = consumer(count=1000, headers="id:0\nprefetch-count:1000\n")
    last = message_id(client, b"999")

    outcomes = client.outcomes("BEGIN\ntransaction:t", *[f"ACK\nid:{last}\ntransaction:t"] * 1000)

    assert len(outcomes) == 4
    assert max(out.cost for out in outcomes) < COST_MAX + 1000


def test_the_message_id_of_another_clients_message_is_refused() -> None:
    client = consumer()
    stranger = Client(broker=client.broker, session=2)

    out = stranger.say(f"ACK\nid:{message_id(client, b'1')}")

    assert stranger.error(out)["error-code"] == "unknown-ack"
    assert len(in_flight(client)) == 3


@pytest.mark.parametrize(
    ("version", "frame", "named"),
    [
        ("1.2", "ACK\nid:one", "'one'"),
        ("1.2", "ACK\nid:4711", "4711"),
        ("1.2", "NACK\nid:a-0000000000000001-99", "'a-0000000000000001-99'"),
        ("1.1", "ACK\nsubscription:9\nmessage-id:a-1-99", "'a-1-99'"),
    ],
)
def test_an_unknown_ack_says_what_was_asked_for(version: str, frame: str, named: str) -> None:
    client = consumer(version)

    assert named in client.error(client.say(frame))["message"]


def test_an_ack_without_an_id_says_so() -> None:
    client = consumer()

    assert "there is none" in client.error(client.say("ACK\n"))["message"]


@pytest.mark.parametrize("text", ["True", "TRUE", "true"])
def test_true_may_be_written_in_any_case(text: str) -> None:
    client = consumer(count=0, headers=f"id:0\nexclusive:{text}\n")

    (subscription,) = client.broker.sessions[1].subscriptions.values()
    assert subscription.exclusive


@pytest.mark.parametrize("text", ["False", "FALSE", "false"])
def test_false_may_be_written_in_any_case(text: str) -> None:
    client = consumer(count=1)

    client.say(f"NACK\nid:{message_id(client, b'0')}\nrequeue:{text}")

    assert client.broker.queues.by_name["/queue/dead-letters"].depth == 1


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_what_is_neither_true_nor_false_is_refused(text: str) -> None:
    client = Client()

    out = client.say(f"SEND\n{JOBS}\npersistent:{text}\nreceipt:r\n\nbody")

    assert client.error(out)["error-code"] == "bad-header"


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_one_subscription_may_have_no_id_and_is_known_by_its_destination(version: str) -> None:
    client = consumer(version, headers="", count=0)

    ((first, _), _) = client.read(client.say(f"SEND\n{JOBS}\n\n0", f"SEND\n{JOBS}\n\n1"))

    assert first["subscription"] == "/queue/jobs"
    client.say(f"ACK\nmessage-id:{first['message-id']}" if version == "1.1" else f"ACK\nid:{first['ack']}")
    assert in_flight(client) == [b"1"]


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_second_subscription_without_an_id_is_refused(version: str) -> None:
    client = consumer(version, headers="", count=0)

    out = client.say("SUBSCRIBE\ndestination:/queue/other")

    assert client.error(out)["error-code"] == "missing-header"


def test_subscriptions_with_ids_go_beside_one_without() -> None:
    client = consumer(headers="", count=0)

    out = client.say("SUBSCRIBE\nid:1\ndestination:/topic/t\nreceipt:r")

    assert out.receipts == ["r"]


@pytest.mark.parametrize("headers", ["", "destination:/queue/jobs\n"])
def test_the_subscription_without_an_id_ends_without_one_and_another_may_begin(headers: str) -> None:
    client = consumer(headers="", count=0)

    client.say(f"UNSUBSCRIBE\n{headers}")
    out = client.say("SUBSCRIBE\ndestination:/topic/t\nreceipt:r")

    assert out.receipts == ["r"]
    assert not client.broker.sessions[1].subscriptions


def test_an_unsubscribe_without_an_id_ends_no_subscription_that_has_one() -> None:
    client = consumer(count=0)

    out = client.say("UNSUBSCRIBE\ndestination:/queue/jobs")

    assert client.error(out)["error-code"] == "missing-header"


def test_a_subscription_that_was_refused_leaves_room_for_another_without_an_id() -> None:
    client = Client(keep_open=True, known=("/queue/jobs",))

    client.say("SUBSCRIBE\ndestination:/queue/none")
    out = client.say(f"SUBSCRIBE\n{JOBS}\nreceipt:r")

    assert out.receipts == ["r"]


def test_a_durable_subscription_of_1_2_needs_an_id() -> None:
    client = Client()

    out = client.say("SUBSCRIBE\ndestination:/fanout/f\ndurable:true")

    assert client.error(out)["error-code"] == "missing-header"


@pytest.mark.parametrize("destination", ["foo", "queue/foo"])
def test_a_destination_without_a_slash_is_answered_with_what_may_be_meant(destination: str) -> None:
    client = Client()

    out = client.say(f"SEND\ndestination:{destination}\n\nbody")

    assert client.error(out)["message"].endswith("Did you mean /queue/foo?")


def test_a_bad_destination_ends_no_session_that_asked_to_stay() -> None:
    client = Client(keep_open=True)

    out = client.say("SEND\ndestination:foo\nreceipt:r\n\nbody")

    assert client.error(out)["error-code"] == "bad-destination"
    assert not out.ending
