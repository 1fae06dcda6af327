"""The STOMP gateway: what each row of the contract's table answers, without a socket or a clock."""

import pytest

from qmq.access.rights import AccessTable
from qmq.access.rules import ANONYMOUS
from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import BESIDE_BYTES_MAX, COST_MAX, Outcome
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import REDELIVERY_US_MIN
from qmq.broker.selectors import compile_selector
from qmq.gateways.encode import encode_deliveries
from qmq.gateways.error_frames import encode_error
from qmq.gateways.paused import PauseReason
from qmq.gateways.rules import Rules
from qmq.gateways.stomp import StompGateway
from qmq.model.dots import Origin
from qmq.wire.stomp import Connection, Role, Version

ORIGIN = Origin("a", 0x0123456789ABCDEF)
NOW_US = 1_000_000


class Client:
    """One logged-in client and the node's broker; `say` gives the Outcome of one read."""

    def __init__(
        self,
        version: str = "1.2",
        broker: Broker | None = None,
        session: int = 1,
        *,
        keep_open: bool = False,
        known: tuple[str, ...] | None = None,
        memory_only: tuple[str, ...] = (),
    ) -> None:
        self.broker = broker or Broker(ORIGIN, 2)
        self.session = session
        self.now_us = NOW_US
        self.broker.open_session(session)
        self.connection = Connection(Role.SERVER, gathers=True)
        self.connection.receive(f"CONNECT\naccept-version:{version}\nhost:x\n\n\0".encode())
        rules = Rules(
            policy=lambda name: (known is None or name in known, name not in memory_only),
            prefetch_default=100,
            prefetch_max=1000,
            destination_bytes_max=255,
        )
        self.gateway = StompGateway(
            session, self.broker, rules, self.connection.version, keep_open, rights=AccessTable().rights_of(ANONYMOUS)
        )

    def say(self, *frames: str) -> Outcome:
        (out,) = self.outcomes(*frames)
        return out

    def outcomes(self, *frames: str) -> list[Outcome]:
        """As `say`, where the gateway hands some of the frames back."""
        # A frame without a body is written here without the blank line that ends its headers.
        whole = (frame if "\n\n" in frame else f"{frame}\n\n" for frame in frames)
        left = self.connection.receive(b"".join(frame.encode() + b"\0" for frame in whole))
        assert self.connection.error is None
        outcomes: list[Outcome] = []
        while left or not outcomes:
            out = Outcome(self.session)
            paused = self.gateway.handle(left, self.now_us, out)
            assert paused is None or paused.reason is PauseReason.TURN
            left = [] if paused is None else paused.frames
            outcomes.append(self.told(out))
        return outcomes

    def later(self, microseconds: int) -> Outcome:
        """What the node decides when time has passed."""
        self.now_us += microseconds
        out = Outcome(now_us=self.now_us)
        self.broker.tick(out)
        return self.told(out)

    def told(self, out: Outcome) -> Outcome:
        """Record and tell, as a server would."""
        self.broker.finish(out, self.now_us)
        for deliveries in (*out.deliveries_now.values(), *out.deliveries_after.values()):
            for delivery in self.broker.queues.start_ack_timeouts(deliveries, self.now_us):
                delivery.sent = True
        return out

    def read(self, out: Outcome) -> list[tuple[dict[str, str], bytes]]:
        """The queue messages that `out` tells this client, as the client's codec sees them."""
        receiver = Connection(Role.CLIENT)
        receiver.receive(f"CONNECTED\nversion:{self.connection.version.text}\n\n\0".encode())
        seen = []
        for deliveries in (out.deliveries_now, out.deliveries_after):
            for subscription, run in deliveries.items():
                if subscription.session == self.session:
                    for frame in receiver.receive(encode_deliveries(subscription, run, self.connection.version)):
                        seen.append((frame.head.headers, frame.body))
        return seen

    def frames(self, out: Outcome) -> list[tuple[str, dict[str, str]]]:
        """What `out` answers with, beside receipts."""
        receiver = Connection(Role.CLIENT)
        receiver.receive(b"CONNECTED\nversion:1.2\n\n\0")
        return [(f.head.command, f.head.headers) for data in out.frames for f in receiver.receive(data)]

    def error(self, out: Outcome) -> dict[str, str]:
        """The headers of the one ERROR that `out` answers with."""
        assert len(out.frames) == 1
        receiver = Connection(Role.CLIENT)
        receiver.receive(b"CONNECTED\nversion:1.2\n\n\0")
        (frame,) = receiver.receive(out.frames[0])
        assert frame.head.command == "ERROR"
        assert frame.body
        return frame.head.headers


