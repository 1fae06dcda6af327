"""Random histories of one paged node: clients, a borrowing peer, checkpoints in pieces, loads, eviction, restarts.

What must hold: a message is in one hand at a time, never before it is due and never after its settle; messages of one
priority that nothing has disturbed are delivered in the order of their acceptance; with room for it and its loads
answered everything that is due is delivered; depth is the truth; and what the store has does not stay in memory.

Hypothesis finds and shortens what a few dozen steps can show; the long histories, each named by its seed, get to where
queues are deep and many things are under way at the same time.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.broker.queues.dispatch import queue
from qmq.broker.queues.paging import backlog, pager
from qmq.broker.queues.selective import dispatcher, selector_paging
from qmq.model.dots import Dot

from ...paging_rig import OLD, RED, WANTS_RED, PagedNode
from ...rig import JOBS, SECOND_US

MORE = "/queue/more"
SMALL = "/queue/small"
QUEUES = (JOBS, MORE, SMALL, DEAD_LETTERS)
RULES = {
    JOBS: QueueRules(delivery_limit=3),
    MORE: QueueRules(delivery_limit=0, redelivery_us_min=0),
    SMALL: QueueRules(messages_max=6, overflow="drop-oldest", keeps_dropped=True),
    DEAD_LETTERS: QueueRules(),
}
PAGE, WINDOW, LOW_WATER = 3, 4, 2
HEADERS = (
    *(b"", b"", b"", b"", b"priority:9\n", b"priority:0\n"),
    *(b"delay:500\n", b"delay:1500\n", b"delay:500\npriority:9\n"),
    *(b"ttl:800\n", b"ttl:3000\npriority:9\n", b"ttl:3000\ndelay:500\n"),
    *(RED, RED + b"priority:9\n", RED + b"delay:500\n"),
    *[b"priority:6\nbeanstalk-priority:%d\n" % number for number in (16, 17, 20, 20, 100)],
    b"priority:6\nbeanstalk-priority:19\ndelay:500\n",
    RED + b"priority:6\nbeanstalk-priority:20\n",
)

QUEUE = st.sampled_from(QUEUES)
SEND_TO = st.sampled_from([JOBS, JOBS, MORE, SMALL])
PICK = st.integers(0, 11)


class PagedHistories(RuleBasedStateMachine):
    node: PagedNode

    @initialize(first=st.lists(st.sampled_from(HEADERS), max_size=12), is_cold=st.booleans())
    def start(self, first: list[bytes], is_cold: bool) -> None:
        """There are messages from the beginning, and perhaps they are only in the store."""
        self.node = PagedNode(RULES.__getitem__)
        for headers in first:
            self.node.send(headers=headers)
        if is_cold:
            self.node.checkpoint()
            self.node.evict()

    # Clients

    @rule(to=SEND_TO, headers=st.sampled_from(HEADERS), count=st.integers(1, 5))
    def send(self, to: str, headers: bytes, count: int) -> None:
        for _ in range(count):
            self.node.send(to, headers)

    @rule(
        to=QUEUE,
        credit=st.sampled_from([1, 3, 20]),
        timeout_us=st.sampled_from([0, 0, SECOND_US]),
        is_picky=st.sampled_from([False, False, True]),
    )
    def subscribe(self, to: str, credit: int, timeout_us: int, is_picky: bool) -> None:
        if len(self.node.subscriptions) < 4:
            self.node.subscribe(to, credit, timeout_us, selector=WANTS_RED if is_picky else None)

    @rule(who=PICK)
    def leave(self, who: int) -> None:
        subscriptions = self.node.subscriptions
        if subscriptions:
            self.node.leave(subscriptions[who % len(subscriptions)])

    def a_delivery(self, pick: int) -> Delivery | None:
        held = list(self.node.queues.deliveries.values())
        return held[pick % len(held)] if held else None

    @rule(which=PICK, count=st.integers(1, 6))
    def ack(self, which: int, count: int) -> None:
        for _ in range(count):
            delivery = self.a_delivery(which)
            if delivery is not None:
                self.node.ack(delivery)

    @rule(which=PICK, why=st.sampled_from([Back.FAILED, Back.REJECTED]))
    def nack(self, which: int, why: Back) -> None:
        delivery = self.a_delivery(which)
        if delivery is not None:
            self.node.nack(delivery, why)

    @rule(microseconds=st.sampled_from([SECOND_US // 10, SECOND_US // 2, SECOND_US, 60 * SECOND_US]))
    def wait(self, microseconds: int) -> None:
        self.node.wait(microseconds)

    # The peer

    @rule(to=QUEUE, limit=st.integers(1, 5))
    def offer(self, to: str, limit: int) -> None:
        self.node.offer(limit, to)

    def one_lent(self, pick: int) -> Dot | None:
        coming = {dot for _, dots in self.node.records_coming for dot in dots}
        lent = [dot for dot in self.node.lent() if dot not in coming]
        return lent[pick % len(lent)] if lent else None

    @rule(which=PICK, is_told=st.booleans(), comes_late=st.booleans())
    def peer_settles(self, which: int, is_told: bool, comes_late: bool) -> None:
        """By its word and then its record, or the other way round, or by its record alone."""
        dot = self.one_lent(which)
        if dot is not None:
            self.node.peer_settles([dot])
            if not comes_late:
                self.node.record_comes(len(self.node.records_coming) - 1)
            if is_told:
                self.node.word_comes([dot])

    @rule(which=PICK)
    def record_comes(self, which: int) -> None:
        coming = self.node.records_coming
        if coming:
            self.node.record_comes(which % len(coming))

    @rule(which=PICK, why=st.sampled_from([why for why in Back if why is not Back.TIMED_OUT]))
    def peer_returns(self, which: int, why: Back) -> None:
        dot = self.one_lent(which)
        if dot is not None:
            self.node.peer_returns([dot], why)

    @rule()
    def peer_is_lost(self) -> None:
        self.node.peer_is_lost()

    @rule(to=SEND_TO, count=st.integers(1, 3))
    def old_messages_come(self, to: str, count: int) -> None:
        for _ in range(count):
            self.node.old_message_comes(to)

    @rule(to=SEND_TO)
    def old_message_was_settled_before_it_comes(self, to: str) -> None:
        node = self.node
        dot = Dot(OLD, node.old_sequence + 1)
        node.records_coming.append((to, [dot]))
        node.record_comes(len(node.records_coming) - 1)
        node.old_message_comes(to)

    # Commits, checkpoints, eviction, loads

    @rule(batches=st.sampled_from([1, 3, None]))
    def commit(self, batches: int | None) -> None:
        self.node.commit(batches)

    @rule()
    def checkpoint_moves(self) -> None:
        node = self.node
        if node.checkpoint_begun is None:
            node.checkpoint_begins()
        elif node.checkpoint_end is None:
            node.checkpoint_reads()
        elif not node.checkpoint_applied:
            node.checkpoint_applies()
        elif not node.loads:
            node.checkpoint_done()

    @rule(evicts=st.booleans())
    def checkpoint(self, evicts: bool) -> None:
        self.finish_checkpoint()
        self.node.checkpoint()
        if evicts:
            self.evict()

    def finish_checkpoint(self) -> None:
        if self.node.loads:
            self.node.take()
        while self.node.checkpoint_begun is not None:
            self.checkpoint_moves()

    @rule()
    def evict(self) -> None:
        node = self.node
        if node.loads or node.checkpoint_begun is not None:
            return
        node.evict()
        for name, found in node.queues.by_name.items():
            if not found.is_loading:
                bound = WINDOW * len(found.levels) if found.is_wanted else 0
                spare = [m for m in found.waiting() if self.is_in_store(m.dot) and not m.attempts and not m.settled]
                spare = [m for m in spare if m.dot not in node.moved]
                assert len(spare) <= bound, f"{len(spare)} messages of {name} stay in memory although they are stored"

    def is_in_store(self, dot: Dot) -> bool:
        return dot.sequence <= self.node.vectors[self.node.applied].get(dot.origin, 0)

    @rule(applies_between=st.booleans())
    def ask_or_take(self, applies_between: bool) -> None:
        node = self.node
        if node.loads:
            node.take()
        elif applies_between and node.checkpoint_end is not None and not node.checkpoint_applied:
            node.ask(node.checkpoint_applies)
        else:
            node.ask()

    @rule(applies_between=st.booleans())
    def sweep(self, applies_between: bool) -> None:
        """The clerk looks for what has expired in the store."""
        node = self.node
        if not node.loads:
            applies = applies_between and node.checkpoint_end is not None and not node.checkpoint_applied
            node.sweep(node.checkpoint_applies if applies else lambda: None)

    @rule()
    def rows_changed(self) -> None:
        """The store was repaired, or another node's rows have come."""
        if self.node.loads:
            self.node.take()
        self.finish_checkpoint()
        self.node.decide(self.node.queues.handoff.rows_changed)

    @rule(has_room=st.booleans(), is_held=st.booleans())
    def restart(self, has_room: bool, is_held: bool) -> None:
        self.node.restart(has_room=has_room)
        self.node.queues.held = is_held

    @rule()
    def release_hold(self) -> None:
        self.node.decide(self.node.queues.release_hold)

    @rule()
    def come_to_rest(self) -> None:
        """With its loads answered, nothing that is due waits beside a free consumer."""
        node = self.node
        node.load_all()
        for _ in range(100):
            # Messages that nobody wants make room for others behind them when a checkpoint has taken them.
            if not node.queues.owned.needs_checkpoint:
                break
            node.queues.owned.needs_checkpoint = False
            self.finish_checkpoint()
            node.checkpoint()
            node.load_all()
        if node.queues.held:
            return
        in_hand = node.in_hand()
        for name in QUEUES:
            found = node.queues.by_name.get(name)
            free = [] if found is None else [s for s in found.subscriptions if s.free > 0]
            if free:
                takes_all = any(subscription.selector is None for subscription in free)
                waiting = [dot for dot in node.open_dots(name) - in_hand if takes_all or node.sent[dot].is_red]
                stuck = [dot for dot in waiting if self.is_due(dot)]
                assert not stuck, f"waits in {name} beside a free consumer: {sorted(stuck)}"

    def is_due(self, dot: Dot) -> bool:
        now_us = self.node.now_us
        is_due = self.node.sent[dot].due_us <= now_us and self.node.not_before.get(dot, 0) <= now_us
        return is_due and not self.node.is_expired(dot)

    # What always holds

    @invariant()
    @precondition(lambda self: hasattr(self, "node"))
    def order_is_kept(self) -> None:
        """By queue, priority and life: of what was not disturbed, the first delivery follows the acceptance."""
        order: dict[tuple[object, ...], int] = defaultdict(int)
        for dot in self.node.delivered:
            sent = self.node.sent[dot]
            key = (sent.queue, sent.urgency, sent.is_red, dot.origin)
            assert dot.sequence > order[key], f"{dot} is delivered after {order[key]}"
            order[key] = dot.sequence

    @invariant()
    @precondition(lambda self: hasattr(self, "node"))
    def depth_is_the_truth(self) -> None:
        node = self.node
        if node.checkpoint_begun is not None or node.loads:
            return
        for name, found in node.queues.by_name.items():
            is_whole = not found.stored_due_us and not any(level.behind for level in found.levels)
            if found.is_counted and (is_whole or name not in node.vague):
                truth = node.open_dots(name)
                assert found.depth == len(truth), f"depth of {name}: {found.depth}, truth {len(truth)}"

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        node = self.node
        self.finish_checkpoint()
        node.decide(node.queues.release_hold)
        for subscription in list(node.subscriptions):
            node.leave(subscription)
        node.peer_is_lost()
        while any(dot.origin == OLD and dot.sequence > node.old_sequence for dot in node.settled):
            node.old_message_comes()
        node.load_all()
        drains = [node.subscribe(name, 5) for name in QUEUES]
        for _ in range(200):
            node.load_all()
            held = list(node.queues.deliveries.values())
            for delivery in held:
                node.ack(delivery)
            if not held and not any(node.open_dots(name) for name in QUEUES):
                break
            if not held:
                node.wait(60 * SECOND_US)
                node.checkpoint()
                node.sweep()
        left = {name: node.open_dots(name) for name in QUEUES if node.open_dots(name)}
        assert not left, f"never delivered: {left}"
        for subscription in drains:
            node.leave(subscription)
        node.load_all()
        node.checkpoint()

        assert node.store.is_empty("a")
        assert not node.store.tombstones()
        assert not node.paging.pending_deletes
        assert not node.queues.by_name
        assert not any(node.queues.owned.by_origin.values())
        assert not node.queues.owned.settled_early


