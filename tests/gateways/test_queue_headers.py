"""What the headers of SEND, SUBSCRIBE, ACK and NACK ask of a queue, in the words of several brokers."""

import pytest

from qmq.broker.broker import Broker
from qmq.broker.consumers.subscription import Asks
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Settle
from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.errors import Refused
from qmq.gateways.headers import ack_timeout_us, consumer_asks, nack_reason, unsaid

from .test_stomp import ORIGIN, Client

SECOND_US = 1_000_000
SUBSCRIBE = "SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client-individual"
SEND = "SEND\ndestination:/queue/q\n\nx"


def consumer(*headers: str, version: str = "1.2", rules: QueueRules | None = None, keep_open: bool = False) -> Client:
    """A client with one subscription to /queue/q."""
    broker = None if rules is None else Broker(ORIGIN, 2, rules_of=lambda name: rules)
    client = Client(version, broker, keep_open=keep_open)
    assert not client.say("\n".join((SUBSCRIBE, *headers))).frames
    return client


def ack_of(client: Client, body: str = "x") -> str:
    """Send one message and give the value of its `ack` header."""
    ((headers, _),) = client.read(client.say(f"SEND\ndestination:/queue/q\n\n{body}"))
    return headers["ack"]


# SEND


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("priority:10", "bad-priority"),
        ("priority:high", "bad-priority"),
        ("expires:tomorrow", "bad-header"),
        ("ttl:-1", "bad-header"),
        ("expiration:1.5", "bad-header"),
        ("delay:1h", "bad-header"),
        ("AMQ_SCHEDULED_DELAY:", "bad-header"),
        ("ack-timeout:x", "bad-header"),
        ("JMSXGroupID:" + "g" * 256, "bad-header"),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_send_with_a_term_that_means_nothing_is_refused_each_time_and_nothing_is_accepted(
    header: str, code: str, again: bool
) -> None:
    client = Client()
    frame = f"SEND\ndestination:/queue/q\n{header}\n\nx"
    if again:
        Client(broker=client.broker, session=2).say(frame)

    out = client.say(frame)

    assert client.error(out)["error-code"] == code
    assert out.ending
    assert not out.records


@pytest.mark.parametrize("destination", ["/topic/t", "/fanout/f"])
def test_options_of_queues_mean_nothing_elsewhere_and_are_not_refused_there(destination: str) -> None:
    client = Client()

    out = client.say(f"SEND\ndestination:{destination}\npriority:high\nttl:x\nreceipt:r\n\nx")

    assert out.receipts == ["r"]
    assert not out.frames


def test_options_travel_to_the_consumer_as_they_were_said() -> None:
    client = consumer()

    ((headers, _),) = client.read(client.say("SEND\ndestination:/queue/q\npriority:7\nttl:60000\n\nx"))

    assert (headers["priority"], headers["ttl"]) == ("7", "60000")


def test_delayed_message_is_delivered_when_it_is_due() -> None:
    client = consumer()

    out = client.say("SEND\ndestination:/queue/q\ndelay:1000\nreceipt:r\n\nx")
    assert out.receipts == ["r"]
    assert client.read(out) == []
    assert client.read(client.later(SECOND_US - 1)) == []

    ((headers, body),) = client.read(client.later(1))
    assert body == b"x"
    assert "redelivered" not in headers


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, [("ttl", "1000"), ("priority", "7")]),
        ({"priority": "4"}, [("ttl", "1000")]),
        ({"ttl": "0"}, [("priority", "7")]),
        ({"expires": "5"}, [("priority", "7")]),
        ({"expiration": "5", "priority": "0"}, []),
    ],
)
def test_sender_that_says_nothing_gets_what_the_policy_says(
    said: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    assert unsaid(said, {"ttl": "1000", "priority": "7"}) == expected


# SUBSCRIBE


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("delivery-limit:-1", "bad-header"),
        ("delivery-limit:many", "bad-header"),
        ("delivery-limit:", "bad-header"),
        ("delivery-limit:1234567890", "bad-header"),
        ("redelivery-delay:soon", "bad-header"),
        ("redelivery-delay:-1", "bad-header"),
        ("ack-timeout:soon", "bad-header"),
        ("dead-letter:/topic/t", "bad-dead-letter"),
        ("dead-letter:/queue/", "bad-dead-letter"),
        ("dead-letter:nonsense", "bad-dead-letter"),
    ],
)
def test_subscription_that_asks_for_nonsense_is_refused_and_does_not_begin(header: str, code: str) -> None:
    client = Client()

    out = client.say(f"{SUBSCRIBE}\n{header}")

    assert client.error(out)["error-code"] == code
    assert not client.broker.sessions[1].subscriptions


