"""Three brokers with perfect in-order links that can be cut, clients that come and go, and restarts.

The links are the shortest honest version of docs/replication: what a node decided travels in order, a cut loses what
is on its way, and a new link begins with copying the journals and with the list of what the borrower still holds.
Everything is one decision at a time, so a failure is a short list of steps. Time is the same everywhere and moves only
when a step says so. What is delivered too often or refused for good becomes a dead letter, which is a message like any
other and must be settled like any other; it accounts for the one that it was made of.
"""

import re
from collections import Counter, deque
from collections.abc import Callable
from itertools import permutations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.consumer_class import offer_name
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Attempts, Message, Settle
from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from qmq.broker.queues.queues import Queues
from qmq.broker.queues.selective.group_choice import accepts
from qmq.broker.queues.selective.outstanding import group_of
from qmq.broker.selectors import compile_selector
from qmq.model.dots import Dot, Origin, Vector, covers

from .rig import JOBS, NOW_US, SECOND_US, Client, Node, Recorded, check_accounts, check_empty, envelope, parts

NAMES = ("a", "b", "c")
QUEUES = (JOBS, "/queue/more", DEAD_LETTERS)
RULES = {
    JOBS: QueueRules(delivery_limit=3),
    "/queue/more": QueueRules(delivery_limit=0, redelivery_us_min=0),
    DEAD_LETTERS: QueueRules(),
}
PAUSE_US_MAX = 60 * SECOND_US
QUIET_STEPS_MAX = 5_000
BUSY_ATTEMPTS_MAX = 5

_LETTER = re.compile(rb"^dead-letter-id:([^\n]*)$", re.MULTILINE)

Event = tuple[str, object]


