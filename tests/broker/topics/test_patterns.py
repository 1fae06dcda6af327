from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qmq.broker.topics import patterns
from qmq.broker.topics.patterns import VISITS_MAX, Pattern, PatternTable, _words
from qmq.broker.topics.word_trie import WordNode, reach
from qmq.errors import Refused


def table_of(*pattern_list: str) -> PatternTable[str]:
    """Each pattern is its own value."""
    table: PatternTable[str] = PatternTable()
    for pattern in pattern_list:
        table.add(pattern, pattern)
    return table


def matches(pattern: str, name: str) -> bool:
    return bool(table_of(pattern).match(name))


def naive_match(pattern: list[str], words: list[str]) -> bool:
    """The definition of dotted wildcards, as short as it gets."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(naive_match(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and naive_match(pattern[1:], words[1:])


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("/topic/a", "/topic/a"),
        ("/topic/*", "/topic/a"),
        ("/topic/*", "/topic/a.b/c"),
        ("/topic/app.log*", "/topic/app.log"),
        ("/topic/app.log*", "/topic/app.logs.x"),
        ("/topic/a.*", "/topic/a.b"),
        ("/topic/a.*", "/topic/a."),
        ("/topic/*.b", "/topic/a.b"),
        ("/topic/a.#", "/topic/a"),
        ("/topic/a.#", "/topic/a.b.c"),
        ("/topic/#.c", "/topic/c"),
        ("/topic/#.c", "/topic/a.b.c"),
        ("/topic/a.#.c", "/topic/a.c"),
        ("/topic/#", "/topic/a.b"),
        ("/topic/#.#.a.#", "/topic/a"),
        ("/topic/*.*", "/topic/a.b"),
    ],
)
def test_pattern_matches(pattern: str, name: str) -> None:
    assert matches(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("/topic/a", "/topic/a.b"),
        ("/topic/app.log*", "/topic/app.lo"),
        ("/topic/a.*", "/topic/a"),
        ("/topic/a.*", "/topic/a.b.c"),
        ("/topic/a.*", "/topic/ab"),
        ("/topic/*.b", "/topic/b"),
        ("/topic/a.#", "/topic/ab"),
        ("/topic/#.c", "/topic/a.b"),
        ("/topic/a.#.c", "/topic/c"),
        ("/topic/*.*", "/topic/a"),
        ("/topic/*", "/queue/a"),
    ],
)
def test_pattern_does_not_match(pattern: str, name: str) -> None:
    assert not matches(pattern, name)


WORD = st.sampled_from(["a", "b", "c"])
DOTTED = st.lists(st.one_of(WORD, st.sampled_from(["*", "#"])), min_size=1, max_size=6)


@given(st.lists(DOTTED, min_size=1, max_size=8), st.lists(WORD, min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_dotted_wildcards_match_like_their_definition(dotted: list[list[str]], words: list[str]) -> None:
    # A lone `*` stands for every topic, which is not the definition for dotted words.
    dotted = [pattern for pattern in dotted if pattern != ["*"]]
    table = table_of(*("/topic/" + ".".join(pattern) for pattern in dotted))

    found = table.match("/topic/" + ".".join(words))

    expected = {"/topic/" + ".".join(pattern) for pattern in dotted if naive_match(pattern, words)}
    assert set(found) == expected
    assert len(found) == len(expected)


PATTERN = st.sampled_from(
    [
        "/topic/a",
        "/topic/a.b",
        "/topic/*",
        "/topic/a*",
        "/topic/a.b*",
        "/topic/a.*",
        "/topic/#",
        "/topic/#.b",
        "/topic/a.#.b",
    ]
)
NAME = st.sampled_from(["/topic/a", "/topic/b", "/topic/a.b", "/topic/ab", "/topic/a.b.b"])


@given(st.lists(st.tuples(st.booleans(), PATTERN, st.integers(0, 2), NAME), max_size=30))
@settings(max_examples=200, deadline=None)
def test_matches_follow_every_change_and_nothing_is_left_at_the_end(changes: list[tuple[bool, str, int, str]]) -> None:
    table: PatternTable[int] = PatternTable()
    held: set[tuple[str, int]] = set()
    for is_added, pattern, value, name in changes:
        if is_added:
            table.add(pattern, value)
            held.add((pattern, value))
        else:
            table.remove(pattern, value)
            held.discard((pattern, value))
        expected = {value for pattern, value in held if matches(pattern, name)}
        assert set(table.match(name)) == expected

    for pattern, value in held:
        table.remove(pattern, value)

    assert not table._exact and not table._prefixes and not table._prefix_lengths and not table._root.children


def test_value_under_many_patterns_is_found_once() -> None:
    table: PatternTable[str] = PatternTable()
    for pattern in ("/topic/a.b", "/topic/a*", "/topic/*", "/topic/a.*", "/topic/#"):
        table.add(pattern, "peer")

    assert table.match("/topic/a.b") == ("peer",)


def test_match_is_the_same_tuple_until_a_pattern_changes() -> None:
    table = table_of("/topic/a", "/topic/b*")
    first = table.match("/topic/a")

    table.add("/topic/c", "other")
    assert table.match("/topic/a") is first

    table.add("/topic/a", "new")
    assert table.match("/topic/a") == ("/topic/a", "new")

    table.add("/topic/#", "all")
    assert table.match("/topic/a") == ("/topic/a", "new", "all")


def test_unknown_pairs_are_not_removed() -> None:
    table = table_of("/topic/a", "/topic/a*", "/topic/a.*")
    for pattern in ("/topic/a", "/topic/a*", "/topic/a.*", "/topic/b", "/topic/b*", "/topic/b.#"):
        table.remove(pattern, "someone else")

    assert table.match("/topic/a.b") == ("/topic/a*", "/topic/a.*")


def test_remembered_matches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "REMEMBERED_MAX", 10)
    table = table_of("/topic/#")

    for number in range(100):
        table.match(f"/topic/{number}")

    assert len(table._remembered) <= 10


def test_patterns_of_many_hashes_cost_no_more_than_nodes_times_words(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = ["#"] * 60
    mixed = ["#", "a"] * 30
    table = table_of("/topic/" + ".".join(hashes), "/topic/" + ".".join(mixed), "/topic/" + ".".join([*hashes, "b"]))
    nodes = 60 + 60 + 1
    words = ["a"] * 60
    steps: Counter[str] = Counter()

    class Counted(dict[str, object]):
        def get(self, key: str, default: object = None) -> object:
            steps["look-ups"] += 1
            return super().get(key, default)

    def count_look_ups(node: WordNode[str]) -> None:
        for child in node.children.values():
            count_look_ups(child)
        monkeypatch.setattr(node, "children", Counted(node.children))

    count_look_ups(table._root)
    found = table.match("/topic/" + ".".join(words))

    assert len(found) == 2
    # Per node and word: its own word, `*`, and `#` once for each of the two ways into it.
    assert steps["look-ups"] <= 4 * nodes * (len(words) + 1)


Words = st.lists(st.sampled_from(["a", "b", "ab", ""]), min_size=1, max_size=4)
PatternWords = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=4)


@given(PatternWords, Words, st.sampled_from(["", "*"]))
def test_one_pattern_asked_about_a_name_answers_as_the_table_does(
    pattern_words: list[str], words: list[str], last: str
) -> None:
    pattern, name = "/topic/" + ".".join(pattern_words) + last, "/topic/" + ".".join(words)

    one = patterns.Pattern(pattern)

    assert one.matches(name) == matches(pattern, name)
    assert not one.matches(name) or name.startswith(one.literal)


def test_a_table_is_the_collection_of_its_patterns() -> None:
    table = table_of("/topic/a", "/topic/b*", "/topic/c.#")
    table.add("/topic/a", "other")
    table.add("/topic/c.#", "other")
    table.add("/topic/c.#", "other")

    assert sorted(table) == ["/topic/a", "/topic/b*", "/topic/c.#"]
    assert [table.count(pattern) for pattern in ("/topic/a", "/topic/b*", "/topic/c.#", "/topic/d")] == [2, 1, 2, 0]

    table.remove("/topic/a", "other")
    table.remove("/topic/b*", "unknown")
    table.remove("/topic/b*", "/topic/b*")
    table.remove("/topic/c.#", "unknown")
    table.remove("/topic/c.#", "other")
    table.remove("/topic/z.#", "other")

    assert sorted(table) == ["/topic/a", "/topic/c.#"] and len(table) == 2
    assert "/topic/a" in table and "/topic/b*" not in table
    assert table.count("/topic/c.#") == 1


# What a match can cost


def visits_of(table: PatternTable[str], name: str) -> int:
    """How many nodes the match of `name` visits, the same node at two words twice."""
    reached: dict[WordNode[str], None] = {}
    reach(table._root, reached)
    visits = len(reached)
    for word in _words(name):
        following: dict[WordNode[str], None] = {}
        for node in reached:
            for child in (node if node.takes_any else None, node.children.get(word), node.children.get("*")):
                if child is not None:
                    reach(child, following)
        reached = following
        visits += len(reached)
    return visits


def reckoned_anew(table: PatternTable[str]) -> tuple[int, int]:
    """Size and visits of the trie, as if its patterns had just been added."""
    fresh = table_of(*table)
    return fresh._root.size, fresh._root.visits


def test_patterns_that_match_one_name_in_too_many_ways_are_refused_and_change_nothing() -> None:
    table: PatternTable[str] = PatternTable(visits_max=VISITS_MAX)
    added = 0
    with pytest.raises(Refused) as refused:
        for number in range(5_000):
            table.add("/topic/" + ".".join("a*"[number >> bit & 1] for bit in range(119)), "value")
            added += 1

    assert refused.value.code == "too-many-patterns"
    assert len(table) == added
    assert (table._root.size, table._root.visits) == reckoned_anew(table)
    assert visits_of(table, "/topic/" + ".".join("a" * 119)) <= VISITS_MAX


def test_a_million_ways_of_one_pattern_are_refused_and_a_plain_one_then_finds_room() -> None:
    table: PatternTable[str] = PatternTable(visits_max=VISITS_MAX)

    with pytest.raises(Refused):
        table.add("/topic/" + "#.a." * 60 + "b", "value")
    table.add("/topic/#.b", "value")

    assert table.match("/topic/a.b") == ("value",)


def test_patterns_that_differ_in_a_plain_word_cost_a_match_nothing() -> None:
    table: PatternTable[str] = PatternTable(visits_max=VISITS_MAX)

    for number in range(20_000):
        table.add(f"/topic/sensor.{number}.*.#", "value")

    assert visits_of(table, "/topic/sensor.7.a.b") < 10
    assert table._root.visits < 200


def test_words_of_all_patterns_are_bounded_and_those_that_left_make_room() -> None:
    table: PatternTable[str] = PatternTable(words_max=6)
    table.add("/topic/a.*.b", "value")
    table.add("/topic/a.*.c", "value")

    with pytest.raises(Refused, match="at most 6 words"):
        table.add("/topic/x.*.y", "value")
    table.remove("/topic/a.*.b", "value")
    table.remove("/topic/a.*.c", "value")
    table.add("/topic/x.*.y", "value")

    assert table.words == 3


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.sampled_from([*map(str, range(20)), *"ab**##"]), min_size=1, max_size=5),
            st.integers(0, 1),
        ),
        max_size=60,
    ),
    st.lists(st.sampled_from([*"0123ab"]), min_size=1, max_size=8),
)
def test_visits_of_any_name_stay_below_what_is_reckoned(
    changes: list[tuple[bool, list[str], int]], words: list[str]
) -> None:
    table: PatternTable[str] = PatternTable()
    for adds, pattern, value in changes:
        (table.add if adds else table.remove)("/topic/" + ".".join(pattern), str(value))

    assert (table._root.size, table._root.visits) == reckoned_anew(table)
    assert visits_of(table, "/topic/" + ".".join(words)) <= table._root.visits


def test_new_pattern_leaves_what_is_remembered_of_other_names() -> None:
    table = table_of("/topic/a.*", "/topic/b.*")
    before = [table.match("/topic/a.1"), table.match("/topic/b.1")]

    table.add("/topic/b.#", "new")

    assert table.match("/topic/a.1") is before[0]
    assert table.match("/topic/b.1") == (*before[1], "new")
    table.remove("/topic/b.#", "new")
    assert table.match("/topic/a.1") is before[0]
    assert table.match("/topic/b.1") == before[1]


def test_names_are_matched_right_after_more_changes_than_are_remembered() -> None:
    table = table_of("/topic/a.*")
    table.match("/topic/a.1")

    for number in range(3 * patterns.CHANGES_MAX):
        table.add(f"/topic/*.{number % 2}", str(number))
        table.match("/topic/a.0")

    assert len(table._changes) <= patterns.CHANGES_MAX
    assert set(table.match("/topic/a.1")) == {"/topic/a.*", *map(str, range(1, 3 * patterns.CHANGES_MAX, 2))}


def test_exact_name_is_matched_right_when_patterns_changed_between() -> None:
    table = table_of("/topic/a.1", "/topic/a.*")
    table.match("/topic/a.1")
    table.add("/topic/b.*", "b")

    table.add("/topic/a.1", "late")

    assert set(table.match("/topic/a.1")) == {"/topic/a.1", "late", "/topic/a.*"}


def test_values_of_remembered_matches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "REMEMBERED_VALUES_MAX", 10)
    table: PatternTable[str] = PatternTable()
    for value in "abcd":
        table.add("/topic/#", value)

    for number in range(100):
        assert table.match(f"/topic/{number}") == ("a", "b", "c", "d")

    assert sum(map(len, table._remembered.values())) <= 12


def test_pattern_knows_what_one_answer_costs() -> None:
    assert Pattern("/topic/a*").visits == 1
    assert Pattern("/topic/a.*.b").visits == 4
    assert Pattern("/topic/" + "#.a." * 20 + "b").visits > VISITS_MAX
