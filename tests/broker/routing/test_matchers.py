"""What a match costs, in the unit in which the decisions of one turn are counted."""

import pytest

from qmq.broker.routing.binding import Binding
from qmq.broker.routing.matchers import COMPARED_COST, HeadersMatcher


def matcher(bindings: int, **arguments: str) -> HeadersMatcher:
    found = HeadersMatcher()
    for number in range(bindings):
        found.add(Binding("/exchange/h", f"/queue/{number}", "", dict(arguments)))
    return found


@pytest.mark.parametrize("mode", ["any", "all"])
def test_a_match_by_headers_costs_what_it_looks_at(mode: str) -> None:
    looked, free = matcher(100, colour="red", **{"x-match": mode}), matcher(0)

    assert len(looked.match("", {"colour": "red"}, 10_000)) == 100
    assert looked.cost >= 100 * COMPARED_COST
    assert looked.match("", {"colour": "blue"}, 10_000) == ()
    assert looked.cost == 1
    free.match("", {}, 10_000)
    assert free.cost == 0


@pytest.mark.parametrize("mode", ["any", "all"])
def test_a_match_by_headers_ends_at_its_bound_and_says_that_it_has_passed_it(mode: str) -> None:
    found = matcher(1000, colour="red", **{"x-match": mode})

    taken = found.match("", {"colour": "red"}, 50)

    assert len(taken) < 30
    assert 50 < found.cost < 60