def test_send_to_a_fanout_is_recorded_before_its_receipt() -> None:
    client = Client()

    out = client.say("SEND\ndestination:/fanout/news\nreceipt:r1\n\nhello")

    assert out.needs_commit
    assert out.receipts == ["r1"]
    assert [record.body for record in out.records] == [b"hello"]  # type: ignore[union-attr]


def test_send_to_a_topic_needs_no_commit() -> None:
    client = Client()

    out = client.say("SEND\ndestination:/topic/news\nreceipt:r1\n\nhello")

    assert not out.needs_commit
    assert out.receipts == ["r1"]


def test_persistent_false_keeps_a_queue_message_in_memory() -> None:
    client = Client()

    assert not client.say("SEND\ndestination:/queue/q\npersistent:false\n\nx").records
    assert client.say("SEND\ndestination:/queue/q\npersistent:true\n\nx").records


def test_a_queue_configured_as_memory_only_is_not_recorded() -> None:
    client = Client(memory_only=("/queue/fast",))

    assert not client.say("SEND\ndestination:/queue/fast\n\nx").records


def test_user_headers_travel_and_control_headers_do_not() -> None:
    client = Client()
    client.say("SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client-individual")

    out = client.say(
        "SEND\ndestination:/queue/q\ncolour:a\\cb\nreceipt:r\npersistent:true\nmessage-id:forged\nack:forged\n"
        "redelivered:true\nsubscription:forged\ncontent-type:text/plain\n\nx"
    )

    ((headers, body),) = client.read(out)
    assert headers["colour"] == "a:b"
    assert headers["content-type"] == "text/plain"
    assert headers["subscription"] == "0"
    assert headers["message-id"] == f"{ORIGIN}-2"
    assert headers["ack"].isdigit()
    assert not {"receipt", "persistent", "redelivered"} & headers.keys()
    assert body == b"x"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("SEND\nreceipt:r\n\nx", "missing-header"),
        ("SEND\ndestination:news\nreceipt:r\n\nx", "bad-destination"),
        ("SEND\ndestination:/queue/\nreceipt:r\n\nx", "bad-destination"),
        ("SEND\ndestination:/topic/a*\nreceipt:r\n\nx", "bad-destination"),
        ("SEND\ndestination:/queue/q\npersistent:maybe\nreceipt:r\n\nx", "bad-header"),
        (f"SEND\ndestination:/queue/{'q' * 300}\nreceipt:r\n\nx", "destination-too-long"),
        ("SUBSCRIBE\nid:0\nreceipt:r", "missing-header"),
        ("SUBSCRIBE\nid:0\ndestination:/queue/q\nack:later\nreceipt:r", "bad-ack-mode"),
        ("SUBSCRIBE\nid:0\ndestination:/queue/q*\nreceipt:r", "bad-pattern"),
        ("SUBSCRIBE\nid:0\ndestination:/topic/a*b*\nreceipt:r", "bad-pattern"),
        ("SUBSCRIBE\nid:0\ndestination:/control/status\nreceipt:r", "bad-destination"),
        ("SUBSCRIBE\nid:0\ndestination:/queue/q\nprefetch-count:-1\nreceipt:r", "bad-prefetch"),
        ("SUBSCRIBE\nid:0\ndestination:/queue/q\nprefetch:0\nreceipt:r", "bad-prefetch"),
        ("SUBSCRIBE\nid:0\ndestination:/fanout/f\nx-stream-offset:yesterday\nreceipt:r", "bad-offset"),
        ("SUBSCRIBE\nid:0\ndestination:/fanout/f\nqmq-resume:a=1\nreceipt:r", "bad-resume"),
        ("UNSUBSCRIBE\nid:9\nreceipt:r", "unknown-subscription"),
        ("ACK\nid:17\nreceipt:r", "unknown-ack"),
        ("ACK\nid:one\nreceipt:r", "unknown-ack"),
        ("ACK\nreceipt:r", "unknown-ack"),
        ("NACK\nid:17\nreceipt:r", "unknown-ack"),
        ("BEGIN\nreceipt:r", "missing-header"),
        ("COMMIT\ntransaction:t\nreceipt:r", "unknown-transaction"),
        ("ABORT\ntransaction:t\nreceipt:r", "unknown-transaction"),
        ("SEND\ndestination:/queue/q\ntransaction:t\nreceipt:r\n\nx", "unknown-transaction"),
    ],
)
def test_what_the_rules_forbid_gets_an_error_with_its_receipt_and_ends_the_session(frame: str, code: str) -> None:
    client = Client()

    out = client.say(frame)

    error = client.error(out)
    assert error["error-code"] == code
    assert error["receipt-id"] == "r"
    assert error["message"]
    assert out.ending
    assert not out.receipts
    assert not out.records


