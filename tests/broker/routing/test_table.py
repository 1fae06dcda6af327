"""The routing table: which queues get a message, by the type of its exchange, its key and its headers."""

import itertools
import random
from collections.abc import Mapping

import pytest

from benchmarks.growth import Order
from benchmarks.work import work_of
from qmq.broker.routing.binding import PREDEFINED, Binding, Exchange, read_binding, read_exchange
from qmq.broker.routing.table import ALTERNATES_MAX, RoutingTable
from qmq.broker.topics.patterns import VISITS_MAX
from qmq.errors import Refused
from qmq.model.routing_names import TYPES, binding_name

NOTHING: Mapping[str, str] = {}


def bound(table: RoutingTable, source: str, queue: str, key: str = "", **arguments: str | None) -> Binding:
    binding = Binding(source, f"/queue/{queue}", key, {name.replace("_", "-"): at for name, at in arguments.items()})
    table.add(binding)
    return binding


def queues(table: RoutingTable, exchange: str, key: str = "", headers: Mapping[str, str] = NOTHING) -> list[str]:
    return [queue.removeprefix("/queue/") for queue in table.queues_of_exchange(exchange, key, headers)]


# The key of a binding of a topic exchange, the key of a message, and whether RabbitMQ routes it.
TOPIC_KEYS = [
    ("a.b", "a.b", True),
    ("a.b", "a.b.c", False),
    ("*", "a", True),
    ("*", "a.b", False),
    ("*", "", False),
    ("#", "", True),
    ("#", "a", True),
    ("#", "a.b.c", True),
    ("", "", True),
    ("", "a", False),
    ("a.*", "a.b", True),
    ("a.*", "a.", True),
    ("a.*", "a", False),
    ("a.*", "a.b.c", False),
    ("a.#", "a", True),
    ("a.#", "a.b.c", True),
    ("a.#", "ab", False),
    ("#.b", "b", True),
    ("#.b", "a.a.b", True),
    ("#.b", "a.b.c", False),
    ("*.*", "a..b", False),
    ("*.*.*", "a..b", True),
    ("a..b", "a..b", True),
    ("*.#.b", "a.b", True),
    ("*.#.b", "b", False),
    ("#.#", "", True),
    ("#.*", "", False),
    ("#.*", "a", True),
    ("*.", "a.", True),
    (".", ".", True),
    ("*.*", ".", True),
    # A wildcard is a whole word; elsewhere it is a character.
    ("app*", "app*", True),
    ("app*", "apple", False),
    ("a#.b", "a#.b", True),
    ("a#.b", "ax.b", False),
]


@pytest.mark.parametrize(("pattern", "key", "is_routed"), TOPIC_KEYS)
def test_keys_of_a_topic_exchange(pattern: str, key: str, is_routed: bool) -> None:
    table = RoutingTable()
    binding = bound(table, "/exchange/amq.topic", "q", pattern)

    assert (queues(table, "amq.topic", key) == ["q"]) is is_routed

    table.remove(binding)
    assert queues(table, "amq.topic", key) == []


# Arguments of a binding, headers of a message, and whether RabbitMQ routes it.
HEADERS: list[tuple[dict[str, str | None], dict[str, str], bool]] = [
    ({"a": "1"}, {"a": "1"}, True),
    ({"a": "1"}, {"a": "2"}, False),
    ({"a": "1"}, {}, False),
    ({"a": "1", "b": "2"}, {"a": "1", "b": "2", "c": "3"}, True),
    ({"a": "1", "b": "2"}, {"a": "1"}, False),
    ({"a": "1", "b": "2"}, {"b": "2"}, False),
    ({"x-match": "all", "a": "1", "b": "2"}, {"a": "1", "b": "3"}, False),
    ({"x-match": "any", "a": "1", "b": "2"}, {"b": "2"}, True),
    ({"x-match": "any", "a": "1", "b": "2"}, {"a": "2", "b": "1"}, False),
    ({"x-match": "any"}, {"a": "1"}, False),
    ({"x-match": "any"}, {}, False),
    ({"x-match": "all"}, {}, True),
    ({}, {"a": "1"}, True),
    ({"a": None}, {"a": "anything"}, True),
    ({"a": None}, {"b": "1"}, False),
    ({"x-match": "any", "a": None, "b": "2"}, {"a": ""}, True),
    # What begins with x- is not compared.
    ({"x-tenant": "7", "a": "1"}, {"a": "1"}, True),
    ({"x-match": "any", "x-tenant": "7"}, {"x-tenant": "7"}, False),
    ({"x-match": "any-with-x", "x-tenant": "7", "b": "2"}, {"x-tenant": "7"}, True),
    ({"x-match": "any-with-x", "x-tenant": "7"}, {"x-tenant": "8"}, False),
    ({"x-match": "all-with-x", "x-tenant": "7", "b": "2"}, {"x-tenant": "7", "b": "2"}, True),
    ({"x-match": "all-with-x", "x-tenant": "7", "b": "2"}, {"b": "2"}, False),
]


