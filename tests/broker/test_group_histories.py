"""The rule of message groups (docs/queues.md): in a small model, and the same random histories through real brokers."""

from collections import deque

import pytest

from qmq.broker.consumers.consumer_class import offer_name
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.broker.queues.selective.group_choice import accepts

from . import group_model as model
from .group_model import Rules
from .rig import JOBS, SECOND_US, Client, Node, check_accounts, envelope
from .test_mesh_of_brokers import Mesh, borrowed, held_of

SELECTORS = {"": "", "x": "kind = 'x'", "y": "kind = 'y'"}
SEEDS = range(300)
LENGTH = 120
GROUPS = ("g", "h")


def test_rule_keeps_the_order_of_a_group_and_starves_no_consumer() -> None:
    assert model.failures(SEEDS, LENGTH, Rules) == []


@pytest.mark.parametrize("rule", [name for name in vars(Rules) if not name.startswith("_")])
def test_without_each_part_of_the_rule_a_history_breaks_it(rule: str) -> None:
    assert model.failures(range(600), LENGTH, type("Broken", (Rules,), {rule: False}))


def test_brokers_keep_the_order_of_groups_and_starve_no_consumer() -> None:
    for seed in SEEDS:
        try:
            run(seed)
        except AssertionError as failure:
            raise AssertionError(f"history {seed}") from failure


def run(seed: int) -> None:
    Client.ids = 0  # groups go by the names of consumers
    world = GroupMesh()
    for step in model.history(seed, LENGTH):
        world.step(step)
        for node in world.nodes.values():
            check_accounts(node)
    world.drain()


class GroupMesh(Mesh):
    """The steps of the model's histories. Lent messages that have not left are taken back, as by a link's outbox."""

    def __init__(self) -> None:
        self.distrusted: set[tuple[str, str]] = set()
        self.unsent: dict[tuple[str, str], list[Message]] = {}
        super().__init__()

    def put(self, source: str, target: str, kind: str, what: object) -> None:
        pipe = self.pipes.get((source, target))
        if kind == "forgotten" and pipe is not None:
            assert isinstance(what, list)
            self.take_unsent(source, target, pipe, set(what))
        super().put(source, target, kind, what)

    def take_unsent(self, source: str, target: str, pipe: deque[tuple[str, object]], names: set[str]) -> None:
        """All but the first frame of the link are still to be sent."""
        left = list(pipe)[:1]
        for kind, what in list(pipe)[1:]:
            if kind == "lend":
                assert isinstance(what, list)
                self.unsent.setdefault((source, target), []).extend(m for m in what if name_of_offer(m) in names)
                what = [message for message in what if name_of_offer(message) not in names]
            left.append((kind, what))
        pipe.clear()
        pipe.extend(left)

    def return_unsent(self, source: str) -> None:
        for ends in [ends for ends in self.unsent if ends[0] == source]:
            returns = [(message.dot, Back.UNSEEN, None) for message in self.unsent.pop(ends)]
            lending = self.nodes[source].lending
            self.decide(self.nodes[source], lambda out: lending.returned(ends[1], returns, out))  # noqa: B023

    def pump(self, source: str, target: str) -> None:
        if (target, source) not in self.distrusted or self.pipes[source, target][0][0] != "lend":
            super().pump(source, target)
            return
        _, what = self.pipes[source, target].popleft()
        assert isinstance(what, list)
        node = self.nodes[target]
        lent = [borrowed(message, source) for message in what]
        self.decide(node, lambda out: [node.borrowing.decline(m, out, is_stale=False) for m in lent])

    # Steps

    def step(self, step: model.Step) -> None:
        kind, first, second = step
        name = model.NODES[first % len(model.NODES)]
        node = self.nodes[name]
        busy = [client for client in self.clients() if held_of(client)]
        if kind == "send":
            group, kind = GROUPS[second // 8 % 4 // 3], model.KINDS[second % 2]
            priority = "priority:7\n" if not second // 64 % 8 else ""
            headers = f"JMSXGroupID:{group}\nkind:{kind}\n{priority}".encode()
            sent = envelope(JOBS, durable=second // 2 % 2 == 0, headers=headers)
            self.decide(node, lambda out: node.broker.send(sent, b"m", self.now_us, out))
        elif kind == "subscribe":
            self.subscribe(node, model.SELECTORS[second % len(model.SELECTORS)], 1 + second // 4 % 3)
        elif kind == "leave" and self.clients():
            self.leave(self.clients()[first % len(self.clients())])
        elif kind == "ack" and busy:
            client = busy[first % len(busy)]
            self.ack(client, held_of(client)[second % len(held_of(client))])
        elif kind == "nack" and busy:
            client = busy[first % len(busy)]
            delivery = held_of(client)[second % len(held_of(client))]
            self.decide(client.node, lambda out: client.node.broker.refuse(delivery, out, Back.FAILED))
        elif kind == "due":
            self.wait(60 * SECOND_US)
        elif kind == "arrive":
            for _ in range(1 + second % 3):
                full = [ends for ends, pipe in self.pipes.items() if pipe]
                if full:
                    self.pump(*full[first % len(full)])
        elif kind == "cut or heal":
            pair = model.PAIRS[first % len(model.PAIRS)]
            (self.cut if pair in self.pipes else self.connect)(*pair)
        elif kind == "distrust":
            self.distrusted ^= {(name, model.NODES[second % len(model.NODES)])}
        elif kind == "return unsent":
            self.return_unsent(name)
        elif kind == "hold":
            self.hold(node, not node.queues.held)

    def subscribe(self, node: Node, selector: str, credit: int) -> None:
        node.client().subscribe(selector=SELECTORS[selector], credit=credit)
        self.decide(node, lambda out: None)

    def leave(self, client: Client) -> None:
        client.open = False
        self.decide(client.node, lambda out: client.node.broker.close_session(client.id, out))

    def hold(self, node: Node, is_held: bool) -> None:
        if is_held:
            node.queues.held = True
        elif node.queues.held:
            self.decide(node, node.queues.release_hold)

    # The end

    def rest(self) -> None:
        self.distrusted.clear()
        for name, node in self.nodes.items():
            self.hold(node, False)
            self.return_unsent(name)
        self.quiet()
        while self.unsent:
            for name in self.nodes:
                self.return_unsent(name)
            self.quiet()

    def drain(self) -> None:
        """Consumers settle what they get; what one of them matches must come."""
        self.rest()
        self.wait(60 * SECOND_US)
        self.rest()
        while busy := [client for client in self.clients() if held_of(client)]:
            self.ack(busy[0], held_of(busy[0])[0])
            self.rest()
        queues = [node.queues.by_name[JOBS] for node in self.nodes.values() if JOBS in node.queues.by_name]
        consumers = [subscription for queue in queues for subscription in queue.subscriptions]
        left = [message for queue in queues for message in queue.ready]
        starving = [message.dot for message in left if any(accepts(consumer, message) for consumer in consumers)]
        assert not starving, f"{starving} starve"


def name_of_offer(message: Message) -> str:
    return offer_name(message.envelope.destination, message.lent_as)
