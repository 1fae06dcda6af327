"""What expires in a long queue: in turns of bounded work, each message once, in the order in which they wait."""

from random import Random

import pytest

from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.broker.queues.dispatch import expiry

from ...rig import AT_ONCE, JOBS, SECOND_US, Node, check_accounts, check_empty

LOOKED_MAX = 40
SHORT = b"ttl:1000\n"
LONG = b"ttl:60000\n"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that are small enough for a test."""
    monkeypatch.setattr(expiry, "LOOKED_MAX", LOOKED_MAX)
    monkeypatch.setattr(expiry, "LOOKED_AT_ONCE", 10)


class CountedClocks:
    """The clocks of a node, which count the messages whose expiry is asked for."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looked = 0
        shared = node.queues.shared
        expiry = shared.clocks.expiry

        def counted(message: object) -> int:
            self.looked += 1
            return expiry(message)  # type: ignore[arg-type]

        monkeypatch.setattr(shared.clocks, "expiry", counted)

    def take(self) -> int:
        looked, self.looked = self.looked, 0
        return looked


def turns(node: Node) -> int:
    """Let the timer have turns at this moment until nothing is due; how many."""
    count = 0
    while 0 < node.queues.deadlines.next_us <= node.now_us:
        node.later(0)
        count += 1
    return count