@pytest.mark.parametrize(("arguments", "headers", "is_routed"), HEADERS)
def test_arguments_of_a_headers_exchange(
    arguments: dict[str, str | None], headers: dict[str, str], is_routed: bool
) -> None:
    table = RoutingTable()
    binding = Binding("/exchange/amq.headers", "/queue/q", "", arguments)
    table.add(binding)

    assert (queues(table, "amq.headers", "any key", headers) == ["q"]) is is_routed

    table.remove(binding)
    assert queues(table, "amq.headers", "", headers) == []


@pytest.mark.parametrize("common", [{"a": "same"}, {"z": "same"}, {"a": None}])
def test_headers_that_many_bindings_share_do_not_lead_to_all_of_them(common: dict[str, str | None]) -> None:
    works = []
    for most in (10, 1000):
        table = RoutingTable()
        for number in range(most):
            bound(table, "/exchange/amq.headers", f"q{number}", **common, id=str(number))
        headers = {**dict.fromkeys(common, "same"), "id": "5"}
        assert queues(table, "amq.headers", "", headers) == ["q5"]
        works.append(work_of(lambda: table.queues_of_exchange("amq.headers", "", headers)))  # noqa: B023

    assert Order.CONSTANT.allows(10, 1000, *works)


def test_a_direct_exchange_compares_the_whole_key_and_a_fanout_nothing() -> None:
    table = RoutingTable()
    bound(table, "/exchange/amq.direct", "one", "a.b")
    bound(table, "/exchange/amq.direct", "star", "a.*")
    bound(table, "/exchange/amq.direct", "none", "")
    bound(table, "/exchange/amq.fanout", "all", "ignored")

    assert queues(table, "amq.direct", "a.b") == ["one"]
    assert queues(table, "amq.direct", "a.*") == ["star"]
    assert queues(table, "amq.direct", "") == ["none"]
    assert queues(table, "amq.fanout", "a.b") == queues(table, "amq.fanout", "") == ["all"]


@pytest.mark.parametrize("type", [exchange.type for exchange in PREDEFINED])
def test_a_queue_gets_one_copy_however_many_bindings_match(type: str) -> None:
    table = RoutingTable()
    source = f"/exchange/amq.{type}"
    first = bound(table, source, "q", "a", a="1")
    bound(table, source, "q", "a", x_match="any", a="1")
    bound(table, source, "b", "a", a="1")

    assert queues(table, f"amq.{type}", "a", {"a": "1"}) == ["b", "q"]

    table.remove(first)
    assert queues(table, f"amq.{type}", "a", {"a": "1"}) == ["b", "q"]


def test_topics_by_name_and_by_pattern_and_fanouts_by_name() -> None:
    table = RoutingTable()
    exact = bound(table, "/topic/prices.eu", "exact")
    bound(table, "/topic/prices.*", "words")
    bound(table, "/topic/pri*", "prefix")
    bound(table, "/topic/#", "all")
    bound(table, "/fanout/prices.eu", "fan")

    assert table.queues_of_topic("/topic/prices.eu") == ("/queue/all", "/queue/exact", "/queue/prefix", "/queue/words")
    assert table.queues_of_topic("/topic/other") == ("/queue/all",)
    assert table.queues_of_fanout("/fanout/prices.eu") == ("/queue/fan",)
    assert table.queues_of_fanout("/fanout/prices.us") == ()

    table.remove(exact)
    assert "/queue/exact" not in table.queues_of_topic("/topic/prices.eu")


def test_what_no_binding_matches_goes_to_the_alternate_and_from_there_to_the_next() -> None:
    table = RoutingTable()
    table.put_exchange(Exchange("first", "direct", "second"))
    table.put_exchange(Exchange("second", "topic", "third"))
    table.put_exchange(Exchange("third", "fanout"))
    bound(table, "/exchange/first", "one", "a")
    bound(table, "/exchange/second", "two", "b.#")

    assert queues(table, "first", "a") == ["one"]
    assert queues(table, "first", "b.c") == ["two"]
    assert queues(table, "first", "c") == []

    bound(table, "/exchange/third", "three")
    assert queues(table, "first", "c") == ["three"]
    assert queues(table, "first", "a") == ["one"]