def test_consumer_asks_only_for_what_it_says() -> None:
    assert consumer_asks({"ack-timeout": "1"}, 255) is None

    limit = consumer_asks({"delivery-limit": "0"}, 255)
    pause = consumer_asks({"redelivery-delay": "0.5"}, 255)
    target = consumer_asks({"dead-letter": ""}, 255)

    assert isinstance(limit, Asks) and isinstance(pause, Asks) and isinstance(target, Asks)
    assert (limit.delivery_limit, limit.redelivery_us, limit.dead_letter) == (0, None, None)
    assert (pause.delivery_limit, pause.redelivery_us, pause.dead_letter) == (None, 500_000, None)
    assert (target.delivery_limit, target.redelivery_us, target.dead_letter) == (None, None, "")


def test_ack_timeout_of_a_subscription_is_in_seconds_and_may_be_none() -> None:
    assert ack_timeout_us({}) == 0
    assert ack_timeout_us({"ack-timeout": "0"}) == 0
    assert ack_timeout_us({"ack-timeout": "1.5"}) == 1_500_000


def test_dead_letter_queue_that_does_not_exist_is_refused() -> None:
    client = Client(known=("/queue/q",))

    out = client.say(f"{SUBSCRIBE}\ndead-letter:/queue/unknown")

    assert client.error(out)["error-code"] == "bad-dead-letter"


def test_what_the_consumer_asks_comes_before_the_policy() -> None:
    client = consumer("delivery-limit:1", "dead-letter:/queue/mine")

    client.say(f"NACK\nid:{ack_of(client)}")

    assert client.broker.queues.by_name["/queue/mine"].depth == 1
    assert DEAD_LETTERS not in client.broker.queues.by_name


# NACK


def test_nack_may_say_that_there_is_no_use_in_trying_again() -> None:
    assert nack_reason({}) is Back.FAILED
    assert nack_reason({"requeue": "true"}) is Back.FAILED
    assert nack_reason({"requeue": "false"}) is Back.REJECTED
    for text in ("", "no", "0"):
        with pytest.raises(Refused) as refused:
            nack_reason({"requeue": text})
        assert refused.value.code == "bad-header"


def test_nack_with_a_wrong_reason_changes_nothing() -> None:
    client = consumer()
    ack = ack_of(client)

    out = client.say(f"NACK\nid:{ack}\nrequeue:maybe")

    assert client.error(out)["error-code"] == "bad-header"
    assert len(client.broker.queues.deliveries) == 1


@pytest.mark.parametrize("in_transaction", [False, True])
def test_rejected_message_goes_to_the_dead_letters_with_its_history(in_transaction: bool) -> None:
    client = consumer()
    reader = Client(broker=client.broker, session=2)
    reader.say(f"SUBSCRIBE\nid:0\ndestination:{DEAD_LETTERS}\nack:client-individual")
    ack = ack_of(client)

    if in_transaction:
        client.say("BEGIN\ntransaction:t", f"NACK\nid:{ack}\nrequeue:false\ntransaction:t")
        out = client.say("COMMIT\ntransaction:t")
    else:
        out = client.say(f"NACK\nid:{ack}\nrequeue:false")

    ((headers, body),) = reader.read(out)
    assert body == b"x"
    assert {name: value for name, value in headers.items() if name.startswith("dead-letter-")} == {
        "dead-letter-reason": "rejected",
        "dead-letter-from": "/queue/q",
        "dead-letter-id": f"{ORIGIN}-2",
        "dead-letter-deliveries": "1",
    }
    assert "redelivered" not in headers


