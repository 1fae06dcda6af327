"""Three brokers with perfect in-order links that can be cut, clients that come and go, and restarts.

The links are the shortest honest version of docs/replication: what a node decided travels in order, a cut loses what
is on its way, and a new link begins with copying the journals and with the list of what the borrower still holds.
Everything is one decision at a time, so a failure is a short list of steps.
"""

from collections import Counter, deque
from collections.abc import Callable
from itertools import permutations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qmq.broker.message import Gap, Message, Settle
from qmq.broker.outcome import Outcome
from qmq.broker.queues import Queues
from qmq.broker.session import Held
from qmq.broker.subscription import Ack, Delivery, Subscription
from qmq.dots import Dot, Origin, Vector, covers

from .rig import JOBS, NOW_US, Client, Node, check_accounts, check_empty, envelope

NAMES = ("a", "b", "c")
QUEUES = (JOBS, "/queue/more")
QUIET_STEPS_MAX = 5_000

Event = tuple[str, object]


class Mesh:
    """The nodes, the links, and what the clients have seen of every dot."""

    def __init__(self) -> None:
        self.nodes = {name: Node(name) for name in NAMES}
        self.logs: dict[str, dict[Origin, list[Message | Settle | Gap]]] = {name: {} for name in NAMES}
        self.pipes: dict[tuple[str, str], deque[Event]] = {}
        self.copied_since_start: dict[str, set[str]] = {name: set(NAMES) for name in NAMES}
        self.sent: set[Dot] = set()
        self.acked: set[Dot] = set()
        # Dots that an event of at-least-once (a restart, giving up, a lost nudge) allows to be delivered again.
        self.excused: set[Dot] = set()
        for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
            self.connect(first, second)

    # One decision of one node, and what leaves it

    def decide(self, node: Node, action: Callable[[Outcome], object]) -> Outcome:
        seen = {client.id: len(client.inbox) for client in node.clients.values()}
        out = node.decide(action)
        self.tell(node, out)
        for client in node.clients.values():
            for delivery in client.inbox[seen[client.id] :]:
                dot = delivery.message.dot
                assert dot not in self.acked or dot in self.excused, f"{dot} is delivered again after its ACK"
        return out

    def tell(self, node: Node, out: Outcome) -> None:
        self.logs[node.name].setdefault(node.origin, []).extend(out.records)
        self.sent.update(record.dot for record in out.records if isinstance(record, Message))
        for peer, messages in out.peer_deliveries.items():
            self.put(node.name, peer, "lend", messages)
        for told in (out.peer_settled_now, out.peer_settled_after):
            for peer, dots in told.items():
                self.put(node.name, peer, "settled", dots)
        for peer, returns in out.peer_returns.items():
            self.put(node.name, peer, "returned", [(message.dot, seen) for message, seen in returns])
        for peer, queue, limit in node.lending.offers():
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
        node, lending = self.nodes[target], self.nodes[target].lending
        if kind == "lend":
            self.decide(node, lambda out: [lending.borrow(borrowed(m, source), out) for m in what])  # type: ignore[attr-defined]
        elif kind == "settled":
            self.decide(node, lambda out: lending.settled(source, what))  # type: ignore[arg-type]
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
                self.decide(node, lambda out: self.take(node, record, out))  # noqa: B023
        self.copied_since_start[target].add(source)
        origin = self.nodes[source].origin
        self.nodes[source].lending.owner_has(target, len(log.get(origin, [])))

    def take(self, node: Node, record: Message | Settle | Gap, out: Outcome) -> None:
        if isinstance(record, Message):
            node.broker.accept(clone(record), out)
        elif isinstance(record, Settle):
            node.broker.accept_settles(record.dots, self.vector(node.name))

    # Links

    def connect(self, first: str, second: str) -> None:
        for owner, borrower in ((first, second), (second, first)):
            self.pipes[owner, borrower] = deque()
            self.nodes[owner].lending.borrower_connected(borrower)
            self.nodes[borrower].lending.owner_connected(owner)
        self.copy(first, second)
        self.copy(second, first)
        for owner, borrower in ((first, second), (second, first)):
            keep = self.nodes[borrower].lending.borrowed_from(owner)
            lending = self.nodes[owner].lending
            self.decide(self.nodes[owner], lambda out: lending.give_up(borrower, keep, out))  # noqa: B023
            self.decide(self.nodes[borrower], lambda out: None)

    def cut(self, first: str, second: str) -> None:
        for owner, borrower in ((first, second), (second, first)):
            for event in self.pipes.pop((owner, borrower)):
                self.lose(*event)
        for owner, borrower in ((first, second), (second, first)):
            self.nodes[owner].lending.borrower_lost(borrower)
            self.nodes[borrower].lending.owner_lost(owner)
            self.decide(self.nodes[owner], lambda out: None)

    def give_up(self, owner: str, borrower: str) -> None:
        node = self.nodes[owner]
        self.excused.update(node.lending.lent.get(borrower, {}))
        self.decide(node, lambda out: node.lending.give_up(borrower, [], out))

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
        node = self.nodes[name] = Node(name, old.origin.incarnation + 1)
        node.queues.held = True
        self.copied_since_start[name] = {name}
        if wiped:
            self.logs[name] = {}
            return
        settled = {dot for log in self.logs[name].values() for r in log if isinstance(r, Settle) for dot in r.dots}
        for origin, records in self.logs[name].items():
            for record in records:
                if isinstance(record, Message) and origin.node == name and record.dot not in settled:
                    node.queues.restore(clone(record))

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

    def covered(self, delivery: Delivery) -> list[Dot]:
        """What an ACK of `delivery` settles."""
        subscription = delivery.subscription
        if subscription.ack is not Ack.CLIENT:
            return [delivery.message.dot]
        return [d.message.dot for d in subscription.in_flight.values() if d.tag <= delivery.tag]

    def ack(self, client: Client, delivery: Delivery) -> None:
        node = client.node
        self.acked.update(self.covered(delivery))
        self.decide(node, lambda out: node.broker.acknowledge(delivery, out))