def test_a_message_goes_to_a_bounded_number_of_alternates() -> None:
    table = RoutingTable()
    for number in range(ALTERNATES_MAX + 2):
        table.put_exchange(Exchange(f"row{number}", "direct", f"row{number + 1}"))
        table.put_exchange(Exchange(f"star{number}", "direct", f"ray{number}"))
        table.put_exchange(Exchange(f"ray{number}", "fanout"))
        bound(table, f"/exchange/ray{number}", f"q{number}")
        joined(table, "amq.fanout", f"star{number}")
    bound(table, f"/exchange/row{ALTERNATES_MAX}", "last", "k")
    bound(table, f"/exchange/row{ALTERNATES_MAX + 1}", "beyond", "other")

    assert queues(table, "row0", "k") == ["last"]
    assert queues(table, "row0", "other") == []
    assert queues(table, "row1", "other") == ["beyond"]
    assert len(queues(table, "amq.fanout", "k")) == ALTERNATES_MAX


def test_alternates_that_form_a_cycle_are_followed_once() -> None:
    table = RoutingTable()
    table.put_exchange(Exchange("a", "direct", "b"))
    table.put_exchange(Exchange("b", "direct", "a"))

    assert queues(table, "a", "key") == []


def test_a_binding_waits_for_its_exchange_in_whatever_order_they_come() -> None:
    table = RoutingTable()
    binding = bound(table, "/exchange/e", "q", "a.*")

    assert queues(table, "e", "a.b") == []
    assert table.without_effect() == [f"binding {binding.name}"]

    table.put_exchange(Exchange("e", "topic"))
    assert (queues(table, "e", "a.b"), table.without_effect()) == (["q"], [])

    table.put_exchange(Exchange("e", "direct", "missing"))
    assert (queues(table, "e", "a.b"), queues(table, "e", "a.*")) == ([], ["q"])
    assert table.without_effect() == ["alternate missing of exchange e"]

    table.remove_exchange("e")
    table.remove(binding)
    assert table.without_effect() == []


def test_every_table_agrees_with_the_rule_written_plainly() -> None:
    rng = random.Random(20)
    words = ["a", "b", "*", "#", ""]
    for _ in range(300):
        table = RoutingTable()
        patterns = {".".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 6))}
        for number, pattern in enumerate(sorted(patterns)):
            bound(table, "/exchange/amq.topic", str(number), pattern)
        for key in {".".join(rng.choices(["a", "b", "c", ""], k=rng.randint(1, 4))) for _ in range(4)}:
            expected = [
                str(at) for at, pattern in enumerate(sorted(patterns)) if _matches(_split(pattern), _split(key))
            ]
            assert queues(table, "amq.topic", key) == expected, (patterns, key)


def _split(key: str) -> list[str]:
    return key.split(".") if key else []


def _matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])


def test_remembered_keys_follow_the_bindings() -> None:
    table = RoutingTable()
    first = bound(table, "/exchange/amq.topic", "one", "a.*")
    assert queues(table, "amq.topic", "a.b") == ["one"]

    bound(table, "/exchange/amq.topic", "two", "#")
    assert queues(table, "amq.topic", "a.b") == ["one", "two"]

    table.remove(first)
    assert queues(table, "amq.topic", "a.b") == ["two"]


def test_patterns_that_match_in_too_many_ways_are_refused_and_change_nothing() -> None:
    table = RoutingTable()
    costly = "#.a." * 30 + "b"
    bound(table, "/exchange/amq.topic", "q", "#.a.#.b")

    for binding in (
        Binding("/exchange/amq.topic", "/queue/q", costly, {}),
        Binding(f"/topic/{costly}", "/queue/q", "", {}),
    ):
        with pytest.raises(Refused) as refused:
            table.check_cost([binding], table.exchanges)
        assert refused.value.code == "too-many-patterns"

    assert queues(table, "amq.topic", "a.b") == ["q"]
    for number in range(2 * VISITS_MAX):
        harmless = Binding("/exchange/amq.topic", "/queue/q", f"a.*.{number}", {})
        table.check_cost([harmless], table.exchanges)
        table.add(harmless)


# What operators write