class Mesh:
    """The nodes, the links, and what the clients have seen of every dot."""

    def __init__(self) -> None:
        self.now_us = NOW_US
        self.nodes = {name: self.node(name, 1) for name in NAMES}
        self.logs: dict[str, dict[Origin, list[Recorded]]] = {name: {} for name in NAMES}
        self.pipes: dict[tuple[str, str], deque[Event]] = {}
        self.copied_since_start: dict[str, set[str]] = {name: set(NAMES) for name in NAMES}
        self.sent: set[Dot] = set()
        self.acked: set[Dot] = set()
        # message-id -> its dead letters that a client has seen, and those of them that were settled.
        self.letters: dict[str, set[Dot]] = {}
        self.buried: set[str] = set()
        self.delivered: set[Dot] = set()
        # What a message of its group has passed, because no consumer that its owner knew of matched it.
        self.passed_over: set[Dot] = set()
        # Origin, durability and group -> the last of its messages that was delivered for the first time.
        self.last_of_group: dict[tuple[Origin, bool, str, bytes, int], int] = {}
        # Dots that an event of at-least-once (a restart, giving up, a lost nudge) allows to be delivered again.
        self.excused: set[Dot] = set()
        for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
            self.connect(first, second)

    def node(self, name: str, incarnation: int) -> Node:
        node = Node(name, incarnation, rules_of=RULES.__getitem__)
        node.now_us = self.now_us
        return node

    # One decision of one node, and what leaves it

    def decide(self, node: Node, action: Callable[[Outcome], object]) -> Outcome:
        seen = {client.id: len(client.inbox) for client in node.clients.values()}
        before = node.broker.memory_sequence
        out = node.decide(action)
        self.see_dispatched(node, out)
        self.sent.update(Dot(node.origin, -n) for n in range(before + 1, node.broker.memory_sequence + 1))
        self.tell(node, out)
        for client in node.clients.values():
            for delivery in client.inbox[seen[client.id] :]:
                self.see(delivery.message)
        return out

    def see(self, message: Message) -> None:
        """A client is given `message`."""
        dot = message.dot
        assert dot not in self.acked or dot in self.excused, f"{dot} is delivered again after its ACK"
        excused = {name_of(dot) for dot in self.excused}
        assert name_of(dot) not in self.letters or dot in self.excused, f"{dot} is delivered after its dead letter"
        self.see_group(message)
        original = original_of(message)
        if original is not None:
            letters = self.letters.setdefault(original, set())
            letters.add(dot)
            assert len(letters) == 1 or original in excused, f"{original} has two dead letters"
            assert original not in {name_of(dot) for dot in self.acked} or original in excused

    def see_group(self, message: Message) -> None:
        """First deliveries of a group come in order, whoever gets them."""
        group, queue = group_of(message), message.envelope.destination
        is_first = message.dot not in self.delivered and not message.attempts
        self.delivered.add(message.dot)
        if group and is_first and message.dot not in self.excused and message.dot not in self.passed_over:
            key = (message.origin, message.sequence > 0, queue, group, level_of(message))
            number = abs(message.sequence)
            assert number > self.last_of_group.get(key, 0), f"{message.dot} was overtaken in its group"
            self.last_of_group[key] = number

    def see_dispatched(self, node: Node, out: Outcome) -> None:
        """What leaves its queue passes only messages of its group that no consumer matches."""
        told = [d.message for run in (out.deliveries_now, out.deliveries_after) for ds in run.values() for d in ds]
        told += [message for messages in out.peer_deliveries.values() for message in messages]
        for message in told:
            queue = node.queues.by_name.get(message.envelope.destination)
            group = group_of(message)
            if not group or message.owner is not None or queue is None or queue.selective is None:
                continue
            takers = [*queue.subscriptions, *(queue.borrowers or {}).values()]
            for other in queue.ready:
                is_before = (-level_of(other), other.place) < (-level_of(message), message.place)
                if group_of(other) == group and is_before and not message.settled and message.dot != other.dot:
                    is_wanted = any(accepts(taker, other) for taker in takers)
                    assert not is_wanted or queue.selective.consumers.active, f"{message.dot} passes {other.dot}"
                    self.passed_over.add(other.dot)

    def wait(self, microseconds: int) -> None:
        """Time passes everywhere."""
        self.now_us += microseconds
        for node in self.nodes.values():
            node.now_us = self.now_us
            self.decide(node, node.broker.tick)

    def tell(self, node: Node, out: Outcome) -> None:
        self.logs[node.name].setdefault(node.origin, []).extend(out.records)
        self.sent.update(p.dot for record in out.records for p in parts(record) if isinstance(p, Message))
        for peer, messages in out.peer_deliveries.items():
            self.put(node.name, peer, "lend", messages)
        for peer, names in out.peer_forgotten.items():
            self.put(node.name, peer, "forgotten", names)
        for peer, queues in out.peer_waiting.items():
            self.put(node.name, peer, "waiting", queues)
        for told in (out.peer_settled_now, out.peer_settled_after):
            for peer, dots in told.items():
                self.put(node.name, peer, "settled", dots)
        for peer, returns in out.peer_returns.items():
            self.put(node.name, peer, "returned", [(message.dot, why, asks) for message, why, asks in returns])
        for peer, queue, limit in node.borrowing.offers():
            self.put(node.name, peer, "offer", (queue, limit))

    def put(self, source: str, target: str, kind: str, what: object) -> None:
        if (source, target) in self.pipes:
            self.pipes[source, target].append((kind, what))
        else:
            self.lose(kind, what)

    def lose(self, kind: str, what: object) -> None:
        if kind == "settled":
            assert isinstance(what, list)
            self.excused.update(dot for dot in what if dot.sequence < 0)

    # What arrives

    def pump(self, source: str, target: str) -> None:
        kind, what = self.pipes[source, target].popleft()
        node, lending, borrowing = self.nodes[target], self.nodes[target].lending, self.nodes[target].borrowing
        if kind == "lend":
            self.decide(node, lambda out: [borrowing.borrow(borrowed(m, source), out) for m in what])  # type: ignore[attr-defined]
        elif kind == "settled":
            self.decide(node, lambda out: lending.settled(source, what))  # type: ignore[arg-type]
        elif kind == "forgotten":
            self.decide(node, lambda out: borrowing.forgotten(source, what))  # type: ignore[arg-type]
        elif kind == "waiting":
            self.decide(node, lambda out: borrowing.waiting(source, what))  # type: ignore[arg-type]
        elif kind == "returned":
            self.decide(node, lambda out: lending.returned(source, what, out))  # type: ignore[arg-type]
        else:
            queue, limit = what  # type: ignore[misc]
            self.decide(node, lambda out: lending.offer(source, queue, limit, out))

    def vector(self, name: str) -> Vector:
        return {origin: len(records) for origin, records in self.logs[name].items()}

    def copy(self, source: str, target: str) -> None:
        """`target` takes the records of `source` that it lacks, and `source` hears that they are there."""
        node, log = self.nodes[target], self.logs[target]
        for origin, records in self.logs[source].items():
            have = log.setdefault(origin, [])
            for record in records[len(have) :]:
                have.append(record)
                self.decide(node, lambda out: self.take(node, origin, record, out))  # noqa: B023
        self.copied_since_start[target].add(source)
        origin = self.nodes[source].origin
        self.nodes[source].borrowing.owner_has(target, len(log.get(origin, [])))

    def take(self, node: Node, origin: Origin, record: Recorded, out: Outcome) -> None:
        for part in parts(record):
            if isinstance(part, Message):
                node.broker.accept(clone(part), out)
            elif isinstance(part, Settle):
                settle = Dot(origin, part.sequence)
                node.broker.accept_settles(part.queue, part.dots, self.vector(node.name), settle)
            elif isinstance(part, Attempts):
                node.queues.redelivery.failed_before(part.counts)

    # Links

    def connect(self, first: str, second: str) -> None:
        for owner, borrower in ((first, second), (second, first)):
            self.pipes[owner, borrower] = deque()
            self.nodes[owner].lending.borrower_connected(borrower)
            self.nodes[borrower].borrowing.owner_connected(owner)
        self.copy(first, second)
        self.copy(second, first)
        for owner, borrower in ((first, second), (second, first)):
            keep = self.nodes[borrower].borrowing.borrowed_from(owner)
            lending = self.nodes[owner].lending
            lost = lending.with_peer(borrower).difference(keep)
            self.decide(self.nodes[owner], lambda out: lending.give_up(borrower, lost, out))  # noqa: B023
            self.decide(self.nodes[borrower], lambda out: None)

    def cut(self, first: str, second: str) -> None:
        for owner, borrower in ((first, second), (second, first)):
            for event in self.pipes.pop((owner, borrower)):
                self.lose(*event)
        for owner, borrower in ((first, second), (second, first)):
            self.nodes[owner].lending.borrower_lost(borrower)
            self.nodes[borrower].borrowing.owner_lost(owner)
            self.decide(self.nodes[owner], lambda out: None)

    def give_up(self, owner: str, borrower: str) -> None:
        node = self.nodes[owner]
        self.excused.update(node.lending.lent.get(borrower, {}))
        self.decide(node, lambda out: node.lending.give_up(borrower, node.lending.with_peer(borrower), out))

    # Restarts

    def restart(self, name: str, *, wiped: bool) -> None:
        for first, second in list(self.pipes):
            if first == name and (first, second) in self.pipes:
                self.cut(first, second)
        old = self.nodes[name]
        for delivery in self.in_flight():
            if delivery.message.origin.node == name:
                self.excused.add(delivery.message.dot)
        self.sent = {dot for dot in self.sent if dot.sequence > 0 or dot.origin != old.origin}
        node = self.nodes[name] = self.node(name, old.origin.incarnation + 1)
        node.queues.held = True
        self.copied_since_start[name] = {name}
        if wiped:
            self.logs[name] = {}
            return
        read = [(origin, p) for origin, log in self.logs[name].items() for record in log for p in parts(record)]
        settled = {dot for _, part in read if isinstance(part, Settle) for dot in part.dots}
        for origin, part in read:
            if isinstance(part, Message) and origin.node == name and part.dot not in settled:
                node.queues.intake.restore(clone(part))
            elif isinstance(part, Attempts):
                node.queues.redelivery.failed_before(part.counts)

    def may_be_wiped(self, name: str) -> bool:
        """Whether every other node has all that this one has: one lost disk must not be the last copy."""
        return all(covers(self.vector(other), self.vector(name)) for other in NAMES if other != name)

    def release(self, name: str) -> None:
        if self.copied_since_start[name] == set(NAMES):
            self.decide(self.nodes[name], self.nodes[name].queues.release_hold)

    # Looking at all of it

    def in_flight(self) -> list[Delivery]:
        return [delivery for node in self.nodes.values() for delivery in node.queues.deliveries.values()]

    def clients(self) -> list[Client]:
        return [client for node in self.nodes.values() for client in node.clients.values() if client.open]

    def quiet(self) -> None:
        """Heal all links and let everything arrive."""
        for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
            if (first, second) not in self.pipes:
                self.connect(first, second)
        for name in NAMES:
            self.release(name)
        steps = 0
        while any(self.pipes.values()):
            for (source, target), pipe in self.pipes.items():
                if pipe:
                    self.pump(source, target)
                    steps += 1
            assert steps < QUIET_STEPS_MAX, "the nodes never come to rest"
        for source, target in permutations(NAMES, 2):
            self.copy(source, target)
        assert not any(self.pipes.values())

    def assert_all_know_all_consumers(self) -> None:
        """Nothing is under way: every node knows each class of consumers of the others, also of those that are full.

        Who is first of the exclusive, and whose a group is, follows from this alone.
        """
        for name, peer in permutations(NAMES, 2):
            there = self.nodes[peer].queues.by_name.values()
            consumers = {offer_name(queue.name, s.lent_as) for queue in there for s in queue.subscriptions}
            assert set(self.nodes[name].lending._borrowing[peer]) == consumers, f"{name} knows others at {peer}"

    def assert_waits_rightly(self, queue: str, message: Message) -> None:
        """Nothing is under way, and still nobody has `message`: there must be a reason."""
        queues = [(name, node.queues.by_name.get(queue)) for name, node in self.nodes.items()]
        consumers = [(name, s) for name, found in queues if found is not None for s in found.subscriptions]
        exclusive = [(s.since_us, name, s) for name, s in consumers if s.since_us]
        if exclusive:
            # Equal times on one node: any of them, and none when they disagree.
            first = [
                s for since_us, name, s in exclusive if (since_us, name) == min(exclusive, key=lambda e: e[:2])[:2]
            ]
            others = {s for _, s in consumers if s not in first and s.in_flight}
            is_starving = all(has_idle(s) and accepts(s, message) for s in first)
            assert others or not is_starving, "the exclusive consumer starves"
            return
        takers = [s for _, s in consumers if accepts(s, message)]
        if group_of(message):
            out = [d for d in self.in_flight() if group_of(d.message) == group_of(message)]
            is_next = message is next((m for m in self.waiting(message) if self.is_wanted(queue, m)), None)
            assert not is_next or out or not takers or not all(has_idle(s) for s in takers), "a group waits for nothing"
        else:
            assert not any(has_idle(s) for s in takers), "a message waits while a node has idle credit for it"

    def waiting(self, message: Message) -> list[Message]:
        """What waits beside `message` of its group, on the node that has it."""
        queues = [node.queues.by_name.get(message.envelope.destination) for node in self.nodes.values()]
        ready = next(found.ready for found in queues if found is not None and message in found.ready)
        return [other for other in ready if group_of(other) == group_of(message)]

    def is_wanted(self, queue: str, message: Message) -> bool:
        found = [node.queues.by_name.get(queue) for node in self.nodes.values()]
        return any(accepts(s, message) for q in found if q is not None for s in q.subscriptions)

    def covered(self, delivery: Delivery) -> list[Message]:
        """What an ACK of `delivery` settles."""
        subscription = delivery.subscription
        if subscription.ack is not Ack.CLIENT:
            return [delivery.message]
        return [d.message for d in subscription.in_flight.values() if d.tag <= delivery.tag]

    def ack(self, client: Client, delivery: Delivery) -> None:
        node = client.node
        self.settle(delivery)
        self.decide(node, lambda out: node.broker.acknowledge(delivery, out))

    def settle(self, delivery: Delivery) -> None:
        """Note what an ACK of `delivery` is about to settle."""
        covered = self.covered(delivery)
        self.acked.update(message.dot for message in covered)
        self.buried.update(original for message in covered if (original := original_of(message)) is not None)


