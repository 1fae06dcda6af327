import random
from functools import partial

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.message import Gap, Message, Retain, Settle
from qmq.broker.messages.rules import DEFAULT_RULES, QueueRules
from qmq.errors import Refused
from qmq.model.dots import Dot, Origin

from .rig import AT_ONCE, JOBS, NOW_US, Node, check_accounts, check_empty, envelope, message_of

A = Origin("a", 1)
B = Origin("b", 1)


def send_of(body: bytes = b"m", destination: str = JOBS, receipt: str | None = None) -> HeldFrame:
    return HeldFrame(envelope=envelope(destination), body=body, receipt=receipt)


def refusal(action: object, *arguments: object, **options: object) -> str:
    """The code with which the broker refuses."""
    with pytest.raises(Refused) as refused:
        action(*arguments, **options)  # type: ignore[operator]
    return refused.value.code


# Sequences and records


def test_durable_messages_get_dense_sequences_and_memory_only_ones_another_counter() -> None:
    node = Node()

    for durable in (True, False, True, False):
        node.send(durable=durable)

    assert [m.sequence for m in node.queues.by_name[JOBS].ready] == [1, -1, 2, -2]
    assert [record.sequence for record in node.journal] == [1, 2]
    assert node.broker.next_sequence == 3


def test_outcome_weighs_its_records() -> None:
    out = Node().send(b"x" * 1000)

    assert out.record_bytes >= 1000


def test_settle_records_come_after_the_messages_of_the_same_decision() -> None:
    node = Node()
    node.send(b"1")
    client = node.client()
    client.subscribe()

    def both(out: Outcome) -> None:
        node.broker.acknowledge(client.inbox[0], out)
        node.broker.send(envelope(), b"2", NOW_US, out)

    out = node.decide(both)

    assert [type(record) for record in out.records] == [Message, Settle]
    assert [record.sequence for record in out.records] == [2, 3]


def test_decision_without_settles_adds_no_record() -> None:
    assert Node().decide(lambda out: None).records == []


def test_gap_takes_a_sequence_of_its_own() -> None:
    node = Node()

    out = node.decide(lambda out: node.broker.note_gap(B, 7, NOW_US, out))

    (gap,) = out.records
    assert isinstance(gap, Gap)
    assert (gap.sequence, node.broker.next_sequence, out.has_gap) == (1, 2, True)


# What a node refuses to take


def test_full_disk_refuses_durable_messages_and_nothing_else() -> None:
    node = Node()
    node.send(b"1")
    node.broker.send_limits.disk_full = True

    assert refusal(node.send, b"2") == "disk-full"
    node.send(b"3", durable=False)
    client = node.client()
    client.subscribe()
    client.ack_all()

    assert node.settled_dots() == [Dot(A, 1)]


def test_queue_takes_messages_up_to_its_bound_and_again_after_a_settle() -> None:
    node = Node(rules=QueueRules(messages_max=2))
    node.send()
    node.send()
    client = node.client()
    client.subscribe()

    assert refusal(node.send) == "queue-full"
    client.ack(client.inbox[0])
    node.send()

    assert node.depth() == 2


def test_queue_takes_bytes_up_to_its_bound() -> None:
    node = Node(rules=QueueRules(bytes_max=10))
    node.send(b"x" * 6)

    assert refusal(node.send, b"x" * 5) == "queue-full"
    node.send(b"x" * 4)


def test_body_above_the_bound_of_a_queue_is_refused_also_when_the_queue_is_empty() -> None:
    node = Node(rules=QueueRules(bytes_max=10))

    assert refusal(node.send, b"x" * 11) == "queue-full"
    check_empty(node)


def test_bound_of_a_queue_does_not_concern_others() -> None:
    one = QueueRules(messages_max=1)
    node = Node(rules_of=lambda name: one if name == JOBS else DEFAULT_RULES)
    node.send()
    node.send(destination="/queue/free")
    node.send(destination="/queue/free")

    assert node.depth("/queue/free") == 2