def test_a_binding_has_one_name_however_its_arguments_are_written() -> None:
    value = {"source": "/exchange/e", "queue": "/queue/q", "key": "a b", "arguments": {"n": 5, "b": True, "a": None}}

    binding = read_binding(value)

    assert binding.arguments == {"a": None, "b": "true", "n": "5"}
    assert binding.name == '/exchange/e /queue/q a%20b {"a":null,"b":"true","n":"5"}'
    assert read_binding(binding.value).name == binding.name


def test_different_bindings_have_different_names() -> None:
    parts = ["/topic/a", "/topic/a /queue/b", "a%20b", "a b", ""]
    said = list(itertools.product(parts, ["/queue/b", "/queue/b c"], ["", " ", "c"], [{}, {"a": "1"}, {"a": None}]))

    names = {binding_name(source, queue, key, arguments) for source, queue, key, arguments in said}

    assert len(names) == len(said)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"source": "/queue/a"}, "source"),
        ({"source": "/topic/a*b"}, "source"),
        ({"source": "/fanout/a*"}, "source"),
        ({"source": "/exchange/"}, "source"),
        ({"source": "/exchange/a/b"}, "source"),
        ({"source": None}, "source"),
        ({"queue": "/topic/a"}, "queue"),
        ({"queue": "/queue/a*"}, "queue"),
        ({"queue": "q"}, "queue"),
        ({"key": 5}, "key"),
        ({"arguments": []}, "arguments"),
        ({"arguments": {"a": [1]}}, "a must be"),
        ({"arguments": {"x-match": "some"}}, "x-match"),
        ({"colour": "red"}, "colour"),
        ({"source": "/topic/a", "key": "b"}, "key"),
        ({"source": "/fanout/a", "arguments": {"a": "1"}}, "arguments"),
    ],
)
def test_a_bad_binding_is_refused_with_the_key(changes: dict[str, object], named: str) -> None:
    with pytest.raises(Refused, match=named) as refused:
        read_binding({"source": "/exchange/e", "queue": "/queue/q", **changes})

    assert refused.value.code == "bad-definition"


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("a/b", {"type": "topic"}, "name"),
        ("a*", {"type": "topic"}, "name"),
        ("a b", {"type": "topic"}, "name"),
        ("x" * 128, {"type": "topic"}, "name"),
        ("a", {}, "type must be one of direct, topic, fanout, headers"),
        ("a", {"type": "queue"}, "type"),
        ("a", {"type": "topic", "alternate": "b/c"}, "alternate"),
        ("a", {"type": "topic", "alternate": 5}, "alternate"),
        ("a", {"type": "topic", "internal": "yes"}, "internal"),
        ("a", {"type": "topic", "durable": True}, "durable is unknown"),
    ],
)
def test_a_bad_exchange_is_refused_with_the_key(name: str, value: dict[str, object], named: str) -> None:
    with pytest.raises(Refused, match=named) as refused:
        read_exchange(name, value)

    assert refused.value.code == "bad-definition"


def test_the_order_of_changes_has_no_effect() -> None:
    rng = random.Random(27)
    names, keys = ["a", "b", "amq.topic"], ["k", "k.*", "#", ""]
    exchanges = [
        Exchange(name, type, alternate)
        for name in "ab"
        for type in ("direct", "topic", "fanout")
        for alternate in ("", "a", "b")
    ]
    bindings = [
        Binding(f"/exchange/{name}", f"/queue/{number}", key, {})
        for number, (name, key) in enumerate(itertools.product(names, keys))
    ]
    bindings += [
        Binding(f"/exchange/{source}", f"/exchange/{target}", key, {})
        for source, target in itertools.product(names, names)
        for key in ("k", "#")
    ]
    for _ in range(100):
        # What is left when all is over, and what comes and goes before.
        left: list[Exchange | Binding] = [*_one_of_each(rng.sample(exchanges, 3)), *rng.sample(bindings, 12)]
        passing = [one for one in (*rng.sample(exchanges, 3), *rng.sample(bindings, 3)) if one not in left]
        expected = _table_of(left)
        rng.shuffle(left)

        found = RoutingTable()
        for one in left:
            for other in rng.sample(passing, rng.randint(0, len(passing))):
                if isinstance(other, Binding):
                    found.add(other)
                    found.remove(other)
                elif not any(isinstance(kept, Exchange) and kept.name == other.name for kept in left):
                    found.put_exchange(other)
                    found.remove_exchange(other.name)
                else:
                    # Another type or alternate, until the one that stays arrives.
                    found.put_exchange(other)
            _apply(found, one)
        for exchange in left:
            if isinstance(exchange, Exchange):
                found.put_exchange(exchange)

        assert found.exchanges == expected.exchanges
        assert found.without_effect() == expected.without_effect()
        for name, key in itertools.product(names, ["k", "k.x", "", "z"]):
            assert queues(found, name, key) == queues(expected, name, key), (left, name, key)