def test_frames_before_a_refused_one_stand_and_those_after_it_do_not() -> None:
    client = Client()

    out = client.say(
        "SEND\ndestination:/fanout/f\nreceipt:1\n\nkept",
        "SEND\ndestination:nowhere\nreceipt:2\n\nrefused",
        "SEND\ndestination:/fanout/f\nreceipt:3\n\nnever",
    )

    assert [record.body for record in out.records] == [b"kept"]  # type: ignore[union-attr]
    assert out.receipts == ["1"]
    assert client.error(out)["receipt-id"] == "2"


def test_keep_open_survives_an_unknown_destination_but_no_protocol_mistake() -> None:
    client = Client(keep_open=True, known=("/queue/q",))

    first = client.say("SEND\ndestination:/queue/other\nreceipt:1\n\nx")
    second = client.say("SEND\ndestination:/queue/q\nreceipt:2\n\ny", "UNSUBSCRIBE\nid:9")

    assert client.error(first)["error-code"] == "unknown-destination"
    assert not first.ending
    assert second.receipts == ["2"]
    assert second.ending


def test_frames_after_a_refused_one_are_handed_back_for_answers_that_come_after_its_own() -> None:
    client = Client(keep_open=True, known=("/queue/q",))
    frames = client.connection.receive(
        b"SEND\ndestination:/queue/q\nreceipt:1\n\nx\0"
        b"SEND\ndestination:/queue/other\nreceipt:2\n\nx\0"
        b"SEND\ndestination:/queue/q\nreceipt:3\n\nx\0"
    )
    first, second = Outcome(client.session), Outcome(client.session)

    paused = client.gateway.handle(frames, NOW_US, first)
    assert paused is not None
    after = client.gateway.handle(paused.frames, NOW_US, second)

    assert (paused.reason, paused.frames) == (PauseReason.TURN, frames[2:])
    assert after is None
    assert first.receipts == ["1"]
    assert client.error(first)["receipt-id"] == "2"
    assert second.receipts == ["3"]


def test_a_refused_frame_of_a_transaction_ends_the_session_so_that_nothing_commits_without_it() -> None:
    client = Client(keep_open=True, known=("/queue/q",))

    out = client.say(
        "BEGIN\ntransaction:t",
        "SEND\ndestination:/queue/q\ntransaction:t\n\none",
        "SEND\ndestination:/queue/other\ntransaction:t\n\ntwo",
        "COMMIT\ntransaction:t\nreceipt:c",
    )

    assert client.error(out)["error-code"] == "unknown-destination"
    assert out.ending
    assert not out.records
    assert not out.receipts


def test_a_commit_ends_its_outcome_and_begins_one_behind_much_else() -> None:
    client = Client()
    large, small = "x" * BESIDE_BYTES_MAX, "x"
    transaction = ["BEGIN\ntransaction:t", "SEND\ndestination:/queue/q\ntransaction:t\n\n1", "COMMIT\ntransaction:t"]

    behind_small = client.outcomes(f"SEND\ndestination:/queue/q\n\n{small}", *transaction, "BEGIN\ntransaction:u")
    behind_large = client.outcomes(f"SEND\ndestination:/queue/q\n\n{large}", *transaction, "BEGIN\ntransaction:v")

    assert [len(out.records) for out in behind_small] == [2, 0]
    assert [len(out.records) for out in behind_large] == [1, 1, 0]


