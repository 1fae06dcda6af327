"""Merging definitions: the later change wins on every node, in whatever order changes arrive."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.definitions.definition import NUMBER_MAX, Definition, Key, Version, text_of
from qmq.definitions.table import DefinitionTable, Obsolete
from qmq.errors import Refused
from qmq.model.dots import Origin

A, B = Origin("a", 1), Origin("b", 1)
KEY = Key("policy", "/queue/q")


def change(
    origin: Origin, sequence: int, time_us: int = 100, text: str | None = "{}", replaced: Version | None = None
) -> Definition:
    return Definition(KEY, Version(time_us, 0, origin, sequence), text, replaced)


@st.composite
def histories(draw: st.DrawFn) -> list[Definition]:
    """Changes that nodes wrote, each knowing some of the earlier ones."""
    nodes = [DefinitionTable() for _ in range(3)]
    written: list[Definition] = []
    for sequence in range(draw(st.integers(1, 12))):
        node = draw(st.integers(0, 2))
        table = nodes[node]
        for number in draw(st.lists(st.integers(0, 20), max_size=4)):
            if number < len(written):
                table.merge(written[number])
        key = Key("policy", draw(st.sampled_from("xyz")))
        known = table.by_key.get(key)
        version = table.next_version(draw(st.integers(0, 5)), Origin("abc"[node], 1), sequence + 1)
        text = draw(st.sampled_from([None, '{"a":1}', '{"a":2}']))
        written.append(Definition(key, version, text, None if known is None else known.version))
        table.merge(written[-1])
    return written


def merged(changes: Sequence[Definition]) -> DefinitionTable:
    return DefinitionTable(changes)


@given(histories(), st.randoms())
def test_the_order_and_the_number_of_arrivals_have_no_effect(history: list[Definition], random: object) -> None:
    shuffled = [*history, *history]
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    one, other = merged(history), merged(shuffled)

    assert one.by_key == other.by_key
    assert one.digest == other.digest


@given(histories())
def test_the_latest_change_of_each_key_stays(history: list[Definition]) -> None:
    table = merged(history)

    for key, kept in table.by_key.items():
        assert kept == max((one for one in history if one.key == key), key=lambda one: one.version)


@given(histories())
def test_a_writer_replaces_what_it_knew(history: list[Definition]) -> None:
    for one in history:
        assert one.replaced is None or one.replaced < one.version


@given(st.permutations([1, 2, 3, 4]))
def test_changes_that_know_each_other_are_no_conflict(order: list[int]) -> None:
    chain: dict[int, Definition] = {}
    for number in range(1, 5):
        before = chain[number - 1].version if number > 1 else None
        chain[number] = change(A, number, 100 + number, f'{{"n":{number}}}', before)
    table = DefinitionTable()

    assert [table.merge(chain[number]).lost for number in order] == [None] * 4


@pytest.mark.parametrize("is_swapped", [False, True])
def test_the_earlier_of_two_concurrent_changes_is_reported_on_both_nodes(is_swapped: bool) -> None:
    base = change(A, 1, 100)
    early = change(A, 2, 101, '{"a":1}', base.version)
    late = change(B, 1, 102, '{"a":2}', base.version)
    first, second = (late, early) if is_swapped else (early, late)
    table = DefinitionTable([base, first])

    result = table.merge(second)

    assert result.lost == early
    assert table.get(KEY) == late


def test_concurrent_changes_to_the_same_value_are_no_conflict() -> None:
    table = DefinitionTable([change(A, 1, 100, '{"a":1}')])

    assert table.merge(change(B, 1, 101, '{"a":1}')).lost is None


def test_a_change_is_later_than_all_that_its_writer_knew_also_with_a_slow_clock() -> None:
    table = DefinitionTable([change(A, 1, 5_000)])

    versions = [table.next_version(now_us, B, sequence) for sequence, now_us in enumerate((10, 20, 6_000, 30), 1)]

    assert [version[:2] for version in versions] == [(5_000, 1), (5_000, 2), (6_000, 0), (6_000, 1)]


def test_an_older_change_does_not_bring_a_deleted_definition_back() -> None:
    table = DefinitionTable([change(A, 2, 101, None)])

    assert not table.merge(change(B, 1, 100)).is_news
    assert table.get(KEY) is None
    assert table.of_kind("policy") == []


def test_the_digest_does_not_depend_on_tombstones() -> None:
    table = DefinitionTable([change(A, 1)])
    before = DefinitionTable().digest

    table.merge(change(A, 2, 101, None))

    assert table.digest == before


def test_a_value_is_canonical_json_of_a_bounded_length() -> None:
    assert text_of(KEY, {"b": 1, "a": [True]}) == text_of(KEY, {"a": [True], "b": 1}) == '{"a":[true],"b":1}'
    for value in ({"a": float("nan")}, {"a": object()}, {"a": "x" * 70_000}):
        with pytest.raises(Refused, match="policy /queue/q"):
            text_of(KEY, value)


def test_a_full_kind_refuses_new_keys_and_changes_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.definitions.table.OF_KIND_MAX", 1)
    table = DefinitionTable([change(A, 1)])

    table.check_room([KEY, Key("pause-delivery", "/queue/other")])
    with pytest.raises(Refused, match="at most 1 definitions of the kind policy; 0 of them are deleted"):
        table.check_room([Key("policy", "/queue/other")])


def test_tombstones_fill_their_own_kind_until_they_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.definitions.table.OF_KIND_MAX", 1)
    table = DefinitionTable([change(A, 1), change(A, 2, 101, None)])

    with pytest.raises(Refused, match="1 of them are deleted"):
        table.check_room([Key("policy", "/queue/other")])
    table.forget(Obsolete(table.tombstones()))

    table.check_room([Key("policy", "/queue/other")])


def test_a_change_older_than_a_forgotten_tombstone_is_no_news_and_a_later_one_is() -> None:
    table = DefinitionTable([change(A, 2, 101, None)])
    table.forget(Obsolete(table.tombstones(), {A: 2, B: 4}))

    assert [table.merge(old).is_news for old in (change(A, 1), change(A, 2, 101, None), change(B, 4))] == [False] * 3
    assert (table.digest, table.by_key) == (0, {})

    assert table.merge(change(B, 5)).is_news
    assert DefinitionTable([change(B, 3)], {B: 4}).get(KEY) is not None, "what is stored is present"


def test_a_change_is_later_than_one_that_it_replaced_or_deleted() -> None:
    table = DefinitionTable([change(B, 2, 101, None)])

    assert [table.has_later(KEY, one) for one in (None, change(A, 1).version, change(B, 2, 101).version)] == [
        True,
        True,
        False,
    ]
    assert not table.has_later(KEY, change(A, 3, 102).version)

    table.forget(Obsolete(table.tombstones(), {A: 2, B: 4}))
    assert [table.has_later(KEY, one) for one in (None, change(A, 2).version, change(A, 3).version)] == [
        False,
        True,
        False,
    ]


def test_the_version_after_the_last_counter_has_a_later_time() -> None:
    table = DefinitionTable([Definition(KEY, Version(5_000, NUMBER_MAX, A, 1), "{}")])

    versions = [table.next_version(10, B, sequence) for sequence in (1, 2)]

    assert [version[:2] for version in versions] == [(5_001, 0), (5_001, 1)]


def test_a_change_is_refused_when_there_is_no_later_version() -> None:
    """Else this node would write a record that its peers refuse."""
    table = DefinitionTable([Definition(KEY, Version(NUMBER_MAX, NUMBER_MAX, A, 1), "{}")])

    with pytest.raises(Refused, match="no-later-version"):
        table.check_room([KEY])


def test_a_version_that_is_ahead_of_the_clock_has_the_clock_too() -> None:
    table = DefinitionTable([Definition(KEY, Version(5_000, 0, A, 1), "{}")])

    behind, ahead = table.next_version(3_000, B, 1), table.next_version(6_000, B, 2)

    assert (behind, behind.written_us) == (Version(5_000, 1, B, 1, 3_000), 3_000)
    assert (ahead, ahead.written_us) == (Version(6_000, 0, B, 2), 6_000)