def _one_of_each(exchanges: list[Exchange]) -> list[Exchange]:
    return list({one.name: one for one in exchanges}.values())


def _table_of(definitions: list[Exchange | Binding]) -> RoutingTable:
    table = RoutingTable()
    for one in sorted(definitions, key=lambda one: (isinstance(one, Binding), one.name)):
        _apply(table, one)
    return table


def _apply(table: RoutingTable, definition: Exchange | Binding) -> None:
    if isinstance(definition, Binding):
        table.add(definition)
    else:
        table.put_exchange(definition)


# Bindings between exchanges


def joined(table: RoutingTable, source: str, target: str, key: str = "") -> Binding:
    binding = Binding(f"/exchange/{source}", f"/exchange/{target}", key, {})
    table.add(binding)
    return binding


def test_an_exchange_that_is_bound_to_another_routes_what_matches_with_the_same_key() -> None:
    table = RoutingTable()
    binding = joined(table, "amq.topic", "amq.direct", "eu.#")
    bound(table, "/exchange/amq.topic", "all", "#")
    bound(table, "/exchange/amq.direct", "new", "eu.new")
    bound(table, "/exchange/amq.direct", "us", "us")

    assert queues(table, "amq.topic", "eu.new") == ["all", "new"]
    assert queues(table, "amq.topic", "us") == ["all"]
    assert queues(table, "amq.direct", "eu.new") == ["new"]

    table.remove(binding)
    assert queues(table, "amq.topic", "eu.new") == ["all"]


def test_a_cycle_of_exchanges_and_two_ways_to_a_queue_make_one_copy() -> None:
    table = RoutingTable()
    for name in "abc":
        table.put_exchange(Exchange(name, "fanout"))
        bound(table, f"/exchange/{name}", "shared")
        bound(table, f"/exchange/{name}", name)
    joined(table, "a", "b")
    joined(table, "b", "c")
    joined(table, "c", "a")
    joined(table, "a", "c")
    joined(table, "a", "a")

    assert all(queues(table, name) == ["a", "b", "c", "shared"] for name in "abc")


def test_each_exchange_on_the_way_has_its_own_alternate() -> None:
    table = RoutingTable()
    table.put_exchange(Exchange("first", "fanout", "unused"))
    table.put_exchange(Exchange("second", "direct", "rest"))
    table.put_exchange(Exchange("rest", "fanout"))
    table.put_exchange(Exchange("unused", "fanout"))
    bound(table, "/exchange/unused", "unused")
    bound(table, "/exchange/rest", "rest")
    bound(table, "/exchange/second", "two", "k")
    joined(table, "first", "second")

    assert queues(table, "first", "k") == ["two"]
    # A binding to an exchange is a match, whatever that one does: the alternate of `first` is not asked.
    assert queues(table, "first", "other") == ["rest"]


def test_a_binding_between_exchanges_waits_for_both_in_whatever_order_they_come() -> None:
    for order in itertools.permutations(["a", "b", "binding", "queue"]):
        table = RoutingTable()
        binding = Binding("/exchange/a", "/exchange/b", "", {})
        for one in order:
            if one == "binding":
                table.add(binding)
            elif one == "queue":
                bound(table, "/exchange/b", "q")
            else:
                table.put_exchange(Exchange(one, "fanout"))
        assert (queues(table, "a"), table.without_effect()) == (["q"], []), order

        table.remove_exchange("b")
        assert queues(table, "a") == []
        assert table.without_effect() == [f"binding {binding.name}", "binding /exchange/b /queue/q"]
        assert not table.is_effective(binding)
        table.put_exchange(Exchange("b", "fanout"))
        table.put_exchange(Exchange("a", "topic"))
        assert queues(table, "a") == ["q"]

        table.remove_exchange("a")
        table.remove(binding)
        table.put_exchange(Exchange("a", "fanout"))
        assert queues(table, "a") == []