@pytest.fixture(autouse=True)
def small_pages() -> Iterator[None]:
    """Pages and windows of a few messages, so that histories cross their edges."""
    with (
        patch.object(pager, "PAGE_MESSAGES", PAGE),
        patch.object(backlog, "WINDOW", WINDOW),
        patch.object(queue, "LOW_WATER", LOW_WATER),
        patch.object(selector_paging, "EVICT_FROM", 4),
        patch.object(dispatcher, "LOOKED_MAX", 5),
        patch.object(selector_paging, "UNWANTED_MAX", 4),
    ):
        yield


def test_short_histories() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        PagedHistories, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )


@pytest.mark.parametrize("seed", range(15))
def test_long_history(seed: int) -> None:
    run_long_history(seed, 300)


def run_long_history(seed: int, steps: int) -> None:
    """Random steps of every kind; half of the time the steps of a whole stretch are mostly of one kind."""
    rng = random.Random(seed)
    histories = PagedHistories()
    histories.start([rng.choice(HEADERS) for _ in range(rng.randrange(12))], rng.random() < 0.5)
    kinds = list(STEPS)
    favourite = kinds[0]
    for step in range(steps):
        if step % 20 == 0:
            favourite = rng.choice(kinds)
        kind = favourite if rng.random() < 0.3 else rng.choices(kinds, [STEPS[k][0] for k in kinds])[0]
        getattr(histories, kind)(**STEPS[kind][1](rng))
        histories.depth_is_the_truth()
        if step % 20 == 19:
            histories.order_is_kept()
    histories.order_is_kept()
    histories.teardown()


