"""What an operator's changes must have left, at nodes that are not there."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.nemesis.operator import Operator


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
