"""Many frames of one read decided as one mean what they mean one by one."""

from collections.abc import Callable

import pytest

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.message import Envelope, Message, Settle
from qmq.broker.messages.rules import DEFAULT_RULES, QueueRules
from qmq.build import BUILD
from tests.gateways.test_stomp import ORIGIN, Client

SUBSCRIBE = "SUBSCRIBE\nid:{id}\ndestination:/queue/q\nack:{ack}\nprefetch-count:{credit}"


def consumer(
    count: int, ack: str = "client-individual", version: str = "1.2", **headers: str
) -> tuple[Client, list[str]]:
    """A client that has been given `count` messages, and their ack ids."""
    client = Client(version)
    more = "".join(f"\n{name}:{value}" for name, value in headers.items())
    client.say(SUBSCRIBE.format(id="0", ack=ack, credit=count) + more)
    seen = client.read(client.say(*["SEND\ndestination:/queue/q\n\nx"] * count))
    # From now on the codec knows what its ACKs look like.
    client.connection.receive(b"ACK\nid:1\n\n\0ACK\nid:1\n\n\0")
    return client, [headers["ack"] for headers, _ in seen]


def settled(out: Outcome) -> list[int]:
    """Sequences, in the order of their records."""
    return [dot.sequence for record in out.records if isinstance(record, Settle) for dot in record.dots]


def test_acks_of_one_read_are_one_record() -> None:
    client, ids = consumer(300)

    out = client.say(*[f"ACK\nid:{id}" for id in ids])

    assert len(out.records) == 1
    assert settled(out) == list(range(2, 302))
    assert not client.broker.queues.deliveries
    assert client.broker.queues.by_name["/queue/q"].free == 300


@pytest.mark.parametrize("wrong", ["unknown", "again", "late", "long"])
def test_acks_before_a_wrong_one_stand(wrong: str) -> None:
    client, ids = consumer(10)
    acks = [f"ACK\nid:{id}" for id in ids]
    acks[5] = {"unknown": "ACK\nid:999", "again": acks[3], "late": "ACK\nid:000000", "long": "ACK\nid:" + 5000 * "1"}[
        wrong
    ]

    out = client.say(*acks)

    assert settled(out) == [2, 3, 4, 5, 6]
    assert client.error(out)["error-code"] == "unknown-ack"
    assert out.ending


def test_acks_of_a_read_that_cover_what_came_before_settle_everything_once() -> None:
    client, ids = consumer(10, "client")

    out = client.say(*[f"ACK\nid:{id}" for id in ids[3:8]])

    assert settled(out) == list(range(2, 10))


def test_acks_of_a_read_for_several_subscriptions_settle_all_of_them() -> None:
    client = Client()
    for id in "ab":
        client.say(SUBSCRIBE.format(id=id, ack="client-individual", credit=5))
    seen = client.read(client.say(*["SEND\ndestination:/queue/q\n\nx"] * 10))
    client.connection.receive(b"ACK\nid:1\n\n\0ACK\nid:1\n\n\0")

    out = client.say(*[f"ACK\nid:{headers['ack']}" for headers, _ in sorted(seen, key=lambda one: int(one[0]["ack"]))])

    assert sorted(settled(out)) == list(range(2, 12))
    assert not client.broker.queues.deliveries


def test_acks_of_messages_of_another_client_are_refused_in_a_run_too() -> None:
    ann, ids = consumer(10)
    bob = Client(broker=ann.broker, session=2)
    bob.connection.receive(b"ACK\nid:1\n\n\0ACK\nid:1\n\n\0")

    out = bob.say(*[f"ACK\nid:{id}" for id in ids])

    assert bob.error(out)["error-code"] == "unknown-ack"
    assert len(ann.broker.queues.deliveries) == 10


def sends(count: int, *headers: str, queue: str = "/queue/q", asks: bool = True) -> list[str]:
    """`asks`: each for a receipt; without, those of one read come as one frame."""
    more = "".join(f"\n{header}" for header in headers)
    if not asks:
        return [f"SEND\ndestination:{queue}{more}\n\nbody {number}" for number in range(count)]
    return [f"SEND\ndestination:{queue}{more}\nreceipt:{number}\n\nbody {number}" for number in range(count)]


