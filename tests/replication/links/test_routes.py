"""Interest and routes of topics, without sockets: frame by frame, in any order."""

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.errors import MeshError
from qmq.model.dots import Origin
from qmq.replication.interest import interest
from qmq.replication.interest.interest import NEVER
from qmq.replication.links import interest_publisher
from qmq.replication.protocol.frames import Heard, InterestPart, Passed, Reach

from ..routes_rig import Spots

A, B, C, D = (Origin(name, 1) for name in "abcd")
T = "/topic/t"


def test_interest_reaches_all_nodes_and_ends_everywhere() -> None:
    mesh = Spots("abc").mesh()
    mesh["b"].subscribe(T, "/topic/x.*")
    mesh.flow()
    during = mesh["a"].knows(T), mesh["c"].knows("/topic/x.y")

    mesh["b"].unsubscribe(T)
    mesh.flow()

    assert during == ({"b"}, {"b"})
    assert mesh["a"].knows(T) == mesh["c"].knows(T) == set()
    assert mesh["a"].knows("/topic/x.y") == {"b"}


def test_what_was_wanted_before_a_link_began_is_published_when_it_begins() -> None:
    mesh = Spots("ab")
    mesh["b"].subscribe(T)
    mesh["b"].unsubscribe(T)
    mesh["b"].subscribe("/topic/u")

    mesh.mesh()

    assert mesh["a"].knows(T) == set()
    assert mesh["a"].knows("/topic/u") == {"b"}


def test_messages_of_a_cut_pair_go_through_a_third_node_once_and_in_order() -> None:
    mesh = Spots("abc").mesh()
    mesh["b"].subscribe(T)
    mesh["c"].subscribe(T)
    mesh.flow()
    mesh["a"].publish(T)
    mesh.flow()
    mesh.cut("a", "b")
    mesh["a"].publish(T, 3)
    mesh.flow()

    assert mesh["b"].numbers(A) == mesh["c"].numbers(A) == [1, 2, 3, 4]
    assert mesh["a"].routes.next_hop_of("b") == "c"
    assert mesh["c"].routes.relayed == 3
    assert mesh["c"].routes.unrelayed == mesh["a"].routes.unrelayed == 0


def test_the_interest_of_a_node_that_was_never_linked_comes_through_a_third_one_and_stays_up_to_date() -> None:
    mesh = Spots("abc")
    mesh.link("a", "c")
    mesh.link("b", "c")
    mesh["b"].subscribe(T)
    mesh.flow()
    first = mesh["a"].knows(T)

    mesh["b"].unsubscribe(T)
    mesh["b"].subscribe("/topic/later")
    mesh.flow()

    assert first == {"b"}
    assert mesh["a"].knows(T) == set()
    assert mesh["a"].knows("/topic/later") == {"b"}


def test_while_the_pair_is_linked_no_node_relays_anything() -> None:
    mesh = Spots("abc").mesh()
    mesh["b"].subscribe(T)
    mesh.flow()

    mesh["a"].publish(T, 5)
    mesh.flow()

    assert mesh["b"].numbers(A) == [1, 2, 3, 4, 5]
    assert mesh["c"].routes.relayed == 0
    assert mesh["a"].routes.next_hop_of("b") == "b"


def test_of_two_that_could_pass_it_on_one_does() -> None:
    mesh = Spots("abcd").mesh()
    mesh["b"].subscribe(T)
    mesh.flow()
    mesh.cut("a", "b")
    mesh.flow()

    mesh["a"].publish(T, 4)
    mesh.flow()

    assert mesh["b"].numbers(A) == [1, 2, 3, 4]
    assert (mesh["c"].routes.relayed, mesh["d"].routes.relayed) == (4, 0)


def test_when_the_cut_heals_in_mid_stream_what_was_overtaken_is_dropped_and_nothing_doubled() -> None:
    mesh = Spots("abc").mesh()
    mesh["b"].subscribe(T)
    mesh.flow()
    mesh.cut("a", "b")
    mesh.flow()
    mesh["a"].publish(T, 3)
    held = [line for line in mesh.all_lines if mesh["c"] in line.ends and mesh["b"] in line.ends]
    mesh.all_lines = [line for line in mesh.all_lines if line not in held]
    mesh.flow()
    mesh.link("a", "b")
    mesh["a"].publish(T, 2)
    mesh.flow()
    mesh.all_lines += held

    mesh.flow()

    assert mesh["b"].numbers(A) == [4, 5]
    assert mesh["b"].broker.topic_router.sequence_filter.late == 3