def name_of(dot: Dot) -> str:
    """As in `Message.message_id`."""
    return f"{dot.origin}-m{-dot.sequence}" if dot.sequence < 0 else str(dot)


def original_of(message: Message) -> str | None:
    """The message-id of which `message` is the dead letter; None when it is none."""
    found = _LETTER.search(message.envelope.headers)
    return None if found is None else found[1].decode()


def level_of(message: Message) -> int:
    """Its priority; those of beanstalkd are not in these histories."""
    options = message.envelope.options
    return PRIORITY_DEFAULT if options is None else options.level


def clone(message: Message) -> Message:
    return Message(message.envelope, message.body, message.origin, message.sequence, message.timestamp_us)


def borrowed(message: Message, owner: str) -> Message:
    message, attempts, lent_as = clone(message), message.attempts, message.lent_as
    message.owner = owner
    message.attempts = attempts
    message.lent_as = lent_as
    return message


def held_of(client: Client) -> list[Delivery]:
    session = client.node.broker.sessions[client.id]
    return [d for subscription in session.subscriptions.values() for d in subscription.in_flight.values()]


def has_idle(subscription: Subscription) -> bool:
    window = subscription.window
    return subscription.free > 0 and (window is None or window.room > 0)


HEADERS = st.sampled_from(
    [
        *(b"", b"", b"color:red\n", b"JMSXGroupID:g\n", b"JMSXGroupID:h\n", b"color:red\nmessage_group:g\n"),
        b"priority:7\nJMSXGroupID:g\n",
    ]
)
SELECTOR = st.sampled_from(["", "", "color = 'red'", "color IS NULL"])
EXCLUSIVE = st.sampled_from([False, False, False, True])
NAME = st.sampled_from(NAMES)
QUEUE = st.sampled_from(QUEUES)
PAIR = st.sampled_from([("a", "b"), ("a", "c"), ("b", "c")])
PICK = st.integers(0, 11)


