"""How the messages of one group pass through a small mesh: the rule of docs/queues.md ("Message groups"), and no more.

Each node owns a line of messages of the group, has consumers, lends against offers and borrows. Links are in order and
can be cut, and what is on its way is lost with them. A node may not trust what it is lent (it has just woken), or may
not serve its own messages for a while. A history is a list of steps, each with a number that picks what it is about.
`tests.broker.test_group_histories` takes the same histories through real brokers.

Watched in every step (`Broken`): a client sees a message for the first time only if all earlier ones of its owner were
seen before, have failed or are settled, or were passed over when it was dispatched, because no consumer that their
owner knew of matched them. And no other consumer has any message of that owner meanwhile. At the end the mesh is
healed: while consumers settle what they get, each message that some consumer matches must come.

A rule is a method or a constant of `Rules`; a test breaks each of them, and a history must show that.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

NODES: Final = ("a", "b", "c")
PAIRS: Final = (("a", "b"), ("a", "c"), ("b", "c"))
KINDS: Final = ("x", "y")
SELECTORS: Final = ("", "", "x", "y")
STEPS: Final = {
    "send": 8,
    "subscribe": 2,
    "leave": 2,
    "ack": 8,
    "nack": 1,
    "due": 1,
    "arrive": 14,
    "cut or heal": 1,
    "distrust": 1,
    "return unsent": 2,
    "hold": 1,
    "expire": 1,
}
"""How often a history has each kind of step."""
PICKS: Final = 1 << 16
REST_MAX: Final = 3_000
"""Events in which a healed mesh comes to rest."""

Step = tuple[str, int, int]


class Broken(Exception):
    """What must never happen has happened."""


def history(seed: int, length: int) -> list[Step]:
    """The same one for the same seed."""
    rng = random.Random(seed)
    kinds = rng.choices(list(STEPS), list(STEPS.values()), k=length)
    return [(kind, rng.randrange(PICKS), rng.randrange(PICKS)) for kind in kinds]


class Rules:
    """What a node decides. Each line here is one of the table in docs/queues.md."""

    is_lock_of_an_offer = True
    """What is out under an offer that was withdrawn is not followed by more under the next one."""
    is_late_held_back = True
    """A consumer gets nothing beside what is parked for it, and nothing while a return has not been confirmed."""
    withdraws_at_return = True
    """A node that returns what no client has seen withdraws its offer first."""
    passes_over_only_unmatched = True
    """A message that some consumer matches stops its group, whatever is the reason why it waits."""


class Msg:
    def __init__(self, owner: str, number: int, kind: str) -> None:
        self.owner, self.number, self.kind = owner, number, kind
        self.is_seen = self.has_failed = self.is_settled = False
        self.passed: frozenset[int] = frozenset()
        """Earlier ones that were passed over when this one was dispatched last."""

    def __repr__(self) -> str:
        return f"{self.owner}{self.number}{self.kind}"


class Consumer:
    def __init__(self, node: str, number: int, selector: str, credit: int) -> None:
        self.node, self.number, self.selector, self.credit = node, number, selector, credit
        self.held: list[Msg] = []
        self.parked: deque[Msg] = deque()

    def matches(self, message: Msg) -> bool:
        return self.selector in ("", message.kind)

    @property
    def has_room(self) -> bool:
        return len(self.held) < self.credit


class Offer:
    """What an owner knows of one class of a peer's consumers."""

    def __init__(self, peer: str, selector: str) -> None:
        self.peer, self.selector = peer, selector
        self.limit = self.sent = 0

    def matches(self, message: Msg) -> bool:
        return self.selector in ("", message.kind)

    @property
    def has_room(self) -> bool:
        return self.sent < self.limit


Taker = Consumer | Offer


def choice(takers: list[Taker]) -> Taker:
    """All nodes choose the same: by the names of nodes, then of classes, then of consumers."""

    def rank(taker: Taker) -> tuple[int, ...]:
        node = taker.node if isinstance(taker, Consumer) else taker.peer
        number = taker.number if isinstance(taker, Consumer) else 0
        return (hash_of(node), hash_of(taker.selector), hash_of(str(number)))

    return max(takers, key=rank)


def hash_of(name: str) -> int:
    return sum((at + 7) * ord(letter) * 2654435761 for at, letter in enumerate(name)) % 10007


