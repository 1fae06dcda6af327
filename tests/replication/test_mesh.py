"""Two and three nodes over pipes in memory: copying, healing, relaying, topics, lending."""

import pytest
import trio
import trio.testing

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import SEEN, Message
from qmq.model.dots import Origin
from qmq.model.members import Listing
from qmq.replication.links.reverse_dial import ReverseDial

from .rig import JOBS, Network, Node, Settings, peers_of, running, until

pytestmark = pytest.mark.trio

NEWS = "/fanout/news"
A, B, C = Origin("a", 1), Origin("b", 1), Origin("c", 1)


async def test_records_reach_the_peer_first_old_ones_then_live_ones(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    a.send(NEWS, b"old")

    async with running(a, b):
        await until(lambda: b.fanouts == [(A, b"old")])
        a.send(NEWS, b"live")
        b.send(NEWS, b"back")
        await until(lambda: b.journal.vector == a.journal.vector == {A: 2, B: 1})

    assert b.journal.of(A) == a.journal.of(A)
    assert a.journal.of(B) == b.journal.of(B)
    assert a.fanouts == [(A, b"old"), (A, b"live"), (B, b"back")]


async def test_a_peers_file_may_come_when_the_mesh_has_ended(autojump_clock: trio.testing.MockClock) -> None:
    network, peers, more = Network(), peers_of("ab"), peers_of("abc")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    async with running(a, b):
        pass

    a.membership.take_up(Listing(2, frozenset("abc")))
    a.mesh.take_up(more)

    assert [peer.name for peer in a.mesh.statistics().peers] == ["b", "c"]


async def test_what_is_not_durable_does_not_leave(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        a.committing = trio.Event()
        a.send(NEWS, b"one")
        await trio.sleep(20)
        before = list(b.fanouts)
        a.committing.set()
        await until(lambda: b.fanouts == [(A, b"one")])

    assert before == []


async def test_peers_learn_what_is_durable_elsewhere(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.committing = trio.Event()
        a.send(NEWS, b"one")
        await until(lambda: b.received_vector() == {A: 1})
        await trio.sleep(5)
        while_unsynced = a.peer_vectors.get("b", {}).get(A, 0)
        lag = a.mesh.statistics().peers[0].lag
        b.committing.set()
        await until(lambda: a.peer_vectors.get("b") == {A: 1})

    assert while_unsynced == 0
    assert lag == {}


async def test_what_became_durable_is_reported_without_waiting_for_a_beat(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    rare = Settings(beat_seconds=1000, suspicion_seconds=5000)
    a, b = Node(network, "a", peers, settings=rare), Node(network, "b", peers, settings=rare)

    async with running(a, b):
        a.send(NEWS, b"one")
        await until(lambda: a.peer_vectors.get("b") == {A: 1})


async def test_a_cut_heals_and_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        network.cut("a", "b")
        await until(lambda: a.link_states() == {"b": ("down", "down")})
        a.send(NEWS, b"one")
        b.send(NEWS, b"two")
        await trio.sleep(60)
        apart = (dict(a.journal.vector), dict(b.journal.vector))
        network.heal()
        await until(lambda: a.journal.vector == b.journal.vector == {A: 1, B: 1})

    assert apart == ({A: 1}, {B: 1})


async def test_redialling_backs_off(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a = Node(network, "a", peers)

    async with running(a, linked=False):
        await trio.sleep(1000)

    assert 100 <= network.dials <= 500


async def test_a_peer_that_has_reached_this_node_is_dialled_at_once(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        for _ in range(5):
            network.cut("a", "b")
            await trio.sleep(100)
            network.heal()
            await until(
                lambda: any(peer.out_state == "caught-up" for n in (a, b) for peer in n.mesh.statistics().peers)
            )
            healed = trio.current_time()
            await until(lambda: a.is_linked and b.is_linked)
            assert trio.current_time() - healed < 0.5


async def test_a_record_reaches_a_node_through_a_third(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("abc")
    nodes = a, b, c = Node(network, "a", peers), Node(network, "b", peers), Node(network, "c", peers)

    async with running(*nodes):
        network.cut("a", "b")
        a.send(NEWS, b"round")
        await until(lambda: b.fanouts == [(A, b"round")])
        await until(lambda: c.fanouts == [(A, b"round")])
        network.heal()
        await until(lambda: all(node.is_linked for node in nodes))
        b.send(NEWS, b"straight")
        await until(lambda: all(node.journal.vector == {A: 1, B: 1} for node in nodes))

    assert b.fanouts.count((A, b"round")) == 1


async def test_others_begin_to_relay_as_soon_as_a_direct_link_ends(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("abc")
    rare = Settings(beat_seconds=1000, suspicion_seconds=5000)
    nodes = a, b, c = [Node(network, name, peers, settings=rare) for name in "abc"]

    async with running(*nodes):
        network.cut("a", "b")
        a.send(NEWS, b"round")
        await until(lambda: b.fanouts == [(A, b"round")])
        await until(lambda: c.fanouts == [(A, b"round")])


async def test_records_of_a_dead_node_still_spread(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("abc")
    a, b, c = Node(network, "a", peers), Node(network, "b", peers), Node(network, "c", peers)

    async with running(a, b, linked=False) as nursery:
        a.send(NEWS, b"testament")
        await until(lambda: b.journal.vector == {A: 1})
        a.cancel.cancel()
        await nursery.start(c.run)
        await until(lambda: c.fanouts == [(A, b"testament")])


async def test_a_record_crosses_each_link_once_while_all_links_are_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("abc")
    nodes = a, b, c = Node(network, "a", peers), Node(network, "b", peers), Node(network, "c", peers)

    async with running(*nodes):
        await trio.sleep(5)
        before = {node.name: node.mesh.statistics() for node in nodes}
        a.send(NEWS, b"x" * 1000)
        await until(lambda: all(node.journal.vector == {A: 1} for node in nodes))
        await trio.sleep(5)
        sent = {
            (node.name, peer.name): peer.record_bytes_out - old.record_bytes_out
            for node in nodes
            for peer, old in zip(node.mesh.statistics().peers, before[node.name].peers, strict=True)
        }

    assert {pair for pair, size in sent.items() if size} == {("a", "b"), ("a", "c")}


async def test_a_node_returns_with_a_new_incarnation_and_has_its_old_records_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b) as nursery:
        a.send(NEWS, b"one")
        await until(lambda: b.journal.vector == {A: 1})
        a.cancel.cancel()
        await until(lambda: b.link_states() == {"a": ("down", "down")})
        wiped = Node(network, "a", peers, incarnation=2)
        await nursery.start(wiped.run)
        await until(lambda: wiped.journal.vector == {A: 1} and wiped.is_linked)

    assert wiped.caught_up == ["b"]


async def test_caught_up_is_reported_once_per_connection_and_not_before_the_records_are_here(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    a.send(NEWS, b"one")
    a.disk = trio.Event()

    async with running(a, linked=False) as nursery:
        await until(lambda: a.journal.end > 0)
        await nursery.start(b.run)
        await trio.sleep(3)
        early = list(b.caught_up)
        a.disk.set()
        await until(lambda: b.is_linked)
        await trio.sleep(30)
        once = list(b.caught_up)
        network.cut("a", "b")
        network.heal()
        await trio.sleep(30)

    assert (early, once, b.caught_up) == ([], ["a"], ["a", "a"])


async def test_a_pulling_side_behind_the_retained_records_gets_the_exact_gap(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, linked=False) as nursery:
        for number in range(5):
            a.send(NEWS, b"%d" % number)
            await trio.sleep(1)
        a.journal.drop_before(3)
        await nursery.start(b.run)
        await until(lambda: b.journal.vector == {A: 5})

    assert [code for code, _ in b.reports] == ["gap"]
    assert b.reports[0][1] == f"{A} 3"
    assert b.fanouts == [(A, b"3"), (A, b"4")]


async def test_a_silent_peer_is_found_by_the_missing_beats(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        await trio.sleep(100)
        assert a.is_linked
        network.silence("a", "b")
        await trio.sleep(4)
        still = a.link_states()
        await until(lambda: a.link_states() == {"b": ("down", "down")}, 10)
        network.heal()
        await until(lambda: a.is_linked and b.is_linked)

    assert still == {"b": ("caught-up", "up")}


class Steps(trio.abc.Instrument):
    """How often any task has run."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_a_slow_disk_here_is_not_taken_for_a_silent_peer(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    steps = Steps()

    async with running(a, b):
        dials = network.dials
        b.slots = trio.Event()
        a.send(NEWS, b"one")
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(60)
        b.slots.set()
        await until(lambda: b.journal.vector == {A: 1})

    assert network.dials == dials
    assert steps.count < 60 * 100, "the task that watches the link is busy meanwhile"


async def test_a_stopped_peer_costs_a_bounded_amount_of_memory(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.slots = trio.Event()
        for _ in range(100):
            a.send(NEWS, b"x" * 100_000)
            await trio.sleep(0.01)
        await trio.sleep(1)
        sent = a.mesh.statistics().peers[0].record_bytes_out
        b.slots.set()
        await until(lambda: b.journal.vector == {A: 100})

    assert sent < (1 << 20) + 1_200_000


# Topics


async def test_a_topic_reaches_the_peer_that_wants_it_and_only_while_it_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        early = b.subscribe("/topic/early.*")
        await trio.sleep(1)
        a.send("/topic/early.x", b"one")
        a.send("/topic/other", b"nobody's")
        await until(lambda: b.seen == [b"one"])
        b.unsubscribe(early)
        await trio.sleep(1)
        a.send("/topic/early.x", b"two")
        await trio.sleep(1)

    assert b.seen == [b"one"]


async def test_interest_is_published_again_on_a_new_link_and_forgotten_with_the_old(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    b.subscribe("/topic/t")

    async with running(a, b):
        network.cut("a", "b")
        await until(lambda: a.link_states() == {"b": ("down", "down")})
        forgotten = a.broker.interest.match("/topic/t")
        a.send("/topic/t", b"lost")
        network.heal()
        await until(lambda: a.is_linked and b.is_linked)
        a.send("/topic/t", b"found")
        await until(lambda: b.seen == [b"found"])

    assert forgotten == ()


async def test_topics_that_a_slow_peer_does_not_take_are_dropped_and_counted_and_nothing_else(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    b.subscribe("/topic/t")

    async with running(a, b):
        b.slots = trio.Event()
        await trio.sleep(2)
        for _ in range(100):
            a.send("/topic/t", b"x" * 100_000)
        a.send(NEWS, b"kept")
        await trio.sleep(1)
        b.slots.set()
        await until(lambda: b.fanouts == [(A, b"kept")])
        await trio.sleep(5)

    dropped = a.mesh.statistics().peers[0].topics_dropped
    assert 50 < dropped < 70
    assert len(b.seen) == 100 - dropped


# Queues


async def test_a_consumer_elsewhere_gets_a_queue_message_and_its_settle_comes_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.subscribe(JOBS)
        await trio.sleep(1)
        a.send(JOBS, b"one")
        await until(lambda: b.seen == [b"one"])
        assert a.broker.queues.get(JOBS).depth == 1
        b.settle(b"one")
        await until(lambda: JOBS not in a.broker.queues.by_name or not a.broker.queues.get(JOBS).depth)
        await until(lambda: a.journal.vector == {A: 1, B: 1})

    assert not a.broker.lending.lent.get("b")
    assert a.seen == []


async def test_a_memory_only_message_is_lent_settled_and_gone(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.subscribe(JOBS)
        await trio.sleep(1)
        a.send(JOBS, b"one", durable=False)
        await until(lambda: b.seen == [b"one"])
        b.settle(b"one")
        await until(lambda: not a.broker.lending.lent.get("b"))

    assert a.journal.vector == b.journal.vector == {}


async def test_offers_for_very_many_queues_with_long_names_end_no_link(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    async with running(a, b):
        dials = network.dials
        names = [f"/queue/{number:0>1000}" for number in range(20_000)]

        b.mesh.offer([("a", name, 1) for name in names])
        await until(lambda: a.broker.queues.by_name.keys() >= set(names))

        b.mesh.offer([("a", name, -1) for name in names])
        await trio.sleep(10)

        assert network.dials == dials


async def test_credit_bounds_what_is_lent(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.subscribe(JOBS, credit=2)
        await trio.sleep(1)
        a.send(JOBS, b"1", b"2", b"3", b"4")
        await until(lambda: len(b.seen) == 2)
        await trio.sleep(5)
        at_first = list(b.seen)
        b.settle(b"1")
        await until(lambda: b.seen == [b"1", b"2", b"3"])

    assert at_first == [b"1", b"2"]


async def test_what_a_leaving_consumer_had_goes_to_another_node(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("abc")
    nodes = a, b, c = Node(network, "a", peers), Node(network, "b", peers), Node(network, "c", peers)

    async with running(*nodes):
        consumer = b.subscribe(JOBS)
        await trio.sleep(1)
        a.send(JOBS, b"one")
        await until(lambda: b.seen == [b"one"])
        c.subscribe(JOBS)
        await trio.sleep(1)
        b.unsubscribe(consumer)
        await until(lambda: c.seen == [b"one"])

    assert c.deliveries[0].message.attempts == SEEN


async def test_more_messages_than_one_frame_may_name_are_given_back_over_the_same_link(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    async with running(a, b):
        b.subscribe(JOBS)
        a.send(JOBS, b"one")
        await until(lambda: b.seen == [b"one"])
        dials, message = network.dials, b.deliveries[0].message
        other = Message(message.envelope, b"", A, 17, 1)

        b.mesh.give_back("a", [*[(other, Back.UNSEEN, None)] * 250_000, (message, Back.UNSEEN, None)])
        await trio.sleep(10)

        assert (network.dials, a.reports, b.seen) == (dials, [], [b"one", b"one"])


async def test_a_short_cut_leaves_a_lent_message_with_its_consumer(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.subscribe(JOBS)
        await trio.sleep(1)
        a.send(JOBS, b"one", b"two")
        await until(lambda: len(b.seen) == 2)
        network.cut("a", "b")
        await until(lambda: a.link_states() == {"b": ("down", "down")})
        b.settle(b"one")
        a.subscribe(JOBS)
        network.heal()
        await until(lambda: a.is_linked and b.is_linked)
        await until(lambda: [m.body for m in a.broker.lending.lent["b"].values() if not m.settled] == [b"two"])
        await trio.sleep(60)

    assert a.seen == []
    assert b.seen == [b"one", b"two"]


async def test_a_message_whose_borrower_stays_away_goes_to_others(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.subscribe(JOBS)
        await trio.sleep(1)
        a.send(JOBS, b"one")
        await until(lambda: b.seen == [b"one"])
        network.cut("a", "b")
        a.subscribe(JOBS)
        await trio.sleep(29)
        patient = list(a.seen)
        await until(lambda: a.seen == [b"one"], 5)

    assert patient == []


async def test_a_message_lost_on_the_way_to_a_borrower_comes_back_with_the_next_link(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.subscribe(JOBS)
        await trio.sleep(1)
        network.silence("a", "b")
        a.send(JOBS, b"one")
        await until(lambda: a.link_states() == {"b": ("down", "down")})
        network.heal()
        await until(lambda: b.seen == [b"one"], 20)


async def test_a_message_decided_for_a_link_that_ended_is_not_sent_over_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.subscribe(JOBS)
        await trio.sleep(1)
        a.committing = trio.Event()
        a.send(JOBS, b"one")
        network.cut("a", "b")
        network.heal()
        await trio.sleep(20)
        meanwhile = list(b.seen)
        a.committing.set()
        await until(lambda: b.seen == [b"one"])
        await trio.sleep(60)

    assert meanwhile == []
    assert b.seen == [b"one"]
    assert len(a.broker.lending.lent["b"]) == 1


async def test_lending_to_a_peer_whose_link_is_down_puts_the_message_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.subscribe(JOBS)
        await trio.sleep(1)
        a.committing = trio.Event()
        a.send(JOBS, b"one")
        network.cut("a", "b")
        await until(lambda: a.link_states() == {"b": ("down", "down")})
        a.committing.set()
        a.subscribe(JOBS)
        await until(lambda: a.seen == [b"one"], 5)

    assert a.deliveries[0].message.attempts == 0


async def test_a_late_word_of_a_borrower_does_not_keep_a_lost_message_for_ever(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b's own records cannot reach a (a cannot dial b, and b offers nothing), so a cannot know what b has settled."""
    monkeypatch.setattr(ReverseDial, "_unserved", lambda turning: set())
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)

    async with running(a, b):
        b.subscribe(JOBS)
        await trio.sleep(1)
        network.silence("a", "b")
        a.send(JOBS, b"one")
        b.send(NEWS, b"unheard")
        await until(lambda: a.link_states() == {"b": ("down", "down")})
        network.listeners.pop("b")
        network.heal()
        await until(lambda: a.link_states() == {"b": ("down", "up")})
        await trio.sleep(20)
        patient = list(b.seen)
        await until(lambda: b.seen == [b"one"], 20)

    assert patient == []


async def test_one_outcome_holds_what_one_read_brought(autojump_clock: trio.testing.MockClock) -> None:
    network, peers = Network(), peers_of("ab")
    a, b = Node(network, "a", peers), Node(network, "b", peers)
    outcomes: list[Outcome] = []

    async with running(a, b):
        submit = b.submit
        b.submit = lambda out: (outcomes.append(out), submit(out))[1]  # type: ignore[method-assign]
        a.send(NEWS, *[b"%d" % number for number in range(100)])
        await until(lambda: b.journal.vector == {A: 100})

    assert [len(out.batches) for out in outcomes if out.batches] == [1]