def clone(message: Message) -> Message:
    return Message(message.envelope, message.body, message.origin, message.sequence, message.timestamp_us)


def borrowed(message: Message, owner: str) -> Message:
    message, attempts = clone(message), message.attempts
    message.owner = owner
    message.attempts = attempts
    return message


def held_of(client: Client) -> list[Delivery]:
    session = client.node.broker.sessions[client.id]
    return [d for subscription in session.subscriptions.values() for d in subscription.in_flight.values()]


NAME = st.sampled_from(NAMES)
QUEUE = st.sampled_from(QUEUES)
PAIR = st.sampled_from([("a", "b"), ("a", "c"), ("b", "c")])
PICK = st.integers(0, 11)


class MeshOfBrokers(RuleBasedStateMachine):
    mesh: Mesh
    subscriptions = 0

    @initialize()
    def start(self) -> None:
        self.mesh = Mesh()

    @rule(name=NAME, queue=QUEUE, durable=st.booleans(), count=st.integers(1, 4))
    def send(self, name: str, queue: str, durable: bool, count: int) -> None:
        mesh, node = self.mesh, self.mesh.nodes[name]
        kind = envelope(queue, durable=durable)
        before = node.broker.memory_sequence
        mesh.decide(node, lambda out: [node.broker.send(kind, b"body", NOW_US, out) for _ in range(count)])
        mesh.sent.update(Dot(node.origin, -n) for n in range(before + 1, node.broker.memory_sequence + 1))

    @rule(name=NAME, queue=QUEUE, credit=st.integers(1, 4), ack=st.sampled_from(Ack), second=st.booleans())
    def subscribe(self, name: str, queue: str, credit: int, ack: Ack, second: bool) -> None:
        node = self.mesh.nodes[name]
        open_clients = [client for client in node.clients.values() if client.open]
        client = open_clients[0] if second and open_clients else node.client()
        self.subscriptions += 1
        subscription = Subscription(client.id, f"s{self.subscriptions}", queue, ack, credit, b"")
        self.mesh.decide(node, lambda out: node.broker.subscribe(subscription, out))

    def a_client(self, pick: int, *, busy: bool = False) -> Client | None:
        clients = [client for client in self.mesh.clients() if not busy or held_of(client)]
        return clients[pick % len(clients)] if clients else None

    @rule(who=PICK, which=PICK)
    def ack(self, who: int, which: int) -> None:
        client = self.a_client(who, busy=True)
        if client is not None:
            held = held_of(client)
            self.mesh.ack(client, held[which % len(held)])

    @rule(who=PICK, which=PICK)
    def nack(self, who: int, which: int) -> None:
        client = self.a_client(who, busy=True)
        if client is not None:
            held = held_of(client)
            node = client.node
            self.mesh.decide(node, lambda out: node.broker.refuse(held[which % len(held)], out))

    @rule(who=PICK, which=PICK, queue=QUEUE)
    def turn_one_message_into_another(self, who: int, which: int, queue: str) -> None:
        client = self.a_client(who, busy=True)
        if client is not None:
            mesh, broker, held = self.mesh, client.node.broker, held_of(client)
            delivery = held[which % len(held)]
            client.begin()
            client.hold(Held(envelope=envelope(queue), body=b"made"))
            client.hold(Held(delivery=delivery))
            mesh.acked.update(mesh.covered(delivery))
            mesh.decide(client.node, lambda out: broker.commit(client.id, "t", NOW_US, out))

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
                self.mesh.decide(node, lambda out: node.broker.unsubscribe(client.id, wanted, out))

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
        nodes = self.mesh.nodes.values()
        for queue in QUEUES:
            waiting = [body for node in nodes for body in node.ready(queue)]
            idle = sum(node.queues.by_name[queue].free for node in nodes if queue in node.queues.by_name)
            assert not (waiting and idle), "a message waits while a reachable node has idle credit for it"

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
        while held := held_of(drain):
            for delivery in held:
                mesh.ack(drain, delivery)
            mesh.quiet()
        drain.open = False
        mesh.decide(drain.node, lambda out: drain.node.broker.close_session(drain.id, out))
        mesh.quiet()

        assert mesh.sent <= mesh.acked, f"lost: {mesh.sent - mesh.acked}"
        for node in mesh.nodes.values():
            check_empty(node)
            assert all_settled(node.queues)
        for ends in list(mesh.pipes):
            if ends in mesh.pipes:
                mesh.cut(*ends)
        for node in mesh.nodes.values():
            lending = node.lending
            assert not lending._borrowing and not lending._received and not lending._offered
            check_empty(node)


def all_settled(queues: Queues) -> bool:
    return not any(queues.owned.values()) and not any(queues.settled_here.values())


TestMeshOfBrokers = MeshOfBrokers.TestCase
TestMeshOfBrokers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