@pytest.mark.parametrize("headers", [b"", b"delay:30000\n", b"priority:7\n"], ids=["ready", "delayed", "urgent"])
def test_a_turn_looks_at_so_many_messages_however_long_the_queue_is(
    headers: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    number = 3 * LOOKED_MAX
    for _ in range(number):
        node.send(headers=headers + LONG, durable=False)
    node.send(b"first", headers=SHORT, durable=False)
    clocks = CountedClocks(node, monkeypatch)
    node.now_us += SECOND_US

    looked = []
    while 0 < node.queues.deadlines.next_us <= node.now_us:
        node.later(0)
        looked.append(clocks.take())

    assert max(looked) <= LOOKED_MAX + 1
    assert sum(looked) == number + 1
    assert node.depth() == number
    check_accounts(node)


def test_a_turn_looks_at_so_many_messages_however_many_queues_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    monkeypatch.setattr(expiry, "COST_MAX", 3 * LOOKED_MAX)
    for queue in range(8):
        for _ in range(LOOKED_MAX):
            node.send(b"x", f"/queue/{queue}", headers=LONG, durable=False)
        node.send(b"first", f"/queue/{queue}", headers=SHORT, durable=False)
    clocks = CountedClocks(node, monkeypatch)
    node.now_us += SECOND_US

    looked = []
    while 0 < node.queues.deadlines.next_us <= node.now_us:
        node.later(0)
        looked.append(clocks.take())

    assert max(looked) <= 4 * LOOKED_MAX
    assert [node.depth(f"/queue/{queue}") for queue in range(8)] == [LOOKED_MAX] * 8


def test_what_has_expired_is_looked_at_twice_at_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    number = 3 * LOOKED_MAX
    for _ in range(number):
        node.send(headers=SHORT, durable=False)
    clocks = CountedClocks(node, monkeypatch)
    node.now_us += SECOND_US

    turns(node)

    assert clocks.looked <= 2 * number
    check_empty(node)


def test_what_has_expired_does_not_stay_in_memory_while_others_wait() -> None:
    node = Node()
    node.send(b"stays", durable=False)
    for _ in range(20):
        for _ in range(10):
            node.send(headers=SHORT, durable=False)
        node.later(2 * SECOND_US)

    assert len(node.queues.by_name[JOBS].levels[0].ready) <= 11
    assert node.ready() == [b"stays"]


def test_dead_letters_of_many_are_in_the_order_in_which_they_waited() -> None:
    node = Node(rules=QueueRules(keeps_dropped=True))
    number = LOOKED_MAX + 500
    for count in range(number):
        node.send(b"%d" % count, headers=SHORT if count % 2 else b"priority:9\n" + SHORT)
    node.now_us += SECOND_US

    turns(node)

    dead_letters = [message.body for message in node.queues.by_name[DEAD_LETTERS].ready]
    assert dead_letters == [b"%d" % count for count in (*range(0, number, 2), *range(1, number, 2))]
    assert node.depth() == 0


def test_what_comes_back_or_is_delivered_between_two_turns_expires_in_its_time() -> None:
    node = Node(rules=AT_ONCE)
    for count in range(LOOKED_MAX + 200):
        node.send(b"%d" % count, headers=LONG if count % 2 else b"ttl:30000\n", durable=False)
    node.send(headers=SHORT, durable=False)
    client = node.client()
    client.subscribe(credit=100)

    node.later(SECOND_US)
    assert node.depth() == LOOKED_MAX + 201  # The first turn has not come to it.
    for delivery in list(client.inbox)[:50]:
        client.ack(delivery)
    client.leave()
    turns(node)
    assert node.depth() == LOOKED_MAX + 150
    node.later(30 * SECOND_US)
    turns(node)
    assert node.depth() == (LOOKED_MAX + 200) // 2 - 25
    node.later(31 * SECOND_US)
    turns(node)

    check_empty(node)


@pytest.mark.parametrize("line", ["ready", "tail", "delayed"])
def test_a_turn_that_ends_early_goes_on_with_the_next_message(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "AT_ONCE", 7)
    node = Node()
    if line == "tail":
        node.send(b"first", durable=False)
        node.queues.by_name[JOBS].levels[0].behind = True
    for _ in range(LOOKED_MAX):
        node.send(headers=SHORT + b"delay:30000\n" * (line == "delayed"), durable=False)
    if line == "delayed":
        node.send(headers=SHORT, durable=False)
    node.now_us += SECOND_US
    depth = node.depth()

    node.later(0)
    assert node.depth() == depth - 7
    turns(node)

    assert node.depth() == (line == "tail")


def test_what_comes_back_behind_the_search_expires_in_its_time() -> None:
    node = Node(rules=AT_ONCE)
    client = node.client()
    client.subscribe(credit=1)
    node.send(b"comes back", headers=b"ttl:5000\n", durable=False)
    for _ in range(2 * LOOKED_MAX):
        node.send(headers=LONG, durable=False)
    node.send(headers=SHORT, durable=False)

    node.later(SECOND_US)
    client.leave()
    turns(node)
    node.later(4 * SECOND_US)
    turns(node)

    assert node.depth() == 2 * LOOKED_MAX


def test_what_stands_elsewhere_among_the_delayed_since_a_turn_expires_soon() -> None:
    node = Node()
    node.send(b"is due meanwhile", headers=b"delay:1500\n", durable=False)
    for _ in range(LOOKED_MAX + 3):
        node.send(headers=LONG + b"delay:30000\n", durable=False)
    node.send(b"is put in its place", headers=b"ttl:2000\ndelay:40000\n", durable=False)
    node.send(b"begins the search", headers=SHORT, durable=False)

    node.later(SECOND_US)
    node.later(SECOND_US // 2)
    turns(node)
    node.later(SECOND_US)
    turns(node)

    assert node.depth() == 1 + LOOKED_MAX + 3


def test_a_line_that_is_another_one_since_a_turn_is_looked_at_from_its_beginning() -> None:
    node = Node()
    node.send(b"first", durable=False)
    level = node.queues.by_name[JOBS].levels[0]
    level.behind = True
    for count in range(2 * LOOKED_MAX):
        node.send(b"%d" % count, headers=LONG if count < 1.5 * LOOKED_MAX else b"ttl:2000\n", durable=False)
    node.queues.by_name[JOBS].will_expire(node.now_us + SECOND_US)

    node.later(SECOND_US)
    assert level.tail is not None
    level.tail = level.tail[LOOKED_MAX:]  # As an eviction leaves it.
    turns(node)
    node.later(SECOND_US)
    turns(node)

    assert len([message for message in level.tail if not message.settled]) == LOOKED_MAX // 2


@pytest.mark.parametrize("seed", range(20))
def test_what_waits_expires_within_a_second_whatever_happens_between_two_turns(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "LOOKED_MAX", 3)
    monkeypatch.setattr(expiry, "LOOKED_AT_ONCE", 2)
    monkeypatch.setattr(expiry, "AT_ONCE", 2)
    rng = Random(seed)
    node = Node(rules=AT_ONCE)
    client = node.client()
    client.subscribe(credit=4)
    for count in range(300):
        priority = b"priority:%d\n" % rng.choice((1, 4, 9))
        ttl = b"ttl:%d\n" % rng.choice((500, 1000, 3000, 8000))
        node.send(b"%d" % count, headers=priority + ttl, durable=rng.random() < 0.5)
        node.later(rng.choice((0, 0, 1000, 100_000)))
        if client.inbox and rng.random() < 0.5:
            delivery = client.inbox.pop(rng.randrange(len(client.inbox)))
            (client.ack if rng.random() < 0.2 else client.nack)(delivery)
        if rng.random() < 0.05:
            client.leave()
            client = node.client()
            client.subscribe(credit=rng.choice((1, 4)))
        if count % 20 == 0:
            turns(node)
            queue = node.queues.by_name[JOBS]
            waiting = [message for message in queue.waiting() if not message.settled]
            ends = [queue.shared.clocks.expiry(message) for message in waiting]
            assert min(ends, default=node.now_us) > node.now_us - expiry.EXPIRY_PAUSE_US - 100_000
        check_accounts(node)
    client.leave()
    for _ in range(10):
        node.later(SECOND_US)
        turns(node)

    assert node.depth() == 0
    settled = node.settled_dots()
    assert len(settled) == len(set(settled))
