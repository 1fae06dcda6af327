"""Last values of topics: which one stays, which subscribers get it, and that all nodes end with the same value."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message, Retain
from qmq.broker.topics import retained as module
from qmq.broker.topics import retained_sync as spread_module
from qmq.broker.topics.patterns import Pattern
from qmq.broker.topics.retained import SCAN_VISITS_MAX, RetainedValues
from qmq.broker.topics.retained_sync import RetainedSync
from qmq.errors import Refused
from qmq.model.dots import Origin

A, B, C = Origin("a", 1), Origin("b", 1), Origin("c", 1)
ALL = 1 << 62


def kept(topics_max: int = 1000, bytes_max: int = 1 << 20) -> RetainedValues:
    return RetainedValues(topics_max, bytes_max)


def value(
    name: str, body: bytes = b"v", *, origin: Origin = A, number: int = 1, at: int = 1000, remove: bool = False
) -> Message:
    envelope = Envelope(f"/topic/{name}", DestinationKind.TOPIC, b"", False)
    envelope.retain = Retain.REMOVE if remove else Retain.SET
    return Message(envelope, body, origin, -number, at)


def body_of(values: RetainedValues, name: str) -> bytes | None:
    message = values.older(f"/topic/{name}", ALL)
    return None if message is None else message.body


def pages(values: RetainedValues, pattern: str, *, since: int = ALL, size: int = 1 << 20) -> list[list[str]]:
    found: list[list[str]] = []
    position: str | None = ""
    while position is not None:
        messages, position = values.page(Pattern(f"/topic/{pattern}"), position, since, size)
        found.append([message.envelope.destination.removeprefix("/topic/") for message in messages])
    return found


def everything(values: RetainedValues) -> dict[str, tuple[bytes, bool]]:
    return {name: (v.message.body, v.is_removed) for name, v in values.values.items()}


def check_accounts(values: RetainedValues) -> None:
    assert values.names == sorted(values.values)
    living = [v.message for v in values.values.values() if not v.is_removed]
    assert values.topics == len(living)
    assert values.bytes == sum(len(m.envelope.destination) + len(m.envelope.headers) + len(m.body) for m in living)


# One node


def test_the_last_value_stays_until_it_is_removed() -> None:
    values = kept()

    values.put(value("t", b"one"))
    values.put(value("t", b"two", number=2))
    assert body_of(values, "t") == b"two"

    values.put(value("t", b"ignored", number=3, remove=True))
    assert body_of(values, "t") is None
    assert values.bytes == 0 and values.topics == 0
    check_accounts(values)


def test_what_is_kept_holds_no_encoding_of_the_message_that_was_delivered() -> None:
    values = kept()
    message = value("t")
    values.put(message)

    message.tail = b"encoded"

    found = values.older("/topic/t", ALL)
    assert found is not None and found.tail == b""


def test_a_clients_newer_value_wins_also_when_the_clock_went_back() -> None:
    values = kept()
    values.put(value("t", b"one", at=5000))

    late = value("t", b"two", number=2, at=10)
    values.put(late)

    assert body_of(values, "t") == b"two"
    assert late.timestamp_us == 5001, "other nodes must agree"


def test_one_topic_too_many_is_refused_and_a_known_one_is_not() -> None:
    values = kept(topics_max=2)
    values.put(value("a"))
    values.put(value("b"))

    values.check([(value("a").envelope, 5)])
    with pytest.raises(Refused) as refused:
        values.check([(value("c").envelope, 5)])

    assert refused.value.code == "too-many-retained"
    values.put(value("a", number=2, remove=True))
    values.check([(value("c").envelope, 5)])


def test_bytes_count_as_they_will_be_when_a_value_is_replaced() -> None:
    values = kept(bytes_max=100)
    values.put(value("a", b"x" * 80))

    values.check([(value("a").envelope, 90)])
    with pytest.raises(Refused):
        values.check([(value("b").envelope, 20)])
    with pytest.raises(Refused):
        values.check([(value("a").envelope, 101)])


def test_the_values_of_a_transaction_must_find_room_together() -> None:
    values = kept(topics_max=2)
    a, b, c = (value(name).envelope for name in "abc")

    values.check([(a, 1), (b, 1), (a, 1), (b, 1)])
    with pytest.raises(Refused):
        values.check([(a, 1), (b, 1), (c, 1)])


def test_marks_of_removed_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMOVED_MAX", 3)
    values = kept()

    for number, name in enumerate("abcde"):
        values.put(value(name, number=number))
        values.put(value(name, number=number, remove=True))

    assert list(values.values) == ["/topic/c", "/topic/d", "/topic/e"]
    check_accounts(values)


# Pages


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["a", "a.b", "a.b.c", "ab", "b"]),
        ("a*", ["a", "a.b", "a.b.c", "ab"]),
        ("a.*", ["a.b"]),
        ("a.#", ["a", "a.b", "a.b.c"]),
        ("#.c", ["a.b.c"]),
        ("*.b", ["a.b"]),
        ("c*", []),
    ],
)
def test_a_pattern_gets_the_values_it_matches_by_name(pattern: str, found: list[str]) -> None:
    values = kept()
    for number, name in enumerate(["b", "a.b.c", "a", "ab", "a.b", "gone"]):
        values.put(value(name, number=number))
    values.put(value("gone", number=9, remove=True))

    assert [name for page in pages(values, pattern) for name in page] == found
    assert [name for page in pages(values, pattern, size=1) for name in page] == found


def test_a_page_looks_at_so_many_names_whatever_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_MAX", 10)
    values = kept()
    for number in range(35):
        values.put(value(f"x.{number:02}", number=number))
    values.put(value("x.yes.y", number=99))

    assert pages(values, "#.y") == [[], [], [], ["x.yes.y"]]


def test_a_prefix_costs_only_what_it_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_MAX", 10)
    values = kept()
    for number in range(100):
        values.put(value(f"{number:02}", number=number))

    assert pages(values, "42*") == [["42"]]


def test_what_was_set_since_is_left_out_and_delivered_live() -> None:
    values = kept()
    values.put(value("a", b"old", number=1))
    values.put(value("b", b"old", number=2))
    since = values.change

    values.put(value("a", b"new", number=3))
    values.put(value("c", b"new", number=4))

    assert pages(values, "*", since=since) == [["b"]]
    assert values.older("/topic/a", since) is None


def test_pages_go_on_where_they_were_whatever_came_and_went() -> None:
    values = kept()
    for number, name in enumerate("bdfh"):
        values.put(value(name, number=number))
    messages, position = values.page(Pattern("/topic/*"), "", ALL, 1)
    assert position == "/topic/b"

    values.put(value("b", number=10, remove=True))
    values.put(value("a", number=11))
    values.put(value("c", number=12))
    values.put(value("f", number=13, remove=True))

    assert [m.envelope.destination[7:] for m in values.page(Pattern("/topic/*"), position, ALL, ALL)[0]] == list("cdh")


def test_pattern_that_costs_much_to_match_is_asked_about_fewer_names_for_a_page() -> None:
    values = kept()
    for number in range(300):
        values.put(value(f"n{number}", number=number))
    pattern = Pattern("/topic/" + ".".join("#" * 12 + "x"))
    assert pattern.visits > 100

    messages, position = values.page(pattern, "", ALL, ALL)

    assert not messages and position == sorted(values.names)[SCAN_VISITS_MAX // pattern.visits - 1]


# Peers


def test_the_later_value_stays_from_any_node_and_however_often() -> None:
    values = kept()

    assert values.learn(value("t", b"b", origin=B, at=20), "b")
    assert not values.learn(value("t", b"a", origin=A, at=10), "c")
    assert not values.learn(value("t", b"b", origin=B, at=20), "c")

    assert body_of(values, "t") == b"b"


@pytest.mark.parametrize("later", [A, C])
def test_two_values_of_one_microsecond_end_as_the_same_value_on_both_nodes(later: Origin) -> None:
    """The second value's node raises the stamp of it, so that every node agrees which is later."""
    first = value("t", b"b", origin=B, at=1000)
    here, there = kept(), kept()
    here.learn(first, "b")
    there.learn(first, "b")

    second = value("t", b"second", origin=later, at=1000)
    here.put(second)
    there.learn(second, later.node)

    assert second.timestamp_us == 1001
    assert everything(here) == everything(there) == {"/topic/t": (b"second", False)}