@pytest.mark.parametrize("type", TYPES)
def test_an_exchange_that_is_bound_to_itself_and_declared_again_has_that_binding_once(type: str) -> None:
    table = RoutingTable()
    table.put_exchange(Exchange("rest", "fanout"))
    bound(table, "/exchange/rest", "rest")
    loop = Binding("/exchange/e", "/exchange/e", "k", {"a": "1", "b": "2"})
    table.add(loop)
    table.put_exchange(Exchange("e", type, "rest"))
    headers = {"a": "1", "b": "2"}
    assert queues(table, "e", "k", headers) == []

    table.remove(loop)

    assert queues(table, "e", "k", headers) == ["rest"]


def test_a_binding_to_a_missing_exchange_leaves_messages_to_the_alternate() -> None:
    table = RoutingTable()
    table.put_exchange(Exchange("a", "fanout", "amq.fanout"))
    bound(table, "/exchange/amq.fanout", "rest")
    joined(table, "a", "missing")

    assert queues(table, "a") == ["rest"]


def test_exchanges_that_are_joined_share_the_bound_of_patterns() -> None:
    table = RoutingTable()
    costly = "#.a." * 9 + "b"
    for number in range(40):
        table.put_exchange(Exchange(str(number), "topic"))
        binding = Binding(f"/exchange/{number}", "/queue/q", costly, {})
        table.check_cost([binding], table.exchanges)
        table.add(binding)
    with pytest.raises(Refused) as refused:
        for number in range(39):
            binding = Binding(f"/exchange/{number}", f"/exchange/{number + 1}", "#", {})
            table.check_cost([binding], table.exchanges)
            table.add(binding)

    assert refused.value.code == "too-many-patterns"
    assert 0 < number < 39


def test_bindings_of_one_request_share_the_bound_of_patterns() -> None:
    table = RoutingTable()
    new = {str(number): Exchange(str(number), "topic") for number in range(40)}
    costly = "#.a." * 9 + "b"
    patterns = [
        Binding("/exchange/0", "/queue/q", f"{number}.{costly}".replace("a", f"a{number}"), {}) for number in range(40)
    ]
    wild = [Binding("/exchange/0", "/queue/q", f"#.{number}.#.{number}", {}) for number in range(40)]
    topics = [Binding(f"/topic/#.{number}.#.{number}", "/queue/q", "", {}) for number in range(40)]
    ends = [Binding(f"/exchange/{number}", "/queue/q", costly, {}) for number in range(40)]
    joins = [Binding(f"/exchange/{number}", f"/exchange/{number + 1}", "b", {}) for number in range(39)]

    for bindings in (wild, topics, [*ends, *joins]):
        with pytest.raises(Refused, match="too many ways"):
            table.check_cost(bindings, new)
    for bindings in (patterns, wild[:3], topics[:3], ends, joins):
        table.check_cost(bindings, new)


def test_bindings_that_are_there_do_not_count_twice() -> None:
    table = RoutingTable()
    new = [
        Binding("/exchange/amq.topic", "/queue/q", "#.a." * 18 + "b", {}),
        Binding("/topic/" + "#.a." * 18 + "b", "/queue/q", "", {}),
    ]
    table.check_cost(new, table.exchanges)
    for binding in new:
        table.add(binding)

    table.check_cost(new, table.exchanges)


def test_exchanges_that_are_joined_are_bounded_in_number() -> None:
    table = RoutingTable()
    with pytest.raises(Refused, match="too many ways"):
        for number in range(2 * VISITS_MAX):
            table.put_exchange(Exchange(str(number + 1), "fanout"))
            binding = Binding("/exchange/amq.fanout", f"/exchange/{number + 1}", "", {})
            if number > VISITS_MAX - 10:
                table.check_cost([binding], table.exchanges)
            table.add(binding)
    assert number < VISITS_MAX


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"exchange": "other"}, "exchange must be /exchange/NAME"),
        ({"exchange": "/exchange/a/b"}, "exchange must be /exchange/NAME"),
        ({"exchange": 5}, "exchange must be /exchange/NAME"),
        ({"exchange": "/exchange/a", "queue": "/queue/q"}, "one target"),
        ({"exchange": "/exchange/a", "source": "/topic/t"}, "/topic/t is none"),
        ({}, "queue must be"),
    ],
)
def test_a_bad_target_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(Refused, match=named):
        read_binding({"source": "/exchange/e", **changes})


def test_a_binding_to_an_exchange_is_read_as_it_is_written() -> None:
    binding = read_binding({"source": "/exchange/e", "exchange": "/exchange/f", "key": "k"})

    assert (binding.name, binding.queue, binding.target_exchange) == ("/exchange/e /exchange/f k", "", "f")
    assert read_binding(binding.value).name == binding.name