def after(
    frames: list[str], reads: Callable[[list[str]], list[list[str]]], consumers: list[str], rules: QueueRules
) -> list[object]:
    """What `frames` come to, when they come in those reads."""
    client = Client(broker=Broker(ORIGIN, 2, rules_of=lambda name: rules), keep_open=True)
    client.say(*consumers)
    told: list[object] = []
    seen: dict[str, list[tuple[str | None, bytes]]] = {}
    for read in reads(frames):
        for out in client.outcomes(*read):
            told += [("receipt", receipt) for receipt in out.receipts]
            told += [("error", headers["error-code"]) for _, headers in client.frames(out)]
            for record in out.records:
                if isinstance(record, Message):
                    told.append((record.envelope.destination, record.body))
            for headers, body in client.read(out):
                seen.setdefault(headers["subscription"], []).append((headers.get("ack"), body))
    queue = client.broker.queues.by_name.get("/queue/q")
    left = None if queue is None else (queue.held, queue.held_bytes, queue.free, [m.body for m in queue.ready])
    # What a read comes to is told by kind: receipts, errors, what must be recorded first.
    for deliveries in seen.values():
        deliveries.sort(key=lambda one: int(one[0] or 0))
    return [sorted(told, key=repr), seen, left, client.broker.queues.shared.memory_bytes]


@pytest.mark.parametrize(
    "consumers",
    [
        [],
        [SUBSCRIBE.format(id="0", ack="client-individual", credit=1000)],
        [SUBSCRIBE.format(id="0", ack="client-individual", credit=7)],
        [SUBSCRIBE.format(id="0", ack="client", credit=7)],
        [SUBSCRIBE.format(id="0", ack="client-individual", credit=7) + "\nack-timeout:5000"],
        [SUBSCRIBE.format(id=id, ack="client-individual", credit=5) for id in "abc"],
        [SUBSCRIBE.format(id="a", ack="client-individual", credit=5), SUBSCRIBE.format(id="b", ack="client", credit=9)],
        [SUBSCRIBE.format(id="0", ack="client-individual", credit=5) + "\nselector:colour = 'red'"],
    ],
)
@pytest.mark.parametrize(
    "frames",
    [
        sends(30),
        sends(30, "persistent:false"),
        sends(10) + sends(10, "persistent:false") + sends(10),
        sends(5) + sends(5, "priority:9") + sends(5) + sends(5, "colour:red"),
        sends(10) + sends(10, queue="/queue/other") + sends(10),
        sends(10, queue="/fanout/f") + sends(10),
        sends(30, asks=False),
        sends(30, "persistent:false", asks=False),
        sends(10, asks=False) + sends(10) + sends(10, asks=False),
        sends(10, "priority:9", asks=False) + sends(10, asks=False),
    ],
)
@pytest.mark.parametrize(
    "rules",
    [
        DEFAULT_RULES,
        QueueRules(messages_max=12),
        QueueRules(bytes_max=50),
        QueueRules(messages_max=12, overflow="drop-oldest"),
        QueueRules(messages_max=12, overflow="drop-newest"),
    ],
)
def test_sends_of_one_read_come_to_the_same_as_one_by_one(
    consumers: list[str], frames: list[str], rules: QueueRules
) -> None:
    one_by_one = after(frames, lambda frames: [[frame] for frame in frames], consumers, rules)

    together = after(frames, lambda frames: [frames], consumers, rules)

    assert together == one_by_one