# Subscriptions


def test_second_subscription_with_the_same_id_is_refused_and_the_first_stays() -> None:
    node = Node()
    client = node.client()
    client.subscribe()

    assert refusal(client.subscribe, "/queue/other") == "duplicate-subscription"
    assert "/queue/other" not in node.queues.by_name
    node.send(b"1")
    assert client.bodies == [b"1"]


def test_subscriptions_of_a_client_are_bounded() -> None:
    client = Node(limits=BrokerLimits(subscriptions_max=2)).client()
    client.subscribe(id="1")
    client.subscribe(id="2")

    assert refusal(client.subscribe, id="3") == "too-many-subscriptions"
    client.unsubscribe("1")
    client.subscribe(id="3")


@pytest.mark.parametrize("destination", ["/queue/*", "/fanout/a.#", "/topic/a*b", "/control/*"])
def test_patterns_are_for_topics_and_must_mean_something(destination: str) -> None:
    node = Node()
    client = node.client()

    assert refusal(client.subscribe, destination) == "bad-pattern"
    client.leave()
    check_empty(node)


@pytest.mark.parametrize("destination", ["/control/count-msgs/queue/a", "/elsewhere/a"])
def test_no_client_subscribes_to_control_or_unknown_kinds(destination: str) -> None:
    assert refusal(Node().client().subscribe, destination) == "bad-destination"


def test_unsubscribe_of_an_unknown_id_is_refused() -> None:
    assert refusal(Node().client().unsubscribe, "nope") == "unknown-subscription"


def test_client_that_leaves_twice_leaves_once() -> None:
    client = Node().client()
    client.leave()
    client.leave()


def test_subscription_that_ended_frees_its_id() -> None:
    node = Node()
    client = node.client()
    client.subscribe()
    client.unsubscribe()
    client.subscribe("/queue/other")
    client.leave()

    check_empty(node)


# Settling by the server


def test_written_auto_deliveries_count_as_settled() -> None:
    node = Node()
    client = node.client()
    client.subscribe(ack=Ack.AUTO)
    node.send(b"1")
    node.send(b"2")

    node.decide(lambda out: node.broker.written(client.inbox, out))

    assert node.settled_dots() == [Dot(A, 1), Dot(A, 2)]
    check_accounts(node)


def test_auto_deliveries_written_after_the_client_left_are_not_settled_but_redelivered() -> None:
    node = Node()
    client = node.client()
    client.subscribe(ack=Ack.AUTO)
    node.send(b"1")
    client.leave()

    node.decide(lambda out: node.broker.written(client.inbox, out))

    assert node.settled_dots() == []
    assert node.ready() == [b"1"]


def test_memory_only_message_is_not_sent_before_a_durable_one_that_a_cumulative_ack_would_cover() -> None:
    node = Node()
    client = node.client()
    client.subscribe(ack=Ack.CLIENT)

    durable, memory = node.send(b"1"), node.send(b"2", durable=False)

    assert durable.deliveries_after and memory.deliveries_after
    assert not memory.deliveries_now


# Transactions


def test_transaction_applies_all_at_commit_and_nothing_before() -> None:
    node = Node()
    node.send(b"in")
    client = node.client()
    client.subscribe()
    client.begin()
    client.hold(send_of(b"out", "/queue/out", "r1"))
    client.hold(HeldFrame(delivery=client.inbox[0], receipt="r2"))
    assert (node.depth(), node.depth("/queue/out")) == (1, 0)

    out = client.commit()

    assert (node.depth(), node.depth("/queue/out")) == (0, 1)
    assert [type(record) for record in out.records] == [Message, Settle]
    assert out.receipts == ["r1", "r2"]
    check_accounts(node)


