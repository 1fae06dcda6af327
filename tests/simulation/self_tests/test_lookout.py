"""Which node serves which owner, checked one moment after the other."""

from types import SimpleNamespace
from typing import Any

import pytest
from trio.testing import MockClock

from qmq.broker.takeover.leases import Term
from tests.simulation.lookout import ServingObserver
from tests.simulation.pauses import Pauses
from tests.simulation.reports.trace import Trace


def member(name: str, *, serves: set[str], held: bool = False, term: int = 0, known: int = 0) -> Any:
    """A node that is up; `term` is the one in which it serves `a`, `known` the highest that it knows of."""
    rules = SimpleNamespace(terms={}, claims={}, term_of=lambda owner: Term(known if owner == "a" else 0, name))
    takeover = SimpleNamespace(rules=rules, terms_served={"a": term}, is_active=True)
    queues = SimpleNamespace(held=held, owned=SimpleNamespace(serves=serves))
    mesh_parts = SimpleNamespace(takeover=takeover)
    node = SimpleNamespace(mesh_parts=mesh_parts, broker=SimpleNamespace(queues=queues))
    return SimpleNamespace(name=name, host=name, is_alive=True, node=node)


def observing(*members: Any) -> ServingObserver:
    return ServingObserver(list(members), Pauses(), Trace())


async def test_two_nodes_that_go_on_handing_out_messages_of_one_owner_are_wrong(autojump_clock: MockClock) -> None:
    two = observing(member("a", serves={"a"}), member("b", serves={"a", "b"}))
    two.look()
    assert two.wrongs == []
    two.look()
    two.look()

    assert two.wrongs == ["I9 servers: both a and b hand out messages of a"]


@pytest.mark.parametrize("change", ["held", "dead", "paused"])
async def test_a_node_that_delivers_nothing_now_is_no_second_server(autojump_clock: MockClock, change: str) -> None:
    owner, other = member("a", serves={"a"}, held=change == "held"), member("b", serves={"a", "b"})
    owner.is_alive = change != "dead"
    two = observing(owner, other)
    if change == "paused":
        two._pauses.begin("a")
    for _ in range(3):
        two.look()
    two._pauses.end("a")

    assert two.wrongs == []


async def test_serving_in_a_lower_term_than_known_is_wrong(autojump_clock: MockClock) -> None:
    outdated = observing(member("a", serves={"a"}, term=1, known=2))
    outdated.look()
    outdated.look()

    assert outdated.wrongs == ["I9 outdated: a serves a in term 1 and knows of 2"]


async def test_a_term_has_one_server_and_takeovers_are_counted(autojump_clock: MockClock) -> None:
    terms = observing()
    terms.served("a", 0, "a")
    terms.served("a", 1, "b")
    terms.served("a", 1, "b")
    terms.served("a", 2, "a")
    assert (terms.wrongs, terms.takeovers, terms.taken_over) == ([], 1, {"a"})

    terms.served("a", 2, "c")

    assert terms.wrongs == ["I9 term: both a and c serve a in term 2"]