@pytest.mark.parametrize("destination", ["/topic/t", "/fanout/f"])
def test_frames_that_set_off_much_selecting_are_obeyed_in_turns(destination: str) -> None:
    client = Client()
    for id in range(100):
        selector = " OR ".join([f"t LIKE '%a_a_{id}_a%'"] * 20)
        client.say(f"SUBSCRIBE\nid:{id}\ndestination:{destination}\nselector:{selector}")
    cost = 100 * compile_selector(selector).cost

    outcomes = client.outcomes(*[f"SEND\ndestination:{destination}\nt:{n}\nreceipt:{n}\n\nx" for n in range(50)])

    assert [receipt for out in outcomes for receipt in out.receipts] == [str(n) for n in range(50)]
    assert max(len(out.receipts) for out in outcomes) * cost < COST_MAX + cost


@pytest.mark.parametrize(
    ("asks", "in_one_turn"),
    [
        ("destination:/topic/t\nselector:" + " OR ".join([f"t LIKE '%a_b{n}%c'" for n in range(120)]), 4),
        ("destination:/topic/{id}" + ".x" * 110 + ".*", 12),
        ("destination:/topic/{id}\nselector:t = 1", 100),
    ],
)
def test_subscriptions_that_take_long_to_read_are_obeyed_in_turns(asks: str, in_one_turn: int) -> None:
    client = Client()

    outcomes = client.outcomes(
        *[f"SUBSCRIBE\nid:{id}\nreceipt:{id}\n{asks.replace('{id}', str(id))}\n\n" for id in range(100)]
    )

    assert sum(len(out.receipts) for out in outcomes) == 100
    assert max(len(out.receipts) for out in outcomes) <= in_one_turn


def test_frames_of_one_header_block_are_selected_from_once() -> None:
    client = Client()
    for id in range(100):
        selector = " OR ".join([f"t LIKE '%a_a_{id}_a%'"] * 20)
        client.say(f"SUBSCRIBE\nid:{id}\ndestination:/topic/t\nselector:{selector}")

    (out,) = client.outcomes(*["SEND\ndestination:/topic/t\nt:a\n\nx"] * 50)

    assert [len(run.messages) for run in out.topic_runs] == [50]


def test_selecting_that_is_over_costs_no_turn() -> None:
    client = Client()
    for destination in ("/topic/t", "/fanout/f"):
        for id in range(100):
            selector = " OR ".join([f"t LIKE '%a_a_{id}_a%'"] * 20)
            client.say(f"SUBSCRIBE\nid:{id}\ndestination:{destination}\nselector:{selector}")
        for id in range(100):
            client.say(f"UNSUBSCRIBE\nid:{id}")

    for destination in ("/topic/t", "/fanout/f"):
        assert len(client.outcomes(*[f"SEND\ndestination:{destination}\nt:{n}\n\nx" for n in range(50)])) == 1


def test_a_duplicate_subscription_id_is_refused() -> None:
    client = Client()
    client.say("SUBSCRIBE\nid:0\ndestination:/topic/a")

    out = client.say("SUBSCRIBE\nid:0\ndestination:/topic/b")

    assert client.error(out)["error-code"] == "duplicate-subscription"


def test_acknowledging_twice_is_refused_even_within_one_read() -> None:
    client = Client()
    client.say("SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client-individual")
    ((headers, _),) = client.read(client.say("SEND\ndestination:/queue/q\n\nx"))

    out = client.say(f"ACK\nid:{headers['ack']}\nreceipt:1", f"ACK\nid:{headers['ack']}\nreceipt:2")

    assert out.receipts == ["1"]
    assert client.error(out)["error-code"] == "unknown-ack"
    assert len(out.records) == 1


def test_one_session_cannot_settle_the_messages_of_another() -> None:
    ann = Client(session=1)
    bob = Client(broker=ann.broker, session=2)
    ann.say("SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client")
    ((headers, _),) = ann.read(ann.say("SEND\ndestination:/queue/q\n\nx"))

    out = bob.say(f"ACK\nid:{headers['ack']}")

    assert bob.error(out)["error-code"] == "unknown-ack"


def test_client_ack_covers_what_was_delivered_before() -> None:
    client = Client()
    client.say("SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client")
    seen = client.read(client.say(*[f"SEND\ndestination:/queue/q\n\n{n}" for n in range(3)]))

    out = client.say(f"ACK\nid:{seen[1][0]['ack']}")

    (settle,) = out.records
    assert [dot.sequence for dot in settle.dots] == [2, 3]  # type: ignore[union-attr]