class MeshOfBrokers(RuleBasedStateMachine):
    mesh: Mesh
    subscriptions = 0
    windows: dict[int, ConnectionPrefetch[Subscription]]

    @initialize(
        consumers=st.lists(
            st.tuples(NAME, QUEUE, st.sampled_from(Ack), SELECTOR, EXCLUSIVE, st.booleans()), max_size=4
        ),
        durable=st.booleans(),
        headers=HEADERS,
    )
    def start(self, consumers: list[tuple[str, str, Ack, str, bool, bool]], durable: bool, headers: bytes) -> None:
        """Messages and consumers are there from the beginning: short histories are worth something, too."""
        Client.ids = 0  # groups go by the names of consumers
        self.mesh = Mesh()
        self.windows = {}
        for name in NAMES:
            self.send(name, JOBS, durable, 2, headers)
        for name, queue, ack, selector, exclusive, is_windowed in consumers:
            self.subscribe(name, queue, 3, ack, False, 0, selector, exclusive, is_windowed)

    @rule(name=NAME, queue=QUEUE, durable=st.booleans(), count=st.integers(1, 4), headers=HEADERS)
    def send(self, name: str, queue: str, durable: bool, count: int, headers: bytes) -> None:
        mesh, node = self.mesh, self.mesh.nodes[name]
        kind = envelope(queue, durable=durable, headers=headers)
        mesh.decide(node, lambda out: [node.broker.send(kind, b"body", mesh.now_us, out) for _ in range(count)])

    @rule(microseconds=st.sampled_from([1, SECOND_US // 10, SECOND_US, PAUSE_US_MAX]))
    def wait(self, microseconds: int) -> None:
        self.mesh.wait(microseconds)

    @rule(
        name=NAME,
        queue=QUEUE,
        credit=st.integers(1, 4),
        ack=st.sampled_from(Ack),
        second=st.booleans(),
        selector=SELECTOR,
        exclusive=EXCLUSIVE,
        is_windowed=st.booleans(),
        timeout_us=st.sampled_from([0, 0, SECOND_US]),
    )
    def subscribe(
        self,
        name: str,
        queue: str,
        credit: int,
        ack: Ack,
        second: bool,
        timeout_us: int,
        selector: str,
        exclusive: bool,
        is_windowed: bool,
    ) -> None:
        node = self.mesh.nodes[name]
        open_clients = [client for client in node.clients.values() if client.open]
        client = open_clients[0] if second and open_clients else node.client()
        self.subscriptions += 1
        subscription = Subscription(client.id, f"s{self.subscriptions}", queue, ack, credit, b"")
        subscription.ack_timeout_us = timeout_us
        subscription.exclusive = exclusive
        if selector:
            subscription.selector = compile_selector(selector)
        if is_windowed:
            subscription.window = self.windows.setdefault(client.id, ConnectionPrefetch(2))
        self.mesh.decide(node, lambda out: node.broker.subscriptions.subscribe(subscription, out))

    def a_client(self, pick: int, *, busy: bool = False) -> Client | None:
        clients = [client for client in self.mesh.clients() if not busy or held_of(client)]
        return clients[pick % len(clients)] if clients else None

    @rule(who=PICK, which=PICK)
    def ack(self, who: int, which: int) -> None:
        client = self.a_client(who, busy=True)
        if client is not None:
            held = held_of(client)
            self.mesh.ack(client, held[which % len(held)])

    @rule(who=PICK, which=PICK, why=st.sampled_from([Back.FAILED, Back.FAILED, Back.REJECTED]))
    def nack(self, who: int, which: int, why: Back) -> None:
        client = self.a_client(who, busy=True)
        if client is not None:
            held = held_of(client)
            node = client.node
            self.mesh.decide(node, lambda out: node.broker.refuse(held[which % len(held)], out, why))

    @rule(who=PICK, why=st.sampled_from([Back.FAILED, Back.REJECTED]))
    def nack_all(self, who: int, why: Back) -> None:
        """A client that cannot work at all: it refuses whatever comes, until nothing comes at once."""
        client = self.a_client(who, busy=True)
        while client is not None and (held := held_of(client)):
            node, delivery = client.node, held[0]
            if delivery.message.attempts > BUSY_ATTEMPTS_MAX:
                break
            self.mesh.decide(node, lambda out: node.broker.refuse(delivery, out, why))  # noqa: B023

    @rule(who=PICK, which=PICK, queue=QUEUE)
    def turn_one_message_into_another(self, who: int, which: int, queue: str) -> None:
        client = self.a_client(who, busy=True)
        if client is not None:
            mesh, broker, held = self.mesh, client.node.broker, held_of(client)
            delivery = held[which % len(held)]
            client.begin()
            client.hold(HeldFrame(envelope=envelope(queue), body=b"made"))
            client.hold(HeldFrame(delivery=delivery))
            mesh.settle(delivery)
            mesh.decide(client.node, lambda out: broker.commit(client.id, "t", mesh.now_us, out))

    @rule(who=PICK)
    def leave(self, who: int) -> None:
        client = self.a_client(who)
        if client is not None:
            client.open = False
            node = client.node
            self.mesh.decide(node, lambda out: node.broker.close_session(client.id, out))

    @rule(who=PICK, which=PICK)
    def unsubscribe(self, who: int, which: int) -> None:
        client = self.a_client(who)
        if client is not None:
            node = client.node
            ids = list(node.broker.sessions[client.id].subscriptions)
            if ids:
                wanted = ids[which % len(ids)]
                subscription = node.broker.sessions[client.id].subscriptions[wanted]
                for delivery in subscription.in_flight.values() if subscription.ack is Ack.AUTO else ():
                    self.mesh.settle(delivery)
                self.mesh.decide(node, lambda out: node.broker.subscriptions.unsubscribe(client.id, wanted, out))

    @rule(pick=PICK, count=st.integers(1, 5))
    def arrive(self, pick: int, count: int) -> None:
        for _ in range(count):
            full = [ends for ends, pipe in self.mesh.pipes.items() if pipe]
            if full:
                self.mesh.pump(*full[pick % len(full)])

    @rule(writer=NAME, reader=NAME)
    def copy(self, writer: str, reader: str) -> None:
        if (writer, reader) in self.mesh.pipes:
            self.mesh.copy(writer, reader)

    @rule(pair=PAIR)
    def cut_or_heal(self, pair: tuple[str, str]) -> None:
        if pair in self.mesh.pipes:
            self.mesh.cut(*pair)
        else:
            self.mesh.connect(*pair)

    @rule(owner=NAME, borrower=NAME)
    def give_up(self, owner: str, borrower: str) -> None:
        if owner != borrower and (owner, borrower) not in self.mesh.pipes:
            self.mesh.give_up(owner, borrower)

    @rule(name=NAME, wiped=st.booleans())
    def restart(self, name: str, wiped: bool) -> None:
        self.mesh.restart(name, wiped=wiped and self.mesh.may_be_wiped(name))

    @rule(name=NAME)
    def release(self, name: str) -> None:
        self.mesh.release(name)

    @rule()
    def come_to_rest(self) -> None:
        self.mesh.quiet()
        self.mesh.assert_all_know_all_consumers()
        # The windows of a killed node are of its time; nothing changes them any more.
        windows = [self.windows[client.id] for client in self.mesh.clients() if client.id in self.windows]
        assert not any(window.turn for window in windows), "a place is kept for nothing"
        nodes = self.mesh.nodes.values()
        for queue in QUEUES:
            for node in nodes:
                found = node.queues.by_name.get(queue)
                for message in [] if found is None else found.ready:
                    self.mesh.assert_waits_rightly(queue, message)
            late = [m for node in nodes for m in delayed_in(node, queue) if m[0] <= self.mesh.now_us]
            assert not late, "a message is delayed beyond its time"

    @invariant()
    @precondition(lambda self: hasattr(self, "mesh"))
    def accounts_agree(self) -> None:
        for node in self.mesh.nodes.values():
            check_accounts(node)

    @invariant()
    @precondition(lambda self: hasattr(self, "mesh"))
    def no_message_is_with_two_clients(self) -> None:
        holders = Counter(d.message.dot for d in self.mesh.in_flight())
        twice = {dot for dot, count in holders.items() if count > 1}
        assert twice <= self.mesh.excused

    def teardown(self) -> None:
        if not hasattr(self, "mesh"):
            return
        mesh = self.mesh
        mesh.quiet()
        for client in mesh.clients():
            client.open = False
            mesh.decide(client.node, lambda out: client.node.broker.close_session(client.id, out))  # noqa: B023
        drain = mesh.nodes["b"].client()
        for queue in QUEUES:
            drain.subscribe(queue, id=queue, credit=3)
        mesh.decide(drain.node, lambda out: None)
        mesh.quiet()
        # What was delayed comes at the latest now.
        mesh.wait(PAUSE_US_MAX)
        mesh.quiet()
        while held := held_of(drain):
            for delivery in held:
                mesh.ack(drain, delivery)
            mesh.quiet()
        drain.open = False
        mesh.decide(drain.node, lambda out: drain.node.broker.close_session(drain.id, out))
        mesh.quiet()

        lost = {dot for dot in mesh.sent - mesh.acked if name_of(dot) not in mesh.buried}
        assert not lost
        for node in mesh.nodes.values():
            check_empty(node)
            assert all_settled(node.queues)
        for ends in list(mesh.pipes):
            if ends in mesh.pipes:
                mesh.cut(*ends)
        for node in mesh.nodes.values():
            lending, borrowing = node.lending, node.borrowing
            assert not lending._borrowing and not borrowing._received and not borrowing._offered
            check_empty(node)


def delayed_in(node: Node, queue: str) -> list[tuple[int, int, Message]]:
    found = node.queues.by_name.get(queue)
    return [] if found is None or found.delayed is None else found.delayed


def all_settled(queues: Queues) -> bool:
    return not any(queues.owned.by_origin.values()) and not any(queues.owned.settled_here.values())


TestMeshOfBrokers = MeshOfBrokers.TestCase
TestMeshOfBrokers.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def test_what_comes_back_of_a_group_is_seen_by_the_consumer_that_gets_the_group_from_parked_messages() -> None:
    """A history that the machine above has found: the group changed hands when a borrowed message left its parking."""
    mesh = MeshOfBrokers()
    headers = b"message_group:g\n"
    consumers = [("a", JOBS, Ack.AUTO, "", False, False), ("c", "/queue/more", Ack.AUTO, "", False, True)]
    mesh.start(consumers=consumers, durable=False, headers=headers)
    mesh.ack(who=0, which=0)
    mesh.cut_or_heal(pair=("a", "b"))
    mesh.arrive(pick=4, count=4)
    mesh.subscribe("c", JOBS, 1, Ack.AUTO, True, 0, "", False, False)
    mesh.send("a", JOBS, False, 3, b"")
    mesh.cut_or_heal(pair=("a", "b"))
    mesh.leave(who=0)
    mesh.come_to_rest()

    mesh.nack_all(who=0, why=Back.FAILED)

    mesh.accounts_agree()
    mesh.come_to_rest()
    mesh.teardown()


def test_a_window_keeps_no_place_for_messages_that_go_to_an_exclusive_consumer_of_another_node() -> None:
    """A history that the machine above has found: c said that messages wait, and then b's consumer was exclusive."""
    mesh = MeshOfBrokers()
    windowed, plain = ("a", JOBS, Ack.AUTO, "", False, True), ("a", JOBS, Ack.AUTO, "", False, False)
    exclusive = ("b", JOBS, Ack.AUTO, "", True, False)
    mesh.start(consumers=[windowed, plain, plain, exclusive], durable=False, headers=b"")
    mesh.come_to_rest()

    mesh.ack(who=0, which=0)

    mesh.accounts_agree()
    mesh.come_to_rest()
    mesh.teardown()
