"""The fire over a mesh that is not there: which faults may burn together, and what is noticed of dead nodes."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.nemesis import fire as fires
from tests.nemesis.fire import Fault, Fire, Steps
from tests.nemesis.history import History
from tests.nemesis.operator import Operator


class MeshTwin:
    """As much of a Cluster as the fire itself asks for."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.started: list[str] = []
        nodes = {name: SimpleNamespace(exit_code=None) for name in names}
        self.fleet = SimpleNamespace(nodes=nodes, log_tail=lambda name: "its last words")

    def start(self, name: str) -> None:
        self.started.append(name)
        self.fleet.nodes[name].exit_code = None


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on when the fire waits."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(fires, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))


def fire_of(mesh: MeshTwin, *faults: Fault, most: int = 2) -> Fire:
    given: Any = mesh
    return Fire(given, History(), list(faults), 1, longest=10.0, takeover_seconds=4.5, most=most)


def test_so_many_faults_burn_at_a_time_and_each_has_a_node_of_its_own() -> None:
    now: set[str] = set()
    together: list[int] = []

    def harm(fire: Fire, rng: random.Random) -> Steps:
        with fire.node(rng) as name:
            assert name not in now
            now.add(name)
            together.append(len(now))
            yield 3.0
            now.discard(name)

    fire_of(MeshTwin("a", "b", "c"), Fault("harm", harm, 1, False)).burn(60)

    assert set(together) == {1, 2}
    assert not now, "the last one is undone, too"


def test_what_wants_a_node_that_others_have_is_left_out() -> None:
    begun = 0

    def harm(fire: Fire, rng: random.Random) -> Steps:
        nonlocal begun
        with fire.node(rng):
            begun += 1
            yield 1000.0

    fire_of(MeshTwin("a"), Fault("harm", harm, 1, False)).burn(60)

    assert begun == 1


def test_a_fault_that_takes_a_disk_begins_alone_and_lets_others_join_in() -> None:
    burning: list[str] = []
    seen_at_loss: list[list[str]] = []
    beside: list[bool] = []

    def harm(fire: Fire, rng: random.Random) -> Steps:
        burning.append("harm")
        beside.append("loss" in burning)
        yield 5.0
        burning.remove("harm")

    def loss(fire: Fire, rng: random.Random) -> Steps:
        seen_at_loss.append(list(burning))
        burning.append("loss")
        yield 2.0
        assert burning == ["loss"], "nobody joins before it is open"
        fire.open()
        yield 20.0
        burning.remove("loss")

    fire_of(MeshTwin("a", "b", "c"), Fault("harm", harm, 1, False), Fault("loss", loss, 1, True)).burn(300)

    assert len(seen_at_loss) > 1
    assert all(before == [] for before in seen_at_loss)
    assert any(beside)


def test_a_node_that_ends_without_a_fault_that_may_end_it_is_noted_and_started_again() -> None:
    mesh = MeshTwin("a", "b")

    def harm(fire: Fire, rng: random.Random) -> Steps:
        with fire.claim("b"):
            mesh.fleet.nodes["a"].exit_code = 1
            mesh.fleet.nodes["b"].exit_code = 1
            yield 5.0
            mesh.fleet.nodes["b"].exit_code = None

    fire = fire_of(mesh, Fault("harm", harm, 1, False), most=1)
    fire.burn(3)

    assert [(node, how) for _, node, how in fire.history.deaths] == [("a", "exit code 1; its last words")]
    assert mesh.started == ["a"]
    assert fire.history.lives == {"a": 2, "b": 1}


def test_faults_last_shorter_and_longer_than_a_takeover_takes_and_never_longer_than_they_may() -> None:
    fire = fire_of(MeshTwin("a"))

    lasts = [fire.long(random.Random(seed)) for seed in range(200)]

    assert min(lasts) < 4.5 < max(lasts) <= 10.0


def test_a_node_that_ends_of_a_shortage_a_moment_after_it_is_only_started_again() -> None:
    mesh = MeshTwin("a")
    mesh.fleet.nodes["a"].is_alive = True

    def harm(fire: Fire, rng: random.Random) -> Steps:
        with fire.claim("a"):
            yield from fire.revive("a")
            mesh.fleet.nodes["a"].exit_code = 1

    fire = fire_of(mesh, Fault("harm", harm, 1, False), most=1)
    fire.burn(1)

    assert fire.history.deaths == []
    assert "a" in mesh.started


@pytest.mark.parametrize(
    ("found", "is_wrong"),
    [({"a": 2, "b": 2}, False), ({"a": 3, "b": 3}, False), ({"a": 1, "b": 1}, True), ({"a": 2, "b": 3}, True)],
)
def test_nodes_agree_on_the_last_confirmed_change_or_a_later_one(
    found: dict[str, int], is_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh: Any = SimpleNamespace(names=list(found), address=lambda name: ("127.0.0.1", 1))
    operator = Operator(mesh, random.Random(1))
    monkeypatch.setattr(operator, "_possible", {2, 3})
    monkeypatch.setattr(operator, "_value_at", found.__getitem__)

    assert bool(operator.wrongs()) is is_wrong