def test_sender_cannot_say_that_its_message_is_a_dead_letter() -> None:
    client = consumer()

    names = ("dead-letter-reason", "dead-letter-from", "dead-letter-id", "dead-letter-deliveries")
    lines = "\n".join(f"{name}:/queue/secret" for name in names)
    ((headers, _),) = client.read(client.say(f"SEND\ndestination:/queue/q\n{lines}\n\nx"))

    assert not [name for name in headers if name.startswith("dead-letter-")]


def test_rejection_by_a_stomp_11_client_names_message_and_subscription() -> None:
    client = consumer(version="1.1")
    ((headers, _),) = client.read(client.say(SEND))

    client.say(f"NACK\nmessage-id:{headers['message-id']}\nsubscription:0\nrequeue:false")

    assert client.broker.queues.by_name[DEAD_LETTERS].depth == 1


# An ACK that comes too late


@pytest.mark.parametrize("verb", ["ACK", "NACK"])
def test_late_answer_is_ignored_and_its_receipt_sent(verb: str) -> None:
    client = consumer("ack-timeout:1", "prefetch-count:1")
    ack = ack_of(client)
    ((again, _),) = client.read(client.later(SECOND_US))

    out = client.say(f"{verb}\nid:{ack}\nreceipt:r")

    assert not out.frames
    assert not out.records
    assert out.receipts == ["r"]
    assert again["ack"] != ack
    assert again["redelivered"] == "true"
    assert len(client.say(f"ACK\nid:{again['ack']}").records) == 1


def test_late_answer_of_another_session_is_still_a_mistake() -> None:
    client = consumer("ack-timeout:1", "prefetch-count:1")
    ack = ack_of(client)
    client.later(SECOND_US)
    stranger = Client(broker=client.broker, session=2)

    assert stranger.error(stranger.say(f"ACK\nid:{ack}"))["error-code"] == "unknown-ack"


def test_late_answer_by_message_id_is_ignored() -> None:
    client = consumer("ack-timeout:1", "prefetch-count:1", version="1.1")
    ((headers, _),) = client.read(client.say(SEND))
    other = Client(broker=client.broker, session=2)
    other.say(SUBSCRIBE)
    assert len(other.read(client.later(SECOND_US))) == 1

    out = client.say(f"ACK\nmessage-id:{headers['message-id']}\nsubscription:0\nreceipt:r")

    assert not out.frames
    assert not out.records
    assert out.receipts == ["r"]


def in_client_mode(version: str) -> tuple[Client, list[dict[str, str]]]:
    """A client in `client` mode with three messages in hand, the second of which is taken back soon."""
    client = Client(version)
    client.say("SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client")
    client.say("SUBSCRIBE\nid:1\ndestination:/queue/other\nack:client")
    told: list[dict[str, str]] = []
    for wish in ("", "ack-timeout:1\n", ""):
        ((headers, _),) = client.read(client.say(f"SEND\ndestination:/queue/q\n{wish}\nx"))
        told.append(headers)
    assert client.read(client.say("SEND\ndestination:/queue/other\n\nx"))
    return client, told


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_late_ack_in_client_mode_settles_what_is_still_in_hand_from_before(version: str) -> None:
    client, (_, late, last) = in_client_mode(version)
    client.later(SECOND_US)
    named = {"1.2": f"id:{late.get('ack')}"}.get(version, f"message-id:{late['message-id']}\nsubscription:0")

    out = client.say(f"ACK\n{named}\nreceipt:r")

    (settle,) = out.records
    assert isinstance(settle, Settle) and [dot.sequence for dot in settle.dots] == [2]
    assert (out.receipts, out.frames) == (["r"], [])
    held = {d.message.sequence for d in client.broker.queues.deliveries.values()}
    assert int(last["message-id"].rpartition("-")[2]) in held and 2 not in held
    assert client.broker.queues.by_name["/queue/other"].held == 1
    assert not client.say(f"ACK\n{named}").records