def test_a_refused_message_comes_back_marked_and_counted() -> None:
    client = Client()
    client.say("SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client-individual")
    ((first, _),) = client.read(client.say("SEND\ndestination:/queue/q\n\nx"))

    refused = client.say(f"NACK\nid:{first['ack']}")
    early = client.later(REDELIVERY_US_MIN - 1)
    ((second, body),) = client.read(client.later(1))

    assert client.read(refused) == client.read(early) == []
    assert second["redelivered"] == "true"
    assert second["delivery-count"] == "2"
    assert second["message-id"] == first["message-id"]
    assert second["ack"] != first["ack"]
    assert body == b"x"


@pytest.mark.parametrize("kind", ["/topic/t", "/fanout/f"])
def test_topic_and_fanout_messages_need_no_ack_but_one_is_accepted(kind: str) -> None:
    client = Client()
    out = client.say(f"SUBSCRIBE\nid:0\ndestination:{kind}\nack:client")
    (subscription,) = client.broker.sessions[1].subscriptions.values()

    answered = client.say("ACK\nid:none\nreceipt:r")

    assert not out.frames
    assert b"ack:none\n" in subscription.prefix
    assert answered.receipts == ["r"]
    assert not answered.frames


def test_stomp_11_settles_by_message_id_and_subscription() -> None:
    client = Client("1.1")
    client.say("SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client-individual")
    ((headers, _),) = client.read(client.say("SEND\ndestination:/queue/q\n\nx"))

    out = client.say(f"ACK\nmessage-id:{headers['message-id']}\nsubscription:0\nreceipt:r")
    again = client.say(f"ACK\nmessage-id:{headers['message-id']}\nsubscription:0")

    assert "ack" not in headers
    assert len(out.records) == 1
    assert out.receipts == ["r"]
    assert client.error(again)["error-code"] == "unknown-ack"


def test_a_stomp_11_client_can_acknowledge_after_it_aborted() -> None:
    client = Client("1.1")
    client.say("SUBSCRIBE\nid:0\ndestination:/queue/q\nack:client-individual")
    ((headers, _),) = client.read(client.say("SEND\ndestination:/queue/q\n\nx"))
    ack = f"ACK\nmessage-id:{headers['message-id']}\nsubscription:0\n"

    client.say("BEGIN\ntransaction:t", f"{ack}transaction:t", "ABORT\ntransaction:t")
    out = client.say(f"{ack}receipt:r")

    assert out.receipts == ["r"]


@pytest.mark.parametrize("lines", ["destination:/queue/q", "destination:/fanout/f\ndurable:true"])
def test_a_stomp_11_client_cannot_acknowledge_before_anything_was_delivered(lines: str) -> None:
    client = Client("1.1")
    client.say(f"SUBSCRIBE\nid:0\n{lines}\nack:client-individual")

    out = client.say("ACK\nmessage-id:a-1-1\nsubscription:0\nreceipt:r")

    assert out.receipts == []
    assert client.error(out)["error-code"] == "unknown-ack"


def test_stomp_10_needs_no_ids_and_an_unknown_ack_is_ignored() -> None:
    client = Client("1.0")
    client.say("SUBSCRIBE\ndestination:/queue/q\nack:client")
    ((headers, _),) = client.read(client.say("SEND\ndestination:/queue/q\n\nx"))

    out = client.say(f"ACK\nmessage-id:{headers['message-id']}", "ACK\nmessage-id:never-seen\nreceipt:r")
    ended = client.say("UNSUBSCRIBE\ndestination:/queue/q\nreceipt:u")

    assert "subscription" not in headers
    assert len(out.records) == 1
    assert out.receipts == ["r"]
    assert not out.frames
    assert ended.receipts == ["u"]


def test_a_transaction_is_applied_at_commit_in_one_outcome_with_its_receipts() -> None:
    client = Client()
    client.say("SUBSCRIBE\nid:0\ndestination:/queue/in\nack:client-individual")
    ((headers, _),) = client.read(client.say("SEND\ndestination:/queue/in\n\njob"))

    held = client.say(
        "BEGIN\ntransaction:t\nreceipt:b",
        "SEND\ndestination:/queue/out\ntransaction:t\nreceipt:s\n\ndone",
        f"ACK\nid:{headers['ack']}\ntransaction:t\nreceipt:a",
    )
    out = client.say("COMMIT\ntransaction:t\nreceipt:c")

    assert held.receipts == ["b"]
    assert not held.records
    assert len(out.records) == 2
    assert out.receipts == ["s", "a", "c"]