def test_a_removed_value_does_not_come_back_from_a_peer_that_was_away() -> None:
    values = kept()
    values.put(value("t", at=10))
    values.put(value("t", at=20, number=2, remove=True))

    assert not values.learn(value("t", at=10), "c")

    assert body_of(values, "t") is None


def test_a_message_whose_value_was_learnt_before_is_not_delivered_again() -> None:
    values = kept()
    assert values.learn(value("t", b"two", origin=B, number=2, at=20), "c")

    assert not values.hear(value("t", b"one", origin=B, number=1, at=10)), "out of order"
    assert not values.hear(value("t", b"two", origin=B, number=2, at=20)), "twice"
    assert values.hear(value("t", b"three", origin=B, number=3, at=30))


def test_a_message_is_not_delivered_twice_when_another_value_came_in_between() -> None:
    values = kept()
    assert values.learn(value("t", b"b", origin=B, number=2, at=20), "c")
    assert values.hear(value("t", b"c", origin=C, number=1, at=30))

    assert not values.hear(value("t", b"b", origin=B, number=2, at=20))


def test_a_live_message_of_another_origin_is_delivered_also_when_its_value_loses() -> None:
    values = kept()
    values.put(value("t", b"mine", at=50))

    assert values.hear(value("t", b"theirs", origin=B, at=40))

    assert body_of(values, "t") == b"mine"