def test_late_nack_in_client_mode_gives_back_what_is_still_in_hand_from_before() -> None:
    client, (first, late, last) = in_client_mode("1.2")
    client.later(SECOND_US)

    client.say(f"NACK\nid:{late['ack']}")

    tags = set(client.broker.queues.deliveries)
    assert int(first["ack"]) not in tags and int(last["ack"]) in tags


def test_late_ack_in_client_mode_is_about_nothing_when_its_subscription_has_ended() -> None:
    client, (_, late, _) = in_client_mode("1.2")
    client.later(SECOND_US)
    client.say("UNSUBSCRIBE\nid:0")

    out = client.say(f"ACK\nid:{late['ack']}\nreceipt:r")

    assert (out.records, out.frames, out.receipts) == ([], [], ["r"])


def test_id_that_was_never_given_is_no_late_one() -> None:
    client = consumer("ack-timeout:1")
    ack = ack_of(client)
    client.later(SECOND_US)

    assert client.error(client.say(f"ACK\nid:{int(ack) + 99}"))["error-code"] == "unknown-ack"


def test_commit_with_an_ack_that_has_become_late_is_refused_and_nothing_of_it_is_done() -> None:
    client = consumer("ack-timeout:1", "prefetch-count:1")
    ack = ack_of(client)
    client.say("BEGIN\ntransaction:t", f"ACK\nid:{ack}\ntransaction:t")
    client.say("SEND\ndestination:/queue/out\ntransaction:t\n\nout")
    client.later(SECOND_US)

    out = client.say("COMMIT\ntransaction:t")

    assert client.error(out)["error-code"] == "unknown-ack"
    assert not out.records
    assert "/queue/out" not in client.broker.queues.by_name


def test_full_queue_that_drops_sends_no_error() -> None:
    client = Client(broker=Broker(ORIGIN, 2, rules_of=lambda name: QueueRules(messages_max=1, overflow="drop-newest")))

    outs = [client.say(f"SEND\ndestination:/queue/q\nreceipt:{number}\n\nx") for number in range(2)]

    assert [out.receipts for out in outs] == [["0"], ["1"]]
    assert [len(out.records) for out in outs] == [1, 0]


def test_a_dead_letter_queue_has_a_name_that_can_be_subscribed_to() -> None:
    client = Client()
    longest = "/queue/" + "d" * 248

    fits = client.say(f"SUBSCRIBE\nid:0\ndestination:/queue/q\ndead-letter:{longest}\nreceipt:r")
    refused = client.say(f"SUBSCRIBE\nid:1\ndestination:/queue/q\ndead-letter:{longest}d")

    assert fits.receipts == ["r"]
    assert client.error(refused)["error-code"] == "destination-too-long"


@pytest.mark.parametrize("name", ["consumer-priority", "x-priority", "activemq.priority"])
def test_a_consumer_with_a_priority_is_served_first(name: str) -> None:
    client = Client()
    for id, priority in (("low", "-3"), ("plain", "0"), ("high", "7")):
        client.say(f"SUBSCRIBE\nid:{id}\ndestination:/queue/q\nprefetch-count:1\nack:client\n{name}:{priority}")

    got = [client.read(client.say("SEND\ndestination:/queue/q\n\nx"))[0][0]["subscription"] for _ in range(3)]

    assert got == ["high", "plain", "low"]


@pytest.mark.parametrize("text", ["", "high", "1.5", "+1", "9223372036854775808", "1" * 5000])
def test_a_priority_of_a_consumer_that_is_no_number_is_refused(text: str) -> None:
    client = Client()

    out = client.say(f"SUBSCRIBE\nid:1\ndestination:/queue/q\nconsumer-priority:{text}")

    assert client.error(out)["error-code"] == "bad-header"