@pytest.mark.parametrize("seed", range(40))
def test_sends_of_a_transaction_do_what_they_would_do_alone(seed: int) -> None:
    chance = random.Random(seed)
    small = QueueRules(messages_max=100)
    nodes = [Node(rules_of=lambda name: small if name == "/queue/small" else DEFAULT_RULES) for _ in range(2)]
    clients = [node.client() for node in nodes]
    names = chance.sample([JOBS, "/queue/small", "/queue/new", "/fanout/f"], 2)
    if chance.random() < 0.5:
        for node, client in zip(nodes, clients, strict=True):
            client.subscribe(names[0] if names[0].startswith("/queue/") else JOBS)
            node.send(b"before", JOBS)
    frames: list[tuple[str, bytes, bool, bytes, str | None]] = []
    name, durable = names[0], True
    for number in range(30):
        if chance.random() < 0.15:
            name = chance.choice(names)
        if chance.random() < 0.1:
            durable = chance.random() < 0.5 or name.startswith("/fanout/")
        headers = b"number:%d\n" % number + chance.choice(
            [b"", b"", b"", b"priority:7\n", b"dedup-id:%d\n" % (number % 5)]
        )
        kept = durable or name.startswith("/fanout/") or b"dedup" in headers
        frames.append((name, b"m" * number, kept, headers, chance.choice([None, None, f"r{number}"])))
    out = Outcome(now_us=nodes[0].now_us)
    out.sent = []

    clients[0].begin()
    for name, body, durable, headers, receipt in frames:
        kind = envelope(name, durable=durable, headers=headers)
        clients[0].hold(HeldFrame(envelope=kind, body=body, receipt=receipt))
    together = nodes[0].decide(partial(commit_with_sent, nodes[0], clients[0].id, out.sent))
    for name, body, durable, headers, _ in frames:
        kind = envelope(name, durable=durable, headers=headers)
        if kind.key is None or nodes[1].broker.dedup.find(kind.key, nodes[1].now_us) is None:
            nodes[1].send(body, name, durable=durable, headers=headers)

    facts = [
        [
            [(one.sequence, one.body, one.envelope.headers, one.place) for one in queue.ready]
            for _, queue in sorted(node.queues.by_name.items())
        ]
        for node in nodes
    ]
    assert facts[0] == facts[1]
    assert (nodes[0].broker.next_sequence, nodes[0].broker.memory_sequence) == (
        nodes[1].broker.next_sequence,
        nodes[1].broker.memory_sequence,
    )
    if all(durable for _, _, durable, _, _ in frames):
        assert clients[0].bodies == clients[1].bodies
    else:
        # Memory-only ones do not wait for the commit of those before them.
        assert sorted(clients[0].bodies) == sorted(clients[1].bodies)
    assert [receipt for *_, receipt in frames if receipt is not None] == together.receipts
    assert len(out.sent) == len(frames)
    appended = [message for message, is_duplicate in out.sent if message is not None]
    assert [message.body for message in appended if message.sequence > 0] == [
        record.body for record in together.records if isinstance(record, Message)
    ]
    totals = [node.broker.totals.by_name for node in nodes]
    assert {name: one.accepted for name, one in totals[0].items()} == {
        name: one.accepted for name, one in totals[1].items()
    }
    check_accounts(nodes[0])


def commit_with_sent(node: Node, session: int, sent: list[tuple[Message | None, bool]], out: Outcome) -> None:
    out.sent = sent
    node.broker.commit(session, "t", node.now_us, out)


def test_run_of_a_transaction_is_refused_as_a_whole_by_each_rule() -> None:
    def refuse(size: int) -> None:
        raise Refused("owner-full", "No.")

    for rules, code in (
        (QueueRules(messages_max=2), "queue-full"),
        (QueueRules(bytes_max=2), "queue-full"),
        (QueueRules(is_acceptance_paused=True), "queue-paused"),
        (QueueRules(check_owner=refuse), "owner-full"),
    ):
        for is_known in (False, True):
            node = Node(rules=rules)
            if is_known:
                node.queues.get(JOBS)
            client = node.client()
            client.begin()
            for _ in range(3):
                client.hold(send_of())

            assert refusal(client.commit) == code
            assert node.broker.next_sequence == 1