def test_an_aborted_transaction_leaves_nothing() -> None:
    client = Client()

    client.say("BEGIN\ntransaction:t", "SEND\ndestination:/queue/q\ntransaction:t\nreceipt:s\n\nx")
    out = client.say("ABORT\ntransaction:t\nreceipt:a")

    assert out.receipts == ["a"]
    assert not out.records
    assert not client.broker.queues.by_name


def test_a_question_stops_the_frames_after_it_until_it_is_answered() -> None:
    client = Client()

    out = Outcome(client.session)
    frames = client.connection.receive(
        b"SEND\ndestination:/queue/q\nreceipt:1\n\nx\0"
        b"SEND\ndestination:/control/status\nreceipt:2\n\n\0"
        b"SEND\ndestination:/queue/q\nreceipt:3\n\ny\0"
    )
    paused = client.gateway.handle(frames, NOW_US, out)
    assert paused is not None
    answered = Outcome(client.session)
    client.gateway.send_answer(paused.frames[0], {"asked": "yes"}, b"", NOW_US, answered)

    assert out.receipts == ["1"]
    assert (paused.reason, paused.frames) == (PauseReason.CONTROL, frames[1:])
    assert client.frames(answered) == [("RECEIPT", {"receipt-id": "2", "asked": "yes"})]


def test_a_request_without_receipt_and_reply_to_has_no_response() -> None:
    client = Client()
    (question,) = client.connection.receive(b"SEND\ndestination:/control/status\n\n\0")

    out = Outcome(client.session)
    client.gateway.send_answer(question, {"asked": "yes"}, b"{}", NOW_US, out)

    assert not (out.frames or out.receipts or out.topic_runs)


def test_disconnect_is_receipted_and_ends_the_session() -> None:
    client = Client()

    out = client.say("DISCONNECT\nreceipt:bye")

    assert out.receipts == ["bye"]
    assert out.ending


def test_prefetch_is_understood_in_every_word_in_use_and_cut_to_the_limit() -> None:
    client = Client()
    for number, header in enumerate(("prefetch-count:7", "prefetch:7", "activemq.prefetchSize:7", "credit:7,1000")):
        client.say(f"SUBSCRIBE\nid:{number}\ndestination:/queue/q\nack:client\n{header}")
    client.say("SUBSCRIBE\nid:most\ndestination:/queue/q\nack:client\nprefetch:99999")

    credits = [subscription.credit for subscription in client.broker.sessions[1].subscriptions.values()]

    assert credits == [7, 7, 7, 7, 1000]


def test_messages_for_old_versions_are_escaped_as_those_versions_read_them() -> None:
    broker = Broker(ORIGIN, 2)
    sender = Client(broker=broker)
    for session, version in ((2, "1.0"), (3, "1.1"), (4, "1.2")):
        Client(version, broker, session).say(f"SUBSCRIBE\nid:s{session}\ndestination:/queue/{version}")
    seen = {}
    for version in ("1.0", "1.1", "1.2"):
        out = sender.say(f"SEND\ndestination:/queue/{version}\nnote:a\\cb\n\nx")
        ((subscription, run),) = out.deliveries_after.items()
        wire = encode_deliveries(subscription, run, Version(int(version.replace(".", ""))))
        seen[version] = next(line for line in wire.split(b"\n") if line.startswith(b"note"))

    assert seen == {"1.0": b"note:a:b", "1.1": b"note:a\\cb", "1.2": b"note:a\\cb"}


def test_a_nack_of_a_topic_message_in_a_transaction_is_receipted() -> None:
    client = Client()
    client.say("SUBSCRIBE\nid:0\ndestination:/topic/t\nack:client", "BEGIN\ntransaction:t")

    assert client.say("NACK\nid:none\ntransaction:t\nreceipt:r").receipts == ["r"]


def test_a_refused_negotiation_names_the_versions_that_are_spoken() -> None:
    connection = Connection(Role.SERVER)
    connection.receive(b"CONNECT\naccept-version:9.9\nhost:x\n\n\0")
    assert connection.error is not None

    frame = encode_error(connection.error, None, Version.V12)

    assert b"\nversion:1.0,1.1,1.2\n" in frame