def test_values_can_be_replaced_when_there_are_more_than_a_bound_that_became_less() -> None:
    values = kept()
    for name in ("a", "b"):
        values.put(value(name, b"0123456789"))
    values.topics_max, values.bytes_max = 1, 20
    changed = value("a", b"changed", at=2000)

    values.check([(changed.envelope, len(changed.body))])
    assert values.hear(value("b", b"changed", origin=B, at=2000))

    assert body_of(values, "b") == b"changed"
    for more in (value("c", b""), value("a", b"longer than before")):
        with pytest.raises(Refused):
            values.check([(more.envelope, len(more.body))])


def test_a_value_of_a_peer_that_finds_no_room_is_delivered_and_counted_and_not_kept() -> None:
    values = kept(topics_max=1)
    values.put(value("a"))

    assert values.hear(value("b", origin=B))
    assert values.learn(value("c", origin=B, number=2), "b")

    assert values.left_out == 2
    assert list(values.values) == ["/topic/a"]


def test_a_value_that_found_no_room_is_no_news_when_a_peer_offers_it_again() -> None:
    values = kept(topics_max=1)
    values.put(value("a"))
    assert values.hear(value("b", origin=B, number=1))
    assert values.learn(value("c", origin=B, number=2), "b")

    assert not values.learn(value("b", origin=B, number=1), "b")
    assert not values.learn(value("c", origin=B, number=2), "c")
    assert values.left_out == 2
    assert values.learn(value("c", origin=B, number=3, at=2000), "b")

    values.topics_max = 2
    values.learn(value("c", origin=B, number=3, at=2000), "b")
    assert list(values.values) == ["/topic/a", "/topic/c"]


def test_topics_whose_value_found_no_room_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNKEPT_MAX", 2)
    values = kept(topics_max=0)

    assert [values.learn(value(name), "b") for name in "aabbc"] == [True, False, True, False, True]
    assert values.learn(value("a"), "b")


def test_a_value_that_finds_no_room_leaves_no_older_one_for_later_subscribers() -> None:
    values = kept(bytes_max=30)
    values.put(value("a", b"old"))
    values.put(value("gone", remove=True))

    assert values.hear(value("a", b"new, and larger than the bound", origin=B, at=2000))
    assert values.hear(value("gone", b"new, and larger than the bound", origin=B, number=2, at=2000))

    assert body_of(values, "a") is None
    assert everything(values) == {"/topic/gone": (b"", True)}
    check_accounts(values)


# What a peer is told


def spread(values: RetainedValues, *direct: Origin, peer: str = "z") -> RetainedSync:
    made = values.spreads[peer] = RetainedSync(values, lambda: None)
    made.follows(frozenset(direct))
    return made


def taken(from_spread: RetainedSync, size: int = 1 << 20) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while from_spread.is_due:
        found += [(m.envelope.destination.removeprefix("/topic/"), m.body) for m in from_spread.take(size)]
    return found


