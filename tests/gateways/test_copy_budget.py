"""What one message becomes: its copies, their dead letters, and so on, in topologies that multiply and go round."""

import random
from collections import Counter

import pytest

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.copy_budget import COPIES_LEFT, copies_left, share_line
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.limits import COPIES_MAX
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.broker.queues.dead_letters import PATH_MAX
from qmq.broker.routing.binding import Binding, Exchange
from qmq.model.dots import Origin
from tests.gateways.test_copies import LETTERS_AT_ONCE, bind, headers_of, records, rules_of, send
from tests.gateways.test_stomp import ORIGIN, Client

SECOND_US = 1_000_000
TTL = {"ttl": "1000"}


def client_with(rules: dict[str, QueueRules], origin: Origin = ORIGIN, *, alive: tuple[str, ...] = ()) -> Client:
    """A client of a node whose queues have these rules; in all but those `alive`, messages live for a second."""
    routes: list[Client] = []
    broker = Broker(
        origin,
        2,
        rules_of=lambda name: rules.get(name, QueueRules()),
        defaults_of=lambda name: TTL if name in rules and name not in alive else {},
        route=lambda exchange, key, headers: rules_of(routes[0]).routing.route(exchange, key, headers),
    )
    client = Client(broker=broker)
    routes.append(client)
    return client


def waiting(client: Client) -> list[Message]:
    """All messages of the node, wherever they wait, in flight or not."""
    queues = client.broker.queues
    found = [one for queue in queues.by_name.values() for one in queue.waiting() if not one.settled]
    return found + [one.message for one in queues.deliveries.values()]


def depths(client: Client) -> dict[str, int]:
    return dict(Counter(one.envelope.destination for one in waiting(client)))


# The attack, and what is allowed


def circle(count: int) -> Client:
    """Queues whose messages expire into an exchange that is bound to all of them."""
    to_all = QueueRules(dead_letter="/exchange/all", keeps_dropped=True)
    names = [str(number) for number in range(count)]
    client = client_with({f"/queue/{name}": to_all for name in names})
    rules_of(client).routing.put_exchange(Exchange("all", "fanout"))
    bind(client, "/exchange/all", *names)
    return client


@pytest.mark.parametrize("count", [2, 10, 100])
def test_one_message_in_queues_that_expire_into_all_of_them_becomes_a_bounded_number(count: int) -> None:
    client = circle(count)
    client.say(send("/queue/0", ttl="1000"))

    while any(name != DEAD_LETTERS for name in depths(client)):
        client.later(2 * SECOND_US)
        assert sum(depths(client).values()) <= COPIES_MAX

    assert client.broker.next_sequence < 3 * COPIES_MAX


def test_each_copy_has_its_share_and_without_one_there_is_one_letter() -> None:
    client = circle(11)
    client.say(send("/queue/0", ttl="1000"))

    lefts = []
    for _ in range(5):
        client.later(2 * SECOND_US)
        lefts.append({copies_left(one.envelope.headers) for one in waiting(client)})

    assert lefts == [{100}, {11}, {1}, {1}, {1}]
    assert depths(client) == {DEAD_LETTERS: 10 * 9 * 8}


def retry_loop() -> Client:
    """`work` and `work.retry`, whose messages wait for a second."""
    rules = {
        "/queue/work": QueueRules(dead_letter="/queue/work.retry", keeps_dropped=True),
        "/queue/work.retry": QueueRules(dead_letter="/queue/work", keeps_dropped=True),
    }
    return client_with(rules, alive=("/queue/work",))


def test_a_retry_loop_turns_for_as_long_as_its_consumer_rejects() -> None:
    client = retry_loop()
    client.say("SUBSCRIBE\nid:1\ndestination:/queue/work\nack:client-individual")
    out = client.say(send("/queue/work"))

    for _ in range(2 * PATH_MAX):
        ((headers, _),) = client.read(out)
        assert COPIES_LEFT not in headers
        client.say(f"NACK\nid:{headers['ack']}\nrequeue:false")
        assert depths(client) == {"/queue/work.retry": 1}
        out = client.later(2 * SECOND_US)


def test_a_retry_loop_is_cut_when_a_message_comes_round_without_a_consumer() -> None:
    client = retry_loop()
    client.say(send("/queue/work.retry", ttl="1000"))
    client.later(2 * SECOND_US)
    (message,) = waiting(client)
    assert message.envelope.destination == "/queue/work"

    # As where the messages of both expire.
    out = Outcome(now_us=client.now_us)
    client.broker.queues.redelivery.drop(client.broker.queues.by_name["/queue/work"], message, "expired", out)
    client.told(out)

    assert depths(client) == {DEAD_LETTERS: 1}