def test_aborted_transaction_leaves_nothing_and_its_message_in_flight() -> None:
    node = Node()
    node.send(b"in")
    client = node.client()
    subscription = client.subscribe()
    client.begin()
    client.hold(send_of(destination="/queue/out"))
    client.hold(HeldFrame(delivery=client.inbox[0]))

    node.broker.transactions.abort(client.id, "t")

    assert node.depth("/queue/out") == 0
    assert len(subscription.in_flight) == 1
    assert refusal(client.commit) == "unknown-transaction"


@pytest.mark.parametrize("is_ack", [True, False])
@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_an_ack_of_all_leaves_out_what_an_open_transaction_decides_about(ends: str, is_ack: bool) -> None:
    node = Node()
    for body in (b"0", b"1", b"2", b"3"):
        node.send(body)
    client = node.client()
    subscription = client.subscribe(ack=Ack.CLIENT)
    first, second, third, fourth = client.inbox
    client.begin()
    client.hold(HeldFrame(delivery=second, is_ack=is_ack))
    client.hold(send_of(destination="/queue/out"))

    client.ack(third)
    assert list(subscription.in_flight.values()) == [first, second, fourth]

    if ends == "commit":
        client.commit()
        assert node.depth("/queue/out") == 1
        assert list(subscription.in_flight.values()) == [fourth]
    else:
        node.broker.transactions.abort(client.id, "t")
        client.ack(fourth)
        assert not subscription.in_flight


def test_a_message_that_is_acknowledged_beside_its_transaction_refuses_that() -> None:
    node = Node()
    node.send()
    client = node.client()
    client.subscribe(ack=Ack.CLIENT)
    client.begin()
    client.hold(HeldFrame(delivery=client.inbox[0]))

    client.ack(client.inbox[0])

    assert refusal(client.commit) == "unknown-ack"


def test_transaction_ends_with_its_session() -> None:
    node = Node()
    node.send(b"in")
    client = node.client()
    client.subscribe()
    client.begin()
    client.hold(send_of(destination="/queue/out"))
    client.hold(HeldFrame(delivery=client.inbox[0]))

    client.leave()

    assert node.ready() == [b"in"]
    assert node.depth("/queue/out") == 0


def test_transaction_of_another_client_is_unknown() -> None:
    node = Node()
    node.client().begin("t")

    assert refusal(node.client().commit, "t") == "unknown-transaction"


def test_transaction_that_would_pass_a_bound_is_refused_as_a_whole() -> None:
    two = QueueRules(messages_max=2)
    node = Node(rules_of=lambda name: two if name == "/queue/small" else DEFAULT_RULES)
    node.send(b"in")
    client = node.client()
    client.subscribe()
    client.begin()
    client.hold(HeldFrame(delivery=client.inbox[0]))
    client.hold(send_of())
    for _ in range(3):
        client.hold(send_of(destination="/queue/small"))

    assert refusal(client.commit) == "queue-full"

    assert (node.depth(), node.depth("/queue/small")) == (1, 0)
    assert node.settled_dots() == []
    assert node.broker.next_sequence == 2
    node.broker.transactions.abort(client.id, "t")


def test_bytes_of_a_transaction_count_together() -> None:
    node = Node(rules=QueueRules(bytes_max=10))
    client = node.client()
    client.begin()
    client.hold(send_of(b"x" * 6))
    client.hold(send_of(b"x" * 5))

    assert refusal(client.commit) == "queue-full"
    assert node.depth() == 0


def test_transaction_on_a_full_disk_is_refused_as_a_whole() -> None:
    node = Node()
    node.send(b"in")
    client = node.client()
    client.subscribe()
    client.begin()
    client.hold(HeldFrame(delivery=client.inbox[0]))
    client.hold(send_of())
    node.broker.send_limits.disk_full = True

    assert refusal(client.commit) == "disk-full"
    assert node.settled_dots() == []