def test_a_link_begins_with_all_values_and_marks_that_the_peer_does_not_hear_itself() -> None:
    values = kept()
    values.put(value("mine"))
    values.put(value("gone", number=2, remove=True))
    values.learn(value("b's", origin=B), "b")
    values.learn(value("c's", origin=C), "c")

    assert sorted(taken(spread(values, C), size=1)) == [("b's", b"v"), ("gone", b""), ("mine", b"v")]


def test_nothing_is_sent_before_the_peer_named_the_origins_that_it_follows() -> None:
    values = kept()
    values.put(value("t"))
    made = RetainedSync(values, lambda: None)

    assert not made.is_due
    made.mark("/topic/t")
    assert not made.is_due


def test_values_of_others_are_relayed_to_peers_that_do_not_follow_them() -> None:
    values = kept()
    follows_b, does_not = spread(values, B, peer="c"), spread(values, peer="d")
    dispatcher = spread(values, peer="b")
    assert taken(follows_b) == taken(does_not) == taken(dispatcher) == []

    values.hear(value("t", b"1", origin=B))
    values.hear(value("t", b"2", origin=B, number=2, at=2000))

    assert taken(does_not) == [("t", b"2")], "only the present value"
    assert taken(follows_b) == [] and taken(dispatcher) == []


def test_when_a_peer_loses_an_origin_it_is_sent_what_that_one_has_set() -> None:
    values = kept()
    values.put(value("mine"))
    values.learn(value("b's", origin=B), "b")
    values.learn(value("c's", origin=C), "c")
    peer = spread(values, B, C)
    assert taken(peer) == [("mine", b"v")]

    peer.follows(frozenset({C}))

    assert taken(peer) == [("b's", b"v")]


def test_a_turn_is_bounded_and_what_fits_no_frame_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_module, "VALUE_BYTES_MAX", 1000)
    values = kept()
    for number, (name, size) in enumerate([("a", 100), ("b", 500), ("c", 900), ("d", 2000), ("e", 10)]):
        values.put(value(name, b"x" * size, number=number))
    walking = spread(values)
    marked = spread(values, A, peer="y")
    assert taken(marked) == []
    for name in values.names:
        marked.mark(name)

    for peer in (walking, marked):
        turns = []
        while peer.is_due:
            turns.append([len(message.body) for message in peer.take(700)])
        assert sorted(size for turn in turns for size in turn) == [10, 100, 500, 900]
        assert all(len(turn) == 1 or sum(turn) <= 700 for turn in turns)


def test_what_goes_as_a_message_is_not_sent_by_the_walk_as_well() -> None:
    values = kept()
    values.put(value("a"))
    values.put(value("b", number=2))
    peer = spread(values)

    values.put(value("b", b"live", number=3))
    assert values.audience(("y",), "/topic/b") == ("y", "z")

    assert taken(peer) == [("a", b"v")]
    peer.mark("/topic/b")
    assert taken(peer) == [("b", b"live")], "its message was dropped after all"


Change = tuple[int, int, int, bool]
Changes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 5), st.booleans()), max_size=25)


@settings(max_examples=150)
@given(Changes, st.randoms(use_true_random=False))
def test_all_nodes_end_with_the_same_values_however_they_hear_of_them(changes: list[Change], order: Random) -> None:
    """Clocks are wrong, messages arrive in any order and twice, and snapshots repeat everything."""
    nodes = [kept(), kept(), kept()]
    flying: list[tuple[int, Message]] = []
    for number, (node, topic, clock, remove) in enumerate(changes, start=1):
        message = value(str(topic), b"%d" % number, origin=(A, B, C)[node], number=number, at=clock, remove=remove)
        nodes[node].put(message)
        flying += [(other, message) for other in range(3) if other != node]
        if order.random() < 0.5 and flying:
            where, what = flying.pop(order.randrange(len(flying)))
            nodes[where].hear(what)

    for where, what in flying[::2]:
        nodes[where].hear(what)
    for source in (0, 1, 2, 0, 1, 2):
        for target in range(3):
            for stored in list(nodes[source].values.values()):
                nodes[target].learn(stored.message, "abc"[source])

    assert everything(nodes[0]) == everything(nodes[1]) == everything(nodes[2])
    for node in nodes:
        check_accounts(node)