def test_a_single_connection_carries_topics_both_ways() -> None:
    mesh = Spots("ab")
    mesh.link("b", "a", both=False)
    mesh["a"].subscribe(T)
    mesh["b"].subscribe(T)
    mesh.flow()

    mesh["a"].publish(T, 2)
    mesh["b"].publish(T, 2)
    mesh.flow()

    assert mesh["a"].numbers(B) == mesh["b"].numbers(A) == [1, 2]


def test_a_node_that_came_back_is_another_one_and_its_old_interest_is_gone() -> None:
    mesh = Spots("abc").mesh()
    mesh["b"].subscribe(T, "/topic/old")
    mesh.flow()
    mesh.restart("b")
    mesh["b"].subscribe(T)
    mesh.link("b", "c")
    mesh.flow()

    mesh["a"].publish(T)
    mesh.flow()

    assert mesh["a"].knows("/topic/old") == mesh["c"].knows("/topic/old") == set()
    assert mesh["b"].numbers(A) == [1]


def test_what_one_side_alone_has_lost_is_sent_again() -> None:
    """One side notices the cut late: the other one has forgotten it meanwhile, and links anew."""
    mesh = Spots("ab").mesh()
    mesh["a"].subscribe(T)
    mesh["b"].subscribe(T)
    mesh.flow()
    mesh.cut("a", "b", noticed_by="a")
    forgotten = mesh["a"].knows(T)

    mesh.link("a", "b")
    mesh.flow()
    mesh.notice()
    mesh.flow()

    assert forgotten == set()
    assert mesh["a"].knows(T) == {"b"}
    assert mesh["b"].knows(T) == {"a"}


def test_a_version_is_confirmed_when_it_is_in_force_everywhere_also_behind_a_third_node() -> None:
    mesh = Spots("abc")
    mesh.link("a", "c")
    mesh.link("c", "b")
    mesh.flow()
    mesh["a"].subscribe(T)
    wanted = mesh["a"].routes.version
    confirmed_at_once = mesh["a"].routes.confirmed
    while mesh["a"].routes.confirmed < wanted:
        assert mesh.step(), "nobody confirms it"

    assert confirmed_at_once < wanted
    assert mesh["c"].knows(T) == mesh["b"].knows(T) == {"a"}


def test_without_links_everything_is_confirmed() -> None:
    mesh = Spots("ab")
    mesh["a"].subscribe(T)

    assert mesh["a"].routes.confirmed == mesh["a"].routes.version == 1
    assert mesh["a"].routes.is_ready


def test_a_link_is_ready_when_the_interest_of_the_other_side_is_known_even_if_it_wants_nothing() -> None:
    mesh = Spots("ab")
    mesh.link("a", "b")
    before = mesh["a"].routes.is_ready

    mesh.flow()

    assert not before
    assert mesh["a"].routes.is_ready
    assert mesh["a"].routes.interest_count("b") == 0


def test_a_difference_that_does_not_fit_is_answered_by_asking_for_all() -> None:
    mesh = Spots("ab").mesh()
    mesh["b"].subscribe(T)
    mesh.flow()
    mesh["a"].routes.take(B, InterestPart(B, 7, 8, 0, 0, True, {"/topic/lost": True}), Outcome())
    in_between = mesh["a"].knows("/topic/lost")

    mesh.flow()

    assert in_between == set()
    assert mesh["a"].knows(T) == {"b"}
    assert mesh["a"].routes.confirmed == mesh["a"].routes.version


@pytest.mark.parametrize("version", [0, 1])
def test_a_repeat_and_an_older_version_change_nothing(version: int) -> None:
    mesh = Spots("ab").mesh()
    mesh["b"].subscribe(T)
    mesh.flow()

    mesh["a"].routes.take(B, InterestPart(B, 0, version, 0, 0, True, {T: False}), Outcome())
    mesh["a"].routes.take(B, InterestPart(B, NEVER, version, 99, 0, True, {}), Outcome())

    assert mesh["a"].knows(T) == {"b"}