@pytest.mark.parametrize("is_ack", [True, False])
def test_transaction_that_settles_what_went_back_meanwhile_is_refused_as_a_whole(is_ack: bool) -> None:
    node = Node()
    node.send(b"in")
    client = node.client()
    client.subscribe(id="one")
    client.begin()
    client.hold(send_of(b"out", "/queue/out"))
    client.hold(HeldFrame(delivery=client.inbox[0], is_ack=is_ack))
    client.unsubscribe("one")

    assert refusal(client.commit) == "unknown-ack"

    assert node.ready() == [b"in"]
    assert node.depth("/queue/out") == 0


def test_cumulative_ack_in_a_transaction_may_cover_another_of_its_acks() -> None:
    node = Node()
    for body in (b"1", b"2", b"3"):
        node.send(body)
    client = node.client()
    client.subscribe(ack=Ack.CLIENT)
    client.begin()
    for index in (2, 0):
        client.hold(HeldFrame(delivery=client.inbox[index]))

    client.commit()

    assert node.depth() == 0
    assert node.settled_dots() == [Dot(A, 1), Dot(A, 2), Dot(A, 3)]


def test_nack_in_a_transaction_returns_the_message_at_commit() -> None:
    node = Node(rules=AT_ONCE)
    node.send(b"1")
    client = node.client()
    client.subscribe()
    client.begin()
    client.hold(HeldFrame(delivery=client.inbox[0], is_ack=False))
    assert client.bodies == [b"1"]

    client.commit()

    assert list(zip(client.bodies, client.attempts, strict=True)) == [(b"1", 1), (b"1", 1)]


def test_transactions_and_their_frames_are_bounded() -> None:
    client = Node(limits=BrokerLimits(transactions_max=1, transaction_frames_max=1)).client()
    client.begin("t")

    assert refusal(client.begin, "t") == "transaction-exists"
    assert refusal(client.begin, "u") == "too-many-transactions"
    client.hold(send_of())
    assert refusal(client.hold, send_of()) == "transaction-too-long"
    assert refusal(client.hold, send_of(), "u") == "unknown-transaction"
    client.commit()
    client.begin("u")


# Topics and the interest of peers


def test_topic_message_reaches_every_subscriber_that_matches_and_no_journal() -> None:
    node = Node()
    exact, prefix, dotted, other = (node.client() for _ in range(4))
    exact.subscribe("/topic/a.b")
    prefix.subscribe("/topic/a*")
    dotted.subscribe("/topic/#.b")
    other.subscribe("/topic/c")

    out = node.send(b"1", "/topic/a.b", durable=False)

    assert [len(client.heard) for client in (exact, prefix, dotted, other)] == [1, 1, 1, 0]
    assert not out.needs_commit


def test_topic_message_without_subscribers_is_nothing() -> None:
    node = Node()

    out = node.send(b"1", "/topic/a", durable=False)

    assert not out.topic_runs and not out.peer_topics
    check_empty(node)


def test_client_that_left_hears_nothing_more() -> None:
    node = Node()
    client = node.client()
    client.subscribe("/topic/a")
    node.send(b"1", "/topic/a", durable=False)
    client.leave()

    node.send(b"2", "/topic/a", durable=False)

    assert [message.body for message in client.heard] == [b"1"]
    check_empty(node)


def test_topic_message_goes_once_to_each_peer_that_wants_it() -> None:
    node = Node()
    node.broker.interest.add("/topic/a*", "b")
    node.broker.interest.add("/topic/#", "b")
    node.broker.interest.add("/topic/x", "c")

    out = node.send(b"1", "/topic/a", durable=False)

    assert {peer: [m.body for m in messages] for peer, messages in out.peer_topics.items()} == {"b": [b"1"]}