class Member:
    """One node."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name, self.rules = world, name, world.rules
        self.line: list[Msg] = []
        self.delayed: list[Msg] = []
        self.consumers: list[Consumer] = []
        self.offers: dict[tuple[str, str], Offer] = {}
        # What is out, and with which consumer or offer; the epoch of its lock.
        self.out: dict[Msg, Taker | None] = {}
        self.epoch = self.lock_epoch = 0
        self.is_held = False
        self.distrusts: set[str] = set()
        self.unsent: list[Msg] = []
        """Lent under an offer that was withdrawn, and taken back before it left."""
        # As a borrower, by owner: what it has received under each class, and which classes it has withdrawn.
        self.received: dict[str, dict[str, int]] = {}
        self.offered: dict[str, dict[str, int]] = {}
        self.withdrawing: dict[str, set[str]] = {}

    # The owner's side

    def takers(self) -> list[Taker]:
        return [*self.consumers, *self.offers.values()]

    def next_taker(self) -> tuple[Msg, Taker] | None:
        """The next message of the line and its consumer, if there is one that may go now."""
        for message in self.line:
            takers = [taker for taker in self.takers() if taker.matches(message)]
            if not takers:
                continue  # No match: passed over.
            taker = self.holder_for(message, choice(takers))
            if taker is not None and taker.has_room:
                return message, taker
            if self.rules.passes_over_only_unmatched:
                return None  # No credit, or its group is elsewhere: the group waits.
        return None

    def holder_for(self, message: Msg, chosen: Taker) -> Taker | None:
        """Whom the message may go to while others of the group are out; None: it waits until they are back."""
        if not self.out:
            return chosen
        holder = next(iter(self.out.values()))
        if holder is None:
            return None
        if not self.rules.is_lock_of_an_offer and isinstance(holder, Offer):
            holder = self.offers.get((holder.peer, holder.selector))
        if holder is None or holder not in self.takers() or not holder.matches(message):
            return None
        if self.lock_epoch != self.epoch and holder is not chosen:
            return None  # Its choice has changed: it moves when it is free.
        return holder

    def dispatch(self) -> None:
        while not self.is_held and (found := self.next_taker()) is not None:
            message, taker = found
            before = [m for m in self.line if m.number < message.number and not m.is_seen]
            if any(other.matches(m) for m in before for other in self.takers()):
                raise Broken(f"{message} is dispatched before {before}, which a consumer matches")
            message.passed = frozenset(m.number for m in before)
            self.line.remove(message)
            if not self.out:
                self.lock_epoch = self.epoch
            self.out[message] = taker
            if isinstance(taker, Consumer):
                self.give(taker, message)
            else:
                taker.sent += 1
                self.world.put(self.name, taker.peer, "lend", (taker.selector, message))

    def back(self, message: Msg, *, fails: bool = False) -> None:
        """Something that was out has come back, and waits at its old place."""
        if self.out.pop(message, self) is self:
            return
        if fails:
            message.has_failed = True
            self.delayed.append(message)
        elif not message.is_settled:
            self.put_in_line(message)

    def put_in_line(self, message: Msg) -> None:
        self.line = sorted([*self.line, message], key=lambda m: m.number)

    # The borrower's side

    def give(self, consumer: Consumer, message: Msg) -> None:
        consumer.held.append(message)
        self.world.see(consumer, message)

    def borrow(self, owner: str, selector: str, message: Msg) -> None:
        self.received[owner][selector] = self.received[owner].get(selector, 0) + 1
        members = [c for c in self.consumers if c.selector == selector]
        is_late = selector in self.withdrawing[owner] and self.rules.is_late_held_back
        if not members or is_late or owner in self.distrusts:
            self.give_back(owner, selector, message)
            return
        has = [c for c in members if any(m.owner == owner for m in (*c.held, *c.parked))]
        consumer = has[0] if has else members[hash_of(str([c.number for c in members])) % len(members)]
        if consumer.has_room and not (consumer.parked and self.rules.is_late_held_back):
            self.give(consumer, message)
        else:
            consumer.parked.append(message)

    def give_back(self, owner: str, selector: str, message: Msg) -> None:
        """No client has seen it, or its consumer has gone: nothing may overtake it on its way."""
        if self.rules.withdraws_at_return:
            self.reset_offer(owner, selector)
        self.world.put(self.name, owner, "returned", message)

    def reset_offer(self, owner: str, selector: str) -> None:
        """What is on its way under the offer goes back, too. Consumers of the class that are here stay known."""
        offered = self.offered.get(owner)
        if offered is None or selector not in offered or selector in self.withdrawing[owner]:
            return
        self.withdraw(owner, selector)
        if any(c.selector == selector for c in self.consumers):
            offered[selector] = 0
            self.world.put(self.name, owner, "offer", (selector, 0))

    def withdraw(self, owner: str, selector: str) -> None:
        if owner in self.offered and self.offered[owner].pop(selector, None) is not None:
            self.withdrawing[owner].add(selector)
            self.world.put(self.name, owner, "offer", (selector, -1))

    def go_on(self) -> None:
        for consumer in self.consumers:
            while consumer.parked and consumer.has_room:
                self.give(consumer, consumer.parked.popleft())

    def offer(self) -> None:
        """Tell the owners what the consumers here have room for."""
        for owner, offered in self.offered.items():
            classes = {c.selector for c in self.consumers}
            for gone in set(offered) - classes:
                self.withdraw(owner, gone)
            for selector in sorted(classes - self.withdrawing[owner]):
                free = sum(c.credit - len(c.held) - len(c.parked) for c in self.consumers if c.selector == selector)
                limit = self.received[owner].get(selector, 0) + max(0, free)
                if offered.get(selector) != limit:
                    offered[selector] = limit
                    self.world.put(self.name, owner, "offer", (selector, limit))

    def return_unsent(self) -> None:
        unsent, self.unsent = self.unsent, []
        for message in unsent:
            self.back(message)

    # Frames

    def take(self, source: str, kind: str, what: object) -> None:
        if kind == "lend":
            self.borrow(source, *what)  # type: ignore[misc]
        elif kind == "returned":
            assert isinstance(what, Msg)
            self.back(what)
        elif kind == "failed":
            assert isinstance(what, Msg)
            self.back(what, fails=True)
        elif kind == "settled":
            assert isinstance(what, Msg)
            self.out.pop(what, None)
        elif kind == "forgotten":
            assert isinstance(what, str)
            self.withdrawing[source].discard(what)
            self.received[source].pop(what, None)
        else:
            selector, limit = what  # type: ignore[misc]
            if limit < 0:
                if self.offers.pop((source, selector), None) is not None:
                    self.epoch += 1
                    self.unsent += self.world.take_unsent(self.name, source, selector)
                self.world.put(self.name, source, "forgotten", selector)
                return
            if (source, selector) not in self.offers:
                self.offers[source, selector] = Offer(source, selector)
                self.epoch += 1
            self.offers[source, selector].limit = limit


class World:
    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.members = {name: Member(self, name) for name in NODES}
        self.messages: dict[str, list[Msg]] = {name: [] for name in NODES}
        self.pipes: dict[tuple[str, str], deque[tuple[str, object]]] = {}
        self.numbers = 0
        for pair in PAIRS:
            self.heal(*pair)

    def put(self, source: str, target: str, kind: str, what: object) -> None:
        if (source, target) in self.pipes:
            self.pipes[source, target].append((kind, what))

    def take_unsent(self, source: str, target: str, selector: str) -> list[Msg]:
        """What is lent to this class and has not left: all but the first frame of the link."""
        pipe = self.pipes[source, target]
        left = list(pipe)[:1]
        unsent: list[Msg] = []
        for kind, what in list(pipe)[1:]:
            if kind == "lend" and what[0] == selector:  # type: ignore[index]
                unsent.append(what[1])  # type: ignore[index]
            else:
                left.append((kind, what))
        self.pipes[source, target] = deque(left)
        return unsent

    def see(self, consumer: Consumer, message: Msg) -> None:
        if not message.is_seen and not message.has_failed:
            for other in self.messages[message.owner][: message.number]:
                is_done = other.is_seen or other.has_failed or other.is_settled
                if not is_done and other.number not in message.passed:
                    raise Broken(f"{message} is seen before {other}")
            for member in self.members.values():
                for held in (m for c in member.consumers if c is not consumer for m in c.held):
                    if held.owner == message.owner:
                        raise Broken(f"{message} is at one consumer, {held} at another")
        message.is_seen = True

    # Links

    def heal(self, first: str, second: str) -> None:
        for here, there in ((first, second), (second, first)):
            self.pipes[here, there] = deque()
            borrower, owner = self.members[here], self.members[there]
            borrower.received[there], borrower.offered[there], borrower.withdrawing[there] = {}, {}, set()
            kept = {m for c in borrower.consumers for m in (*c.held, *c.parked)} | set(owner.unsent)
            # What the borrower does not have was settled, or was lost on its way: that counts as a failure.
            for message, taker in list(owner.out.items()):
                if isinstance(taker, Offer) and taker.peer == here and message not in kept:
                    message.has_failed = message.has_failed or not message.is_settled
                    owner.back(message)

    def cut(self, first: str, second: str) -> None:
        for here, there in ((first, second), (second, first)):
            del self.pipes[here, there]
        for here, there in ((first, second), (second, first)):
            borrower, owner = self.members[here], self.members[there]
            del borrower.received[there], borrower.offered[there], borrower.withdrawing[there]
            for consumer in borrower.consumers:
                consumer.parked = deque(m for m in consumer.parked if m.owner != there)
            for key in [key for key in owner.offers if key[0] == here]:
                del owner.offers[key]
                owner.epoch += 1

    # Steps

    def step(self, step: Step) -> None:
        kind, first, second = step
        member = self.members[NODES[first % len(NODES)]]
        everyone = [c for m in self.members.values() for c in m.consumers]
        busy = [c for c in everyone if c.held]
        if kind == "send":
            message = Msg(member.name, len(self.messages[member.name]), KINDS[second % len(KINDS)])
            self.messages[member.name].append(message)
            member.line.append(message)
        elif kind == "subscribe":
            self.numbers += 1
            selector = SELECTORS[second % len(SELECTORS)]
            member.consumers.append(Consumer(member.name, self.numbers, selector, 1 + second // 4 % 3))
            member.epoch += 1
        elif kind == "leave" and everyone:
            self.leave(everyone[first % len(everyone)])
        elif kind == "ack" and busy:
            consumer = busy[first % len(busy)]
            self.ack(consumer, consumer.held[second % len(consumer.held)])
        elif kind == "nack" and busy:
            consumer = busy[first % len(busy)]
            self.end_delivery(consumer, consumer.held[second % len(consumer.held)], "failed")
        elif kind == "due":
            for message in member.delayed:
                member.put_in_line(message)
            member.delayed = []
        elif kind == "arrive":
            self.arrive(first, 1 + second % 3)
        elif kind == "cut or heal":
            pair = PAIRS[first % len(PAIRS)]
            (self.cut if pair in self.pipes else self.heal)(*pair)
        elif kind == "distrust":
            member.distrusts ^= {NODES[second % len(NODES)]}
        elif kind == "return unsent":
            member.return_unsent()
        elif kind == "hold":
            member.is_held = not member.is_held
        elif kind == "expire" and member.line:
            member.line.pop(second % len(member.line)).is_settled = True
        self.finish()

    def finish(self) -> None:
        for member in self.members.values():
            member.go_on()
            member.dispatch()
            member.offer()

    def ack(self, consumer: Consumer, message: Msg) -> None:
        message.is_settled = True
        self.end_delivery(consumer, message, "settled")

    def end_delivery(self, consumer: Consumer, message: Msg, kind: str) -> None:
        consumer.held.remove(message)
        if message.owner == consumer.node:
            self.members[consumer.node].take(consumer.node, kind, message)
        else:
            self.put(consumer.node, message.owner, kind, message)

    def leave(self, consumer: Consumer) -> None:
        member = self.members[consumer.node]
        member.consumers.remove(consumer)
        member.epoch += 1
        for message in (*consumer.held, *consumer.parked):
            if message.owner == member.name:
                member.back(message)
            else:
                member.give_back(message.owner, consumer.selector, message)

    def arrive(self, pick: int, count: int) -> None:
        for _ in range(count):
            full = [ends for ends, pipe in self.pipes.items() if pipe]
            if full:
                source, target = full[pick % len(full)]
                self.members[target].take(source, *self.pipes[source, target].popleft())

    # The end

    def rest(self) -> None:
        for pair in PAIRS:
            if pair not in self.pipes:
                self.heal(*pair)
        for member in self.members.values():
            member.distrusts, member.is_held = set(), False
            member.return_unsent()
        self.finish()
        for _ in range(REST_MAX):
            if not any(self.pipes.values()):
                return
            self.arrive(0, 1)
            for member in self.members.values():
                member.return_unsent()
            self.finish()
        raise Broken("the mesh never comes to rest")

    def drain(self) -> None:
        """Consumers settle all that they get; what one of them matches must come."""
        self.rest()
        while busy := [c for m in self.members.values() for c in m.consumers if c.held]:
            self.ack(busy[0], busy[0].held[0])
            self.finish()
            self.rest()
        for member in self.members.values():
            left = [m for m in member.line if any(t.matches(m) for t in member.takers())]
            if left or member.out:
                raise Broken(f"{left} starve at {member.name}, with {member.out}")


def run(seed: int, length: int, rules: Rules | None = None) -> None:
    """One history. Raises Broken."""
    world = World(rules)
    for step in history(seed, length):
        world.step(step)
    world.drain()


def failures(seeds: Iterable[int], length: int, make: Callable[[], Rules]) -> list[tuple[int, str]]:
    """The histories in which the rules do not hold."""
    found = []
    for seed in seeds:
        try:
            run(seed, length, make())
        except Broken as why:
            found.append((seed, str(why)))
    return found


if __name__ == "__main__":
    print(failures(range(20_000), 120, Rules))