def test_a_read_of_memory_only_messages_stops_at_the_bound_exactly() -> None:
    broker = Broker(ORIGIN, 2, limits=BrokerLimits(queue_memory_bytes_max=10 * 500))
    client = Client(broker=broker, keep_open=True)
    client.say("SEND\ndestination:/queue/q\npersistent:false\n\nbody 0")

    out, *refused = client.outcomes(*sends(100, "persistent:false"))

    held = broker.queues.by_name["/queue/q"].held - 1
    assert broker.queues.shared.memory_bytes - 410 <= 10 * 500 < broker.queues.shared.memory_bytes
    assert out.receipts == [str(number) for number in range(held)]
    errors = [headers["error-code"] for one in (out, *refused) for _, headers in client.frames(one)]
    assert errors == ["memory-full"] * (100 - held)


def test_a_full_disk_refuses_each_message_of_a_read() -> None:
    client = Client(keep_open=True)
    client.say(*sends(3))
    client.broker.send_limits.disk_full = True

    outcomes = client.outcomes(*sends(5))

    assert not any(out.records for out in outcomes)
    errors = [headers["error-code"] for out in outcomes for _, headers in client.frames(out)]
    assert errors == ["disk-full"] * 5


@pytest.mark.skipif(BUILD == "compiled", reason="counts calls within what is compiled")
def test_a_read_of_refused_messages_is_looked_through_once() -> None:
    client = Client(keep_open=True)
    client.say(*sends(3))
    client.broker.send_limits.disk_full = True
    looks: list[int] = []
    send_run = client.broker.send_run

    def counted(envelope: Envelope, bodies: list[bytes], out: Outcome) -> bool:
        looks.append(len(bodies))
        return send_run(envelope, bodies, out)

    client.broker.send_run = counted  # type: ignore[method-assign]

    client.outcomes(*["SEND\ndestination:/queue/q\n\nx"] * 200)

    assert looks == [200]


def test_the_only_consumer_gets_no_more_than_its_credit_and_the_rest_as_it_settles() -> None:
    client = Client()
    client.say(SUBSCRIBE.format(id="0", ack="client-individual", credit=10))
    first = client.read(client.say(*sends(25)))
    client.connection.receive(b"ACK\nid:1\n\n\0ACK\nid:1\n\n\0")

    second = client.read(client.say(*[f"ACK\nid:{headers['ack']}" for headers, _ in first]))
    third = client.read(client.say(*[f"ACK\nid:{headers['ack']}" for headers, _ in second]))

    assert [body for _, body in first + second + third] == [b"body %d" % number for number in range(25)]
    assert len(first) == len(second) == 10


def heard(client: Client, reads: list[list[str]]) -> tuple[list[tuple[str, str, bytes]], list[bytes], list[str]]:
    """What subscribers hear, what a peer is sent, and which receipts come."""
    told: list[tuple[str, str, bytes]] = []
    to_peer: list[bytes] = []
    receipts: list[str] = []
    for read in reads:
        out = client.say(*read)
        receipts += out.receipts
        to_peer += [message.body for message in out.peer_topics.get("b", [])]
        for run in out.topic_runs:
            for message in run.messages:
                told += [("retained" if run.retained else "live", message.message_id, message.body)] * len(
                    run.subscriptions
                )
    return told, to_peer, receipts


def test_topic_messages_of_one_read_are_heard_as_one_by_one() -> None:
    frames = sends(20, queue="/topic/a") + sends(3, "retain:set", queue="/topic/a") + sends(5, queue="/topic/nobody")
    frames += sends(9, queue="/topic/a", asks=False) + sends(6, "retain:set", queue="/topic/a", asks=False)
    frames += (
        sends(2, queue="/topic/b") + sends(4, queue="/topic/a") + ["UNSUBSCRIBE\nid:0"] + sends(4, queue="/topic/a")
    )
    clients = [Client(), Client()]
    for client in clients:
        client.broker.interest.add("/topic/a", "b")
        client.say(
            *[
                f"SUBSCRIBE\nid:{id}\ndestination:{topic}"
                for id, topic in enumerate(["/topic/a", "/topic/*", "/topic/b"])
            ]
        )

    one_by_one = heard(clients[0], [[frame] for frame in frames])
    together = heard(clients[1], [frames])

    assert together == one_by_one
    assert len(together[1]) == 46