@pytest.mark.parametrize(
    "frame",
    [
        "SEND\ndestination:/queue/3\nreceipt:r\n\nx",
        "SEND\ndestination:/fanout/3\nreceipt:r\n\nx",
        "SUBSCRIBE\nid:9\ndestination:/queue/3\nreceipt:r",
        "SUBSCRIBE\nid:9\ndestination:/topic/3\nreceipt:r",
        "SUBSCRIBE\nid:9\ndestination:/fanout/3\nreceipt:r",
    ],
)
def test_one_destination_too_many_is_refused_and_those_that_live_go_on(frame: str) -> None:
    client = Client(broker=Broker(ORIGIN, 2, limits=BrokerLimits(destinations_max=3)), keep_open=True)
    client.say(
        "SEND\ndestination:/queue/0\n\nx",
        "SEND\ndestination:/fanout/1\n\nx",
        "SUBSCRIBE\nid:2\ndestination:/topic/2",
    )

    out = client.say(frame)
    others = client.say(
        "SEND\ndestination:/queue/0\nreceipt:1\n\nx",
        "SEND\ndestination:/fanout/1\nx:y\nreceipt:2\n\nx",
        "SUBSCRIBE\nid:3\ndestination:/topic/2\nreceipt:3",
    )

    assert client.error(out)["error-code"] == "too-many-destinations"
    assert others.receipts == ["1", "2", "3"]


def test_a_destination_that_is_not_used_any_more_makes_room() -> None:
    client = Client(broker=Broker(ORIGIN, 2, limits=BrokerLimits(destinations_max=1)), keep_open=True)
    client.say("SUBSCRIBE\nid:0\ndestination:/topic/0", "UNSUBSCRIBE\nid:0")

    assert client.say("SUBSCRIBE\nid:1\ndestination:/queue/1\nreceipt:r").receipts == ["r"]


def test_receipts_and_destinations_count_against_the_bytes_of_a_transaction() -> None:
    client = Client(broker=Broker(ORIGIN, 2, limits=BrokerLimits(transaction_bytes_max=10_000)), keep_open=True)
    client.say("BEGIN\ntransaction:t")

    out = client.say(*[f"SEND\ndestination:/queue/q\ntransaction:t\nreceipt:{'r' * 4000}{n}\n\n" for n in range(3)])

    assert client.error(out)["error-code"] == "transaction-too-large"


def test_a_stomp_10_client_may_acknowledge_twice_within_one_read() -> None:
    client = Client("1.0")
    client.say("SUBSCRIBE\ndestination:/queue/q\nack:client-individual")
    ((headers, _),) = client.read(client.say("SEND\ndestination:/queue/q\n\nx"))
    ack = f"ACK\nmessage-id:{headers['message-id']}"

    out = client.say(ack, f"{ack}\nreceipt:r")

    assert out.receipts == ["r"]
    assert len(out.records) == 1


def test_the_ack_of_a_php_client_that_echoes_all_headers_of_the_message() -> None:
    client = Client("1.0")
    client.say("SUBSCRIBE\ndestination:/queue/q\nack:client")
    ((headers, _),) = client.read(client.say("SEND\ndestination:/queue/q\ncolour:red\n\nx"))
    echoed = "".join(f"{name}:{value}\n" for name, value in headers.items())

    out = client.say(f"ACK\n{echoed}receipt:r")

    assert out.receipts == ["r"]
    assert len(out.records) == 1


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ("", None),
        ("\nselector:", None),
        ("\nselector:a > 1", "a > 1"),
        ("\nselector: a > 1 ", "a > 1"),
        ("\nfilter:room=blue", "\"room\" = 'blue'"),
        ("\nfilter:room=blue\nselector: ", "\"room\" = 'blue'"),
    ],
)
@pytest.mark.parametrize("destination", ["/topic/t", "/topic/t.*", "/fanout/f", "/queue/q"])
def test_a_subscription_has_its_selector(destination: str, headers: str, text: str | None) -> None:
    client = Client()

    client.say(f"SUBSCRIBE\nid:s\ndestination:{destination}{headers}")

    if text is None and destination == "/topic/t":
        assert client.broker.sessions[1].destination_of("s") == destination  # needs no object of its own
        return
    selector = client.broker.sessions[1].subscriptions["s"].selector
    assert (None if selector is None else selector.text) == text