def test_many_patterns_are_published_in_parts_and_a_missing_part_makes_it_begin_again() -> None:
    mesh = Spots("ab")
    names = [f"/topic/{number}.x" for number in range(100)]
    mesh["b"].subscribe(*names)
    mesh.link("a", "b")
    for line in mesh.all_lines:
        for outbox in line.outboxes.values():
            outbox.quantum_bytes = 200
    arrived: list[InterestPart] = []
    take = mesh["a"].routes.take

    def lose_one(peer: Origin, frame: object, out: Outcome) -> None:
        if isinstance(frame, InterestPart):
            arrived.append(frame)
            if len(arrived) == 3:
                return
        take(peer, frame, out)  # type: ignore[arg-type]

    mesh["a"].routes.take = lose_one  # type: ignore[method-assign]
    mesh.flow()

    assert max(len(part.patterns) for part in arrived) < 30
    assert [part.part for part in arrived].count(0) == 2
    assert all(mesh["a"].knows(name) == {"b"} for name in names)


def test_what_changes_while_all_is_published_follows_as_a_difference() -> None:
    state = interest.InterestState()
    state.advance(1, {f"/topic/{number}": True for number in range(50)})
    told = interest_publisher.InterestPublisher({A: state}.get, lambda: None, {}, lambda: 1)
    told.mark(A)

    first = told.take(100)
    state.advance(2, {"/topic/0": False, "/topic/new": True})
    told.mark(A)
    rest: list[InterestPart] = []
    while told.is_due:
        rest += told.take(100)

    assert [part.base for part in (*first, *rest)] == [NEVER] * (len(rest)) + [1]
    assert rest[-1].patterns == {"/topic/0": False, "/topic/new": True}
    assert [part.is_last for part in (*first, *rest)][-2:] == [True, True]


def test_more_patterns_than_a_node_may_publish_end_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.replication.links.routes.PATTERNS_MAX", 3)
    mesh = Spots("ab").mesh()

    with pytest.raises(MeshError):
        mesh["a"].routes.take(B, InterestPart(B, NEVER, 9, 99, 0, False, dict.fromkeys("abcd", True)), Outcome())


def passed(origin: Origin, target: str) -> Passed:
    return Passed(target, [Message(Envelope(T, DestinationKind.TOPIC, b"", False), b"x", origin, -9, 0)])


def test_messages_of_an_unknown_node_are_not_delivered_and_the_link_goes_on() -> None:
    mesh = Spots("abc").mesh()
    mesh["c"].subscribe(T)

    out = Outcome()
    mesh["c"].routes.take(B, passed(Origin("n", 1), "c"), out)
    mesh["c"].routes.take(B, passed(A, "c"), out)

    assert [message.origin for run in out.topic_runs for message in run.messages] == [A]
    assert mesh["c"].routes.unrelayed == 1


def test_what_was_passed_on_once_is_not_passed_on_again() -> None:
    mesh = Spots("abcd").mesh()

    with pytest.raises(MeshError):
        mesh["c"].routes.take(B, passed(A, "d"), Outcome())

    assert mesh["c"].routes.relayed == 0


def test_a_node_is_not_sent_its_own_messages() -> None:
    mesh = Spots("ab").mesh()
    mesh["a"].subscribe(T)

    for origin in (A, Origin("a", 7)):
        with pytest.raises(MeshError):
            mesh["a"].routes.take(B, passed(origin, "a"), Outcome())

    assert mesh["a"].heard == []


def test_what_cannot_be_passed_on_is_dropped_and_counted() -> None:
    mesh = Spots("abc").mesh()
    mesh.cut("c", "b")

    mesh["c"].routes.take(A, passed(A, "b"), Outcome())

    assert (mesh["c"].routes.relayed, mesh["c"].routes.unrelayed) == (0, 1)


def test_a_node_that_says_it_is_linked_with_too_many_is_not_believed() -> None:
    mesh = Spots("ab").mesh()

    with pytest.raises(MeshError):
        mesh["a"].routes.take(B, Reach(99, frozenset(Origin("c", n) for n in range(17))), Outcome())


