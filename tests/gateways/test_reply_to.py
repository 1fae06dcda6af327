"""`reply-to` in the words of RabbitMQ and of ActiveMQ, and what a reply address may be used for."""

import pytest

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.gateways.encode import tail_of

from .test_stomp import ORIGIN, Client

REQUEST = "SEND\ndestination:/queue/work\nreply-to:/temp-queue/answers\ncorrelation-id:1\n\nhow much?"


def pair(*, keep_open: bool = False) -> tuple[Client, Client]:
    broker = Broker(ORIGIN, 2)
    return Client(broker=broker, session=1), Client(broker=broker, session=2, keep_open=keep_open)


def address_in(worker: Client, out: Outcome) -> str:
    ((headers, _),) = worker.read(out)
    assert headers["correlation-id"] == "1"
    return headers["reply-to"]


def heard(out: Outcome) -> list[tuple[int, bytes]]:
    """(session, frame) of what temporary queues and topics are told."""
    return [
        (subscription.session, subscription.prefix + tail_of(message))
        for run in out.topic_runs
        for subscription in run.subscriptions
        for message in run.messages
    ]


def test_a_request_makes_its_queue_and_the_answer_comes_under_its_name() -> None:
    asker, worker = pair()
    worker.say("SUBSCRIBE\nid:0\ndestination:/queue/work")

    address = address_in(worker, asker.say(REQUEST))
    out = worker.say(f"SEND\ndestination:{address}\ncorrelation-id:1\n\nthat much")

    assert address.startswith("/reply-queue/")
    ((session, frame),) = heard(out)
    assert session == 1
    assert frame.startswith(b"MESSAGE\nsubscription:/temp-queue/answers\nmessage-id:")
    assert b"\ndestination:/temp-queue/answers\ncorrelation-id:1\n" in frame
    assert frame.endswith(b"\n\nthat much\0\n")


def test_an_explicit_subscription_names_the_answers_as_it_likes() -> None:
    asker, worker = pair()
    worker.say("SUBSCRIBE\nid:0\ndestination:/queue/work")

    asker.say("SUBSCRIBE\nid:7\ndestination:/temp-queue/answers\nack:client-individual")
    address = address_in(worker, asker.say(REQUEST))
    out = worker.say(f"SEND\ndestination:{address}\n\nthat much")

    ((_, frame),) = heard(out)
    assert frame.startswith(b"MESSAGE\nsubscription:7\nack:none\n")
    assert not asker.say("ACK\nid:none\nreceipt:r").frames


def test_the_same_header_block_of_two_sessions_means_two_queues() -> None:
    asker, worker = pair()
    other = Client(broker=asker.broker, session=3)
    worker.say("SUBSCRIBE\nid:0\ndestination:/queue/work")
    other.connection = asker.connection  # one cache of header blocks, as in a node

    first, second = address_in(worker, asker.say(REQUEST)), address_in(worker, other.say(REQUEST))
    again = address_in(worker, asker.say(REQUEST))

    assert first != second
    assert first == again


def test_a_session_may_send_to_its_own_queue() -> None:
    asker, _ = pair()
    asker.say("SUBSCRIBE\nid:7\ndestination:/temp-queue/mine")

    assert [session for session, _ in heard(asker.say("SEND\ndestination:/temp-queue/mine\n\nx"))] == [1]


def test_a_queue_that_the_session_has_not_is_refused() -> None:
    _, other = pair()

    out = other.say("SEND\ndestination:/temp-queue/mine\nreceipt:r\n\nx")

    assert other.error(out)["error-code"] == "unknown-destination"


@pytest.mark.parametrize("keep_open", [False, True])
def test_a_receipted_answer_that_no_client_waits_for_is_refused(keep_open: bool) -> None:
    asker, worker = pair(keep_open=keep_open)
    worker.say("SUBSCRIBE\nid:0\ndestination:/queue/work")
    address = address_in(worker, asker.say(REQUEST))
    asker.broker.close_session(1, Outcome())

    out = worker.say(f"SEND\ndestination:{address}\nreceipt:r\n\nthat much")

    assert worker.error(out)["error-code"] == "unknown-destination"
    assert out.ending is not keep_open


def test_without_a_receipt_or_in_a_transaction_it_is_dropped() -> None:
    asker, worker = pair()
    worker.say("SUBSCRIBE\nid:0\ndestination:/queue/work")
    address = address_in(worker, asker.say(REQUEST))
    asker.broker.close_session(1, Outcome())

    plain = worker.say(f"SEND\ndestination:{address}\n\nthat much")
    together = worker.say(
        "BEGIN\ntransaction:t",
        f"SEND\ndestination:{address}\ntransaction:t\nreceipt:s\n\nthat much",
        "COMMIT\ntransaction:t\nreceipt:r",
    )

    assert not (plain.frames or heard(plain) or together.frames or heard(together))
    assert together.receipts == ["s", "r"]
    assert asker.broker.replies.dropped == 2


@pytest.mark.parametrize("reply_to", ["/queue/answers", "/reply-queue/b-0000000000000002.1.2.3", "anything"])
def test_other_words_in_reply_to_travel_unchanged(reply_to: str) -> None:
    asker, worker = pair()
    worker.say("SUBSCRIBE\nid:0\ndestination:/queue/work")

    out = asker.say(f"SEND\ndestination:/queue/work\nreply-to:{reply_to}\n\nx")

    ((headers, _),) = worker.read(out)
    assert headers["reply-to"] == reply_to
    assert len(asker.broker.replies) == 0


@pytest.mark.parametrize("name", ["/temp-queue/", "/temp-queue/a*"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    asker, _ = pair()

    out = asker.say(f"SEND\ndestination:/queue/work\nreply-to:{name}\nreceipt:r\n\nx")

    assert asker.error(out)["error-code"] in ("bad-destination", "bad-pattern")


def test_temporary_queues_need_no_configuration() -> None:
    asker = Client(known=("/queue/work",))

    out = asker.say(
        REQUEST, "SUBSCRIBE\nid:1\ndestination:/temp-queue/more\nreceipt:r", "SEND\ndestination:/temp-queue/more\n\nx"
    )

    assert out.receipts == ["r"]
    assert len(heard(out)) == 1