@pytest.mark.parametrize("headers", ["selector:a >", "filter:room", "selector:a\nfilter:room=blue"])
def test_a_selector_or_filter_that_cannot_be_read_is_refused_and_nothing_subscribed(headers: str) -> None:
    client = Client()

    out = client.say(f"SUBSCRIBE\nid:s\ndestination:/topic/t\nreceipt:r\n{headers}")

    error = client.error(out)
    assert (error["error-code"], error["receipt-id"]) == ("bad-selector", "r")
    assert client.broker.sessions[1].subscriptions == {}


def test_a_block_like_another_is_planned_for_its_own_destination() -> None:
    client = Client(memory_only=("/queue/fast",), known=("/queue/slow", "/queue/fast", "/queue/other"))
    like = {"/queue/slow": "durable", "/queue/other": "durable", "/queue/fast": "memory"}
    client.gateway._rules.likeness = lambda name: like.get(name, object())

    out = client.say(
        *[f"SEND\ndestination:{name}\ntype:t\n\nx" for name in like], "SEND\ndestination:/queue/no\ntype:t\n\nx"
    )

    kept = [record.envelope for record in out.records if isinstance(record, Message)]
    assert [(envelope.destination, envelope.headers) for envelope in kept] == [
        ("/queue/slow", b"type:t\n"),
        ("/queue/other", b"type:t\n"),
    ]
    assert client.broker.queues.by_name["/queue/fast"].held == 1
    assert client.error(out)["error-code"] == "unknown-destination"


def test_a_block_like_another_keeps_what_it_asks_for() -> None:
    client = Client()
    client.gateway._rules.likeness = lambda name: "all alike"
    wish = "priority:7\nttl:5000\ntransaction:t"

    client.say("BEGIN\ntransaction:t", *[f"SEND\ndestination:/queue/{n}\n{wish}\n\nx" for n in range(3)])
    out = client.say("COMMIT\ntransaction:t")

    messages = [record for record in out.records if isinstance(record, Message)]
    options = [message.envelope.options for message in messages]
    assert [(t.priority, t.ttl_us) for t in options if t is not None] == [(7, 5_000_000)] * 3
    assert [message.envelope.destination for message in messages] == ["/queue/0", "/queue/1", "/queue/2"]


@pytest.mark.parametrize(
    ("destination", "code"),
    [
        ("/queue/" + "x" * 100, "destination-too-long"),
        ("/queue/*", "bad-destination"),
        ("/nowhere/x", "bad-destination"),
        ("/queue/", "bad-destination"),
        ("", "missing-header"),
    ],
)
def test_a_block_like_another_must_name_a_destination_too(destination: str, code: str) -> None:
    client = Client()
    client.gateway._rules.likeness = lambda name: "all alike"
    client.gateway._rules.destination_bytes_max = 100

    out = client.say("SEND\ndestination:/queue/a\n\nx", f"SEND\ndestination:{destination}\n\nx")

    assert client.error(out)["error-code"] == code


def test_after_the_rules_have_changed_no_plan_is_like_one_from_before() -> None:
    client = Client()
    rules = client.gateway._rules
    rules.likeness = lambda name: "all alike"
    client.say("SEND\ndestination:/queue/a\ntype:t\n\nx")

    rules.policy = lambda name: (True, False)
    rules.generation += 1
    out = client.say("SEND\ndestination:/queue/b\ntype:t\n\nx", "SEND\ndestination:/queue/c\ntype:t\n\nx")

    assert not out.records


def test_a_message_with_an_id_of_its_own_is_known_by_it_and_its_destination() -> None:
    client = Client()
    client.gateway._rules.likeness = lambda name: "all alike"

    out = client.say(*[f"SEND\ndestination:/queue/{n}\ndedup-id:1\n\nx" for n in range(3)])

    keys = {record.envelope.key for record in out.records if isinstance(record, Message)}
    assert len(keys) == 3 and None not in keys


def test_what_peers_were_asked_about_is_forgotten_when_all_of_a_read_is_there_already() -> None:
    client = Client()
    repeats = client.gateway.repeats
    frames = client.connection.receive(b"SEND\ndestination:/queue/q\ndedup-id:1\nredelivered:true\n\n\0")
    paused = client.gateway.handle(frames, NOW_US, Outcome(client.session))
    assert paused is not None and paused.reason is PauseReason.DEDUP and len(paused.keys) == 1

    repeats.answered(paused.keys, paused.keys)
    left = repeats.answer(frames, NOW_US, Outcome(client.session))

    assert (left, repeats.asked) == ([], {})