def test_topic_messages_of_one_chunk_go_to_a_peer_in_order() -> None:
    node = Node()
    node.broker.interest.add("/topic/#", "b")
    topic = envelope("/topic/a", durable=False)

    out = node.decide(lambda out: [node.broker.send(topic, body, NOW_US, out) for body in (b"1", b"2")])

    assert [m.body for m in out.peer_topics["b"]] == [b"1", b"2"]


def test_topic_message_from_a_peer_goes_to_local_subscribers_only() -> None:
    node = Node()
    node.broker.interest.add("/topic/#", "c")
    client = node.client()
    client.subscribe("/topic/a")

    out = node.decide(lambda out: node.broker.topic_router.accept(message_of(B, -1, destination="/topic/a"), out))

    assert len(client.heard) == 1
    assert not out.peer_topics


def test_peers_learn_of_the_first_and_the_last_subscriber_of_a_pattern() -> None:
    node = Node()
    clients = [node.client(), node.client()]

    asked = [Subscription(client.id, "s", "/topic/a*", Ack.AUTO, 1, b"") for client in clients]

    begins = [node.decide(partial(node.broker.subscriptions.subscribe, one)).interest_changes for one in asked]
    ends = [client.leave().interest_changes for client in clients]

    assert begins == [{"/topic/a*": True}, {}]
    assert ends == [{}, {"/topic/a*": False}]
    check_empty(node)


# Fanouts


def test_fanout_message_is_recorded_and_delivered_to_live_subscribers() -> None:
    node = Node()
    client = node.client()
    subscription = client.subscribe("/fanout/f")

    out = node.send(b"1", "/fanout/f")

    assert [record.sequence for record in out.records] == [1]
    assert [(run.destination, [m.body for m in run.messages]) for run in out.fanout_runs] == [("/fanout/f", [b"1"])]
    assert list(node.broker.subscriptions.fanouts["/fanout/f"]) == [subscription]


def test_fanout_subscription_begins_by_joining_and_is_forgotten_when_it_ends() -> None:
    node = Node()
    client = node.client()

    def subscribe(out: Outcome) -> None:
        node.broker.subscriptions.subscribe(Subscription(client.id, "s", "/fanout/f", Ack.AUTO, 1, b""), out)

    out = node.decide(subscribe)
    (joined,) = out.joined
    client.unsubscribe()

    assert joined.closed
    client.leave()
    check_empty(node)


def test_fanout_message_of_another_origin_is_delivered_and_not_recorded_again() -> None:
    node = Node()

    out = node.decide(lambda out: node.broker.accept(message_of(B, 5, destination="/fanout/f"), out))

    assert [m.dot for m in out.fanout_runs[0].messages] == [Dot(B, 5)]
    assert out.records == []


# What comes in over links


def test_queue_message_of_another_node_is_its_owners_business() -> None:
    node = Node()
    client = node.client()
    client.subscribe()

    node.decide(lambda out: node.broker.accept(message_of(B, 1), out))

    assert client.bodies == []
    assert node.depth() == 0


def test_queue_message_of_an_older_life_of_this_node_is_owned_again() -> None:
    node = Node()
    client = node.client()
    client.subscribe()
    old = Origin("a", 99)

    node.decide(lambda out: node.broker.accept(message_of(old, 4, b"back"), out))
    client.ack(client.inbox[0])

    assert client.bodies == [b"back"]
    assert node.settled_dots() == [Dot(old, 4)]
    check_accounts(node)


def test_a_value_that_a_peer_sent_before_its_message_came_is_delivered_once() -> None:
    node = Node()
    client = node.client()
    client.subscribe("/topic/*")
    value = message_of(B, -1, b"v", "/topic/a")
    value.envelope.retain = Retain.SET

    news = node.decide(lambda out: node.broker.topic_router.accept_value(value, "c", out))
    node.decide(lambda out: node.broker.topic_router.accept(value, out))
    node.decide(lambda out: node.broker.topic_router.accept_value(value, "b", out))

    assert [message.body for message in client.heard] == [b"v"]
    assert [run.retained for run in news.topic_runs] == [True]