def pick(rng: random.Random) -> int:
    return rng.randrange(12)


def send_to(rng: random.Random) -> str:
    return rng.choice([JOBS, JOBS, MORE, SMALL])


# Method of PagedHistories -> its weight, and the arguments for one call.
STEPS: dict[str, tuple[int, Callable[[random.Random], dict[str, object]]]] = {
    "send": (8, lambda c: {"to": send_to(c), "headers": c.choice(HEADERS), "count": c.randint(1, 5)}),
    "subscribe": (
        3,
        lambda c: {
            "to": c.choice(QUEUES),
            "credit": c.choice([1, 3, 20]),
            "timeout_us": c.choice([0, 0, SECOND_US]),
            "is_picky": c.random() < 0.3,
        },
    ),
    "leave": (1, lambda c: {"who": pick(c)}),
    "ack": (8, lambda c: {"which": pick(c), "count": c.randint(1, 6)}),
    "nack": (2, lambda c: {"which": pick(c), "why": c.choice([Back.FAILED, Back.REJECTED])}),
    "wait": (3, lambda c: {"microseconds": c.choice([1, 100_000, 500_000, SECOND_US, 60 * SECOND_US])}),
    "offer": (3, lambda c: {"to": c.choice(QUEUES), "limit": c.randint(1, 5)}),
    "peer_settles": (5, lambda c: {"which": pick(c), "is_told": c.random() < 0.5, "comes_late": c.random() < 0.5}),
    "record_comes": (2, lambda c: {"which": pick(c)}),
    "peer_returns": (
        2,
        lambda c: {"which": pick(c), "why": c.choice([why for why in Back if why is not Back.TIMED_OUT])},
    ),
    "peer_is_lost": (1, lambda c: {}),
    "old_messages_come": (2, lambda c: {"to": send_to(c), "count": c.randint(1, 3)}),
    "old_message_was_settled_before_it_comes": (1, lambda c: {"to": send_to(c)}),
    "commit": (4, lambda c: {"batches": c.choice([1, 3, None])}),
    "checkpoint_moves": (8, lambda c: {}),
    "checkpoint": (1, lambda c: {"evicts": c.random() < 0.7}),
    "evict": (4, lambda c: {}),
    "ask_or_take": (10, lambda c: {"applies_between": c.random() < 0.5}),
    "sweep": (2, lambda c: {"applies_between": c.random() < 0.5}),
    "rows_changed": (1, lambda c: {}),
    "restart": (0, lambda c: {"has_room": c.random() < 0.5, "is_held": c.random() < 0.3}),
    "release_hold": (1, lambda c: {}),
    "come_to_rest": (2, lambda c: {}),
}