def test_nothing_is_kept_of_what_is_said_of_nodes_without_a_link() -> None:
    mesh = Spots("abc").mesh()
    routes = mesh["a"].routes
    neighbour = routes.neighbours[B]
    before = dict(neighbour.passed)

    for incarnation in range(2, 100):
        other = Origin("d", incarnation)
        routes.take(B, Heard([(other, 5)]), Outcome())
        routes.take(B, Reach(1_000 + incarnation, frozenset({C, other})), Outcome())
        routes.take(B, Heard([(other, 5)]), Outcome())
        routes.take(B, InterestPart(other, NEVER, 5, 1, 0, False, {T: True}), Outcome())

    assert neighbour.passed == before
    assert set(neighbour.arriving) == {Origin("d", 99)}


def test_a_part_without_any_pattern_that_is_not_the_last_one_is_refused() -> None:
    mesh = Spots("ab").mesh()

    with pytest.raises(MeshError, match="bad-frame"):
        mesh["a"].routes.take(B, InterestPart(B, NEVER, 5, 99, 0, False, {}), Outcome())


def test_what_is_said_of_unknown_nodes_changes_nothing() -> None:
    mesh = Spots("abc").mesh()
    a = mesh["a"]
    stranger = Origin("stranger", 1)

    a.routes.take(B, Reach(99, frozenset({C, stranger})), Outcome())
    a.routes.take(B, InterestPart(stranger, NEVER, 1, 99, 0, True, {T: True}), Outcome())
    a.routes.take(B, Heard([(stranger, 5), (stranger, NEVER)]), Outcome())
    a.routes.take(stranger, Reach(99, frozenset({C})), Outcome())

    assert a.knows(T) == set()
    assert a.routes.next_hop_of("stranger") is None


@pytest.mark.parametrize("seed", range(60))
def test_whatever_breaks_nothing_is_doubled_or_late_and_in_the_end_all_know_all_interest(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 3 == 0:
        monkeypatch.setattr(interest, "CHANGES_MAX", 5)
    names = "abcd"[: 3 + seed % 2]
    mesh = Spots(names, seed).mesh()
    rng = mesh.rng
    topics = [f"/topic/{number}" for number in range(4)] + ["/topic/x.*"]
    for _ in range(250):
        node = mesh[rng.choice(names)]
        what = rng.random()
        one, other = rng.sample(names, 2)
        linked = any({mesh[one], mesh[other]} == set(line.ends) for line in mesh.all_lines)
        if what < 0.2:
            topic = rng.choice(topics)
            (node.unsubscribe if topic in node.subscriptions else node.subscribe)(topic)
        elif what < 0.5:
            node.publish(rng.choice([*topics[:4], "/topic/x.y"]), rng.randrange(1, 4))
        elif what < 0.57 and linked:
            mesh.cut(one, other, noticed_by=rng.choice([None, one, other]))
        elif what < 0.65 and not linked:
            mesh.link(one, other, both=rng.random() < 0.7)
        elif what < 0.66:
            mesh.restart(one)
        elif what < 0.7:
            mesh.notice()
        mesh.flow(rng.choice([0, 2, 5, 40]))
        for spot in mesh.nodes.values():
            for origin in {origin for origin, _, _ in spot.heard}:
                numbers = spot.numbers(origin)
                assert all(a < b for a, b in zip(numbers, numbers[1:], strict=False)), f"{spot.origin}: {numbers}"

    mesh.notice()
    for index, one in enumerate(names):
        for other in names[index + 1 :]:
            if not any({mesh[one], mesh[other]} == set(line.ends) for line in mesh.all_lines) and rng.random() < 0.5:
                mesh.link(one, other)
    mesh.flow()

    def near(one: str) -> set[str]:
        spots = {line.other(mesh[one]) for line in mesh[one].lines}
        return {spot.origin.node for spot in spots}

    for one in names:
        two_hops = near(one).union(*[near(other) for other in near(one)]) - {one}
        for topic in topics[:4]:
            wanting = {name for name in two_hops if topic in mesh[name].subscriptions}
            assert mesh[one].knows(topic) == wanting, f"{one} knows {mesh[one].knows(topic)} of {topic}"
        assert mesh[one].routes.confirmed == mesh[one].routes.version
        assert mesh[one].routes.is_ready
        for spot in mesh.nodes.values():
            spot.heard.clear()
        mesh[one].publish(topics[0])
        mesh.flow()
        told = {name for name in names if name != one and mesh[name].heard}
        assert told == {name for name in two_hops if topics[0] in mesh[name].subscriptions}
