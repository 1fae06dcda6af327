"""A tombstone goes when no older change of its key can arrive on any node, and not before."""

import random

import pytest

from qmq.definitions import tombstones
from qmq.definitions.definition import Definition, Key, Version
from qmq.definitions.table import DefinitionTable, Obsolete, is_covered
from qmq.definitions.tombstones import TombstoneRounds
from qmq.model.dots import Origin, Vector

A, B = Origin("a", 1), Origin("b", 1)
KEY = Key("policy", "/queue/q")
TOMBSTONE = Definition(KEY, Version(100, 0, A, 5), None)


def steps(*members: list[Vector], now_us: int = 1_000, forgotten: frozenset[Origin] = frozenset()) -> list[bool]:
    """Whether the tombstone goes with each of these reports."""
    table, rounds = DefinitionTable([TOMBSTONE]), TombstoneRounds(50)
    return [bool(rounds.obsolete(table, vectors, now_us, forgotten).tombstones) for vectors in members]


def test_it_stays_while_a_member_does_not_have_it() -> None:
    lacking: list[Vector] = [{A: 5, B: 1}, {A: 4, B: 1}]

    assert steps(lacking, lacking, lacking) == [False, False, False]


def test_it_stays_while_a_member_lacks_what_another_wrote_before_it_had_the_tombstone() -> None:
    ahead: list[Vector] = [{A: 5, B: 1}, {A: 5, B: 9}]

    assert steps(ahead, ahead, [{A: 5, B: 8}, {A: 5, B: 20}], [{A: 5, B: 9}, {A: 5, B: 30}]) == [
        False,
        False,
        False,
        True,
    ]


def test_it_stays_while_it_is_young() -> None:
    level: list[Vector] = [{A: 5}, {A: 5}]

    assert steps(level, level, now_us=150) == [False, False]
    assert steps(level, level, now_us=151) == [False, True]


def test_young_ones_of_a_kind_with_many_of_them_go_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "CROWDED", 3)
    monkeypatch.setattr(tombstones, "CROWDED_AGE_US", 20)
    many = [Definition(Key("queue", f"/queue/{n}"), Version(100 + n, 0, A, n), None) for n in (1, 2, 3)]
    table, rounds = DefinitionTable([TOMBSTONE, *many]), TombstoneRounds(50)

    found = [rounds.obsolete(table, [{A: 5}], now_us, ()) for now_us in (123, 124)]
    for one in found:
        table.forget(one)
    later = [rounds.obsolete(table, [{A: 5}], now_us, ()).tombstones for now_us in (130, 131)]

    assert [one.tombstones for one in found] == [(), many[:2]]
    assert later == [(), ()]


def test_one_from_a_clock_that_is_far_ahead_is_as_old_as_this_node_knows_it() -> None:
    table, rounds = DefinitionTable([TOMBSTONE]), TombstoneRounds(50)

    found = [bool(rounds.obsolete(table, [{A: 5}], now_us, ()).tombstones) for now_us in (20, 70, 71, 72)]

    assert found == [False, False, False, True]


def test_an_incarnation_of_which_no_member_stores_anything_is_not_waited_for() -> None:
    assert steps([{B: 3}], [{B: 3}], forgotten=frozenset({A})) == [False, True]


def test_a_definition_that_exists_again_is_kept() -> None:
    table, rounds = DefinitionTable([TOMBSTONE]), TombstoneRounds(50)
    rounds.obsolete(table, [{A: 5}], 1_000, ())
    table.merge(Definition(KEY, Version(200, 0, A, 6), "{}", TOMBSTONE.version))

    assert rounds.obsolete(table, [{A: 6}], 1_000, ()).tombstones == []


class Node:
    """A member of the model: it receives the records of each origin in order."""

    def __init__(self, name: str) -> None:
        self.origin = Origin(name, 1)
        self.table = DefinitionTable()
        self.rounds = TombstoneRounds(0)
        self.vector: Vector = {}

    def take(self, change: Definition) -> None:
        origin, sequence = change.version.dot
        assert sequence == self.vector.get(origin, 0) + 1
        self.vector[origin] = sequence
        self.table.merge(change)


def run(seed: int, rounds: type = TombstoneRounds) -> list[str]:
    """Members write, delete, receive and drop in an order drawn from the seed; what differs in the end."""
    rng = random.Random(seed)
    nodes = [Node(name) for name in "abc"]
    logs: dict[Origin, list[Definition]] = {node.origin: [] for node in nodes}
    reported: list[list[Vector]] = [[{} for _ in nodes] for _ in nodes]
    for node in nodes:
        node.rounds = rounds(0)

    def receive(node: Node, origin: Origin) -> bool:
        log, have = logs[origin], node.vector.get(origin, 0)
        if have < len(log):
            node.take(log[have])
        return have < len(log)

    def receive_all() -> None:
        for node in nodes:
            for origin in logs:
                while receive(node, origin):
                    pass

    for step in range(rng.randrange(50, 300)):
        number = rng.randrange(3)
        node, what = nodes[number], rng.random()
        if what < 0.15:
            key = Key("policy", rng.choice("stuvwxyz"))
            known = node.table.by_key.get(key)
            version = node.table.next_version(step, node.origin, len(logs[node.origin]) + 1)
            text = None if rng.random() < 0.5 else "{}"
            logs[node.origin].append(Definition(key, version, text, None if known is None else known.version))
            node.take(logs[node.origin][-1])
        elif what < 0.75:
            # One pair of nodes seldom exchanges anything directly.
            origin = rng.choice(nodes).origin
            if {node.origin.node, origin.node} != {"b", "c"} or rng.random() < 0.1:
                receive(node, origin)
        elif what < 0.77:
            receive_all()
        elif what < 0.9:
            reported[number] = [dict(other.vector) for other in nodes]
        else:
            reported[number][number] = dict(node.vector)
            node.table.forget(node.rounds.obsolete(node.table, reported[number], 1 << 60, ()))
    receive_all()
    for _ in range(2):
        for node in nodes:
            node.table.forget(node.rounds.obsolete(node.table, [node.vector for node in nodes], 1 << 60, ()))
    expected = DefinitionTable(one for log in logs.values() for one in log)
    return [
        f"{node.origin.node}: {sorted(node.table.present())}"
        for node in nodes
        if sorted(node.table.present()) != sorted(expected.present()) or node.table.tombstones()
    ]


@pytest.mark.parametrize("seed", range(150))
def test_no_deleted_definition_comes_back(seed: int) -> None:
    assert run(seed) == []


class Hasty(TombstoneRounds):
    """Drops a tombstone as soon as every member has it."""

    def obsolete(self, table, members, now_us, forgotten):  # type: ignore[no-untyped-def]
        vectors = list(members)
        return Obsolete([one for one in table.tombstones() if all(is_covered(one, has) for has in vectors)])


def test_a_tombstone_that_is_dropped_early_is_found() -> None:
    assert any(run(seed, Hasty) for seed in range(150))