def test_queues_in_which_messages_expire_one_after_the_other_are_many_and_not_without_end() -> None:
    rules = {f"/queue/{at}": QueueRules(dead_letter=f"/queue/{at + 1}", keeps_dropped=True) for at in range(50)}
    client = client_with(rules)
    client.say(send("/queue/0", ttl="1000"))

    for _ in range(PATH_MAX):
        client.later(2 * SECOND_US)
    assert depths(client) == {f"/queue/{PATH_MAX}": 1}

    client.later(2 * SECOND_US)
    assert depths(client) == {DEAD_LETTERS: 1}


def test_a_redrive_begins_with_all_copies_again_and_a_move_does_not() -> None:
    client = circle(3)
    client.say(send("/exchange/all"))
    (one,) = [one for one in waiting(client) if one.envelope.destination == "/queue/0"]
    bulk = client.broker.bulk_settlement
    client.say("SUBSCRIBE\nid:1\ndestination:/queue/0\nack:client-individual")
    assert copies_left(one.envelope.headers) == COPIES_MAX // 3
    (delivery,) = client.broker.queues.deliveries.values()
    out = Outcome(now_us=client.now_us)
    client.broker.refuse(delivery, out, Back.REJECTED)
    client.told(out)
    letters = [one for one in waiting(client) if one.envelope.destination == "/queue/1"]

    moved = Outcome(now_us=client.now_us)
    assert bulk.move(bulk.waiting("/queue/1", letters), "/queue/moved", moved)[0] == 2
    client.told(moved)
    lefts = sorted(copies_left(one.envelope.headers) for one in waiting(client) if "moved" in one.envelope.destination)
    assert lefts == [COPIES_MAX // 3 // 2, COPIES_MAX // 3]

    letter = [one for one in waiting(client) if b"dead-letter-from" in one.envelope.headers][-1]
    redriven = Outcome(now_us=client.now_us)
    bulk.move(bulk.waiting(letter.envelope.destination, [letter]), "", redriven)
    client.told(redriven)
    assert COPIES_MAX in {copies_left(one.envelope.headers) for one in waiting(client)}


# Every way in which one message becomes many


def test_copies_of_every_kind_share_what_a_message_may_become() -> None:
    client = Client()
    bind(client, "/topic/t", "a", "b")
    bind(client, "/fanout/f", "a", "b")
    bind(client, "/exchange/amq.fanout", "a", "b")
    rules_of(client).routing.put_exchange(Exchange("main", "direct", "amq.fanout"))
    rules_of(client).routing.put_exchange(Exchange("joined", "fanout"))
    rules_of(client).routing.add(Binding("/exchange/joined", "/exchange/amq.fanout", "", {}))
    rules_of(client).children = lambda name: ("/queue/a", "/queue/b") if name == "/fanout/children" else ()
    sends = [
        send("/topic/t"),
        send("/fanout/f"),
        send("/fanout/children"),
        send("/exchange/amq.fanout"),
        send("/exchange/main/none"),
        send("/exchange/joined"),
        send("/queue/a", routing_keys='["b"]'),
    ]

    for frame in sends:
        out = client.say(frame)

        assert f"{COPIES_LEFT}:{COPIES_MAX // 2}" in headers_of(out, "/queue/a")
        assert f"{COPIES_LEFT}:{COPIES_MAX // 2}" in headers_of(out, "/queue/b")


def test_one_copy_has_all_and_needs_no_header() -> None:
    client = Client()
    bind(client, "/exchange/amq.fanout", "a")

    out = client.say(send("/exchange/amq.fanout"))

    assert records(out) == [("/queue/a", b"x")]
    assert not [line for line in headers_of(out, "/queue/a") if line.startswith(COPIES_LEFT)]


def test_what_a_sender_says_of_its_copies_has_no_effect() -> None:
    client = Client()
    bind(client, "/exchange/amq.fanout", "a", "b")

    one = client.say(send("/queue/q", qmq_copies_left="1000000"))
    two = client.say(send("/exchange/amq.fanout", qmq_copies_left="1000000"))

    assert headers_of(one, "/queue/q") == []
    assert headers_of(two, "/queue/a") == ["qmq-copies-left:500", "exchange:amq.fanout", "routing-key:"]


@pytest.mark.parametrize(("left", "count", "share"), [(1000, 3, 333), (7, 4, 1), (7, 7, 1), (1, 1, 1), (1000, 1, 1000)])
def test_a_share_is_rounded_down_and_read_from_its_line(left: int, count: int, share: int) -> None:
    assert copies_left(b"a:b\n" + share_line(left, count) + b"c:d\n") == share


@pytest.mark.parametrize(
    "headers", [b"", b"x-qmq-copies-left:1\n", b"qmq-copies-left:many\n", b"qmq-copies-left:5000\n"]
)
def test_a_message_of_which_no_node_has_said_anything_has_all(headers: bytes) -> None:
    assert copies_left(headers) == COPIES_MAX


# Turns


@pytest.mark.parametrize("persistent", ["true", "false"])
def test_letters_of_what_expires_come_in_turns_wherever_they_are_kept(persistent: str) -> None:
    client = wide(keeps_dropped=True)
    client.say(*[send("/queue/q", ttl="1000", persistent=persistent)] * 12)

    turns = []
    client.now_us += 2 * SECOND_US
    while client.broker.queues.deadlines.next_us:
        before = client.broker.totals.node().accepted
        client.later(1_000)
        turns.append(client.broker.totals.node().accepted - before)

    assert sum(turns) == 12 * COPIES_MAX
    assert max(turns) == LETTERS_AT_ONCE


def test_letters_of_what_a_consumer_finds_expired_come_in_turns() -> None:
    client = wide(keeps_dropped=True)
    client.say(*[send("/queue/q", ttl="1000")] * 12)
    client.now_us += 2 * SECOND_US

    out = client.say("SUBSCRIBE\nid:1\ndestination:/queue/q")

    assert len(out.records) == LETTERS_AT_ONCE
    for _ in range(12 * COPIES_MAX // LETTERS_AT_ONCE):
        client.later(1_000)
    assert "/queue/q" not in depths(client)


def test_letters_of_what_a_consumer_refuses_at_once_come_in_turns() -> None:
    client = wide()
    client.say("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\nprefetch-count:12")
    out = client.say(*[send("/queue/q")] * 12)

    out = client.say(f"NACK\nid:{client.read(out)[-1][0]['ack']}\nrequeue:false")

    assert len([one for one in out.records if isinstance(one, Message)]) < LETTERS_AT_ONCE
    assert depths(client)["/queue/q"] == 12 - LETTERS_AT_ONCE // COPIES_MAX


def test_letters_of_full_queues_that_drop_for_each_other_come_in_turns() -> None:
    full = QueueRules(messages_max=1, overflow="drop-oldest", dead_letter="/exchange/all", keeps_dropped=True)
    names = [str(number) for number in range(300)]
    client = client_with({f"/queue/{name}": full for name in names})
    rules_of(client).routing.put_exchange(Exchange("all", "fanout"))
    bind(client, "/exchange/all", *names)
    for name in names:
        client.say(send(f"/queue/{name}"))

    out = client.say(send("/queue/0", "y"))

    assert len(out.records) < 2 * LETTERS_AT_ONCE


def wide(**rules: bool) -> Client:
    """The letters of /queue/q go to as many queues as a message may."""
    client = client_with({"/queue/q": QueueRules(dead_letter="/exchange/wide", **rules)})
    rules_of(client).routing.put_exchange(Exchange("wide", "fanout"))
    bind(client, "/exchange/wide", *[f"w{number}" for number in range(COPIES_MAX)])
    return client


@pytest.mark.parametrize(("bindings", "queue"), [(800, "/queue/w"), (13_000, DEAD_LETTERS)])
def test_letters_that_cost_much_to_route_come_in_turns_and_too_much_is_not_routed(bindings: int, queue: str) -> None:
    client = client_with({"/queue/q": QueueRules(dead_letter="/exchange/amq.headers", keeps_dropped=True)})
    expired = {"x-match": "any", "dead-letter-reason": "expired"}
    for number in range(bindings):
        bind(client, "/exchange/amq.headers", "w", arguments={**expired, "n": str(number)})
    client.say(*[send("/queue/q", ttl="1000")] * 200)

    client.later(2 * SECOND_US)
    assert 0 < depths(client)[queue] < 100

    while "/queue/q" in depths(client):
        client.later(1_000)
    assert depths(client) == {queue: 200}


# Random topologies


class World:
    """A node with random queues, exchanges and rules, and one message whose body is in all that comes of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = [f"q{number}" for number in range(self.random.randint(2, 12))]
        self.exchanges = ["x", "y", "z"]
        targets = [f"/queue/{name}" for name in self.names] + [f"/exchange/{name}" for name in self.exchanges] * 3
        self.rules = {
            f"/queue/{name}": QueueRules(
                dead_letter=self.random.choice(targets),
                keeps_dropped=True,
                delivery_limit=self.random.choice([1, 2, 20]),
                messages_max=self.random.choice([0, 0, 1, 20]),
                overflow=self.random.choice(["drop-oldest", "drop-newest", "refuse"]),
            )
            for name in (*self.names, "dead-letters")
            if name != "dead-letters" or self.random.random() < 0.2
        }
        dead = self.rules.get(DEAD_LETTERS)
        if dead is not None and dead.dead_letter.startswith("/exchange/"):
            del self.rules[DEAD_LETTERS]  # As a policy refuses it.
        self.alive = tuple(name for name in self.rules if self.random.random() < 0.2)
        self.incarnation = ORIGIN.incarnation
        self.client = client_with(self.rules, alive=self.alive)
        routing = rules_of(self.client).routing
        for name in self.exchanges:
            alternate = self.random.choice(["", *self.exchanges])
            routing.put_exchange(Exchange(name, self.random.choice(["fanout", "direct", "topic"]), alternate))
        for name in self.exchanges:
            for queue in self.names:
                if self.random.random() < 0.6:
                    routing.add(Binding(f"/exchange/{name}", f"/queue/{queue}", self.random.choice("ab"), {}))
            if self.random.random() < 0.5:
                other = self.random.choice([one for one in self.exchanges if one != name])
                routing.add(Binding(f"/exchange/{name}", f"/exchange/{other}", "a", {}))
        self.routing = routing

    def begin(self) -> None:
        to = self.random.choice([f"/queue/{self.names[0]}", "/exchange/x/a", "/exchange/y/b"])
        further = {"routing_keys": '["a", "b"]'} if to.startswith("/exchange/") else {}
        persistent = self.random.choice(["true", "true", "false"])
        self.client.say(send(to, ttl="1000", persistent=persistent, qmq_copies_left="999999999", **further))

    def step(self) -> None:
        act = self.random.choice([self.wait, self.wait, self.refuse, self.restart])
        act()

    def wait(self) -> None:
        self.client.later(self.random.choice([1_000, SECOND_US, 3 * SECOND_US]))

    def refuse(self) -> None:
        """A consumer takes what it gets of one queue, refuses it, and leaves."""
        queue = f"/queue/{self.random.choice(self.names)}"
        client = self.client
        out = client.say(f"SUBSCRIBE\nid:1\ndestination:{queue}\nack:client-individual\nprefetch-count:50")
        requeue = self.random.choice(["true", "false"])
        for headers, _ in client.read(out):
            if self.random.random() < 0.5:
                client.say(f"NACK\nid:{headers['ack']}\nrequeue:{requeue}")
        client.say("UNSUBSCRIBE\nid:1")

    def restart(self) -> None:
        """Another life of the node serves what is left: as after a crash, a takeover or an adoption."""
        left = [one for one in waiting(self.client) if one.sequence > 0]
        now_us = self.client.now_us
        self.incarnation += 1
        self.client = client_with(self.rules, Origin(ORIGIN.node, self.incarnation), alive=self.alive)
        self.client.now_us = now_us
        rules_of(self.client).routing = self.routing
        out = Outcome(now_us=now_us)
        for one in left:
            self.client.broker.accept(Message(one.envelope, one.body, one.origin, one.sequence, one.timestamp_us), out)
        self.client.told(out)


@pytest.mark.parametrize("seed", range(40))
def test_in_no_topology_does_one_message_become_more_than_it_may(seed: int) -> None:
    world = World(seed)
    world.begin()

    for _ in range(25):
        world.step()
        now = waiting(world.client)
        assert sum(copies_left(one.envelope.headers) for one in now) <= COPIES_MAX
        assert len({one.dot for one in now}) <= COPIES_MAX

    # By itself nothing goes round for ever.
    for _ in range(2 * PATH_MAX):
        world.client.later(3 * SECOND_US)
    before = world.client.broker.totals.node().accepted
    world.client.later(10 * SECOND_US)
    assert world.client.broker.totals.node().accepted == before
