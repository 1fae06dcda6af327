"""Mutants: each is one change, compiles, and differs from its source; the same seed draws the same ones."""

import ast
from pathlib import Path
from random import Random

import pytest

from tests.mutation.mutants import Mutant, apply, drawn, mutants_of
from tests.mutation.report import page
from tests.mutation.run import Verdict

SOURCES = sorted((Path(__file__).parents[2] / "qmq" / "broker").rglob("*.py"))


def changed(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for mutant in mutants_of(source):
        found.setdefault(mutant.kind, []).append(apply(source, mutant))
    return found


@pytest.mark.parametrize(
    ("source", "kind", "mutants"),
    [
        ("a < b", "comparison", ["a <= b"]),
        ("a in b", "comparison", ["a not in b"]),
        ("a is not b", "comparison", ["a is b"]),
        ("0 < a <= b", "comparison", ["0 <= a <= b", "0 < a < b"]),
        ("(a) == (b)", "comparison", ["(a) != (b)"]),
        ("a and b and c", "and/or", ["a or b and c", "a and b or c"]),
        ("not a", "not", ["(a)"]),
        ("a + b - 1", "arithmetic", ["a - b - 1", "a + b + 1"]),
        ("x = 7", "number", ["x = 8"]),
        ("x = True", "constant", ["x = False"]),
        ("f(a)", "call", ["pass"]),
        ("self.x = a", "assignment", ["pass"]),
        ("x += a", "assignment", ["pass"]),
        ("def f():\n    return a", "return", ["def f():\n    return None"]),
        ("while a:\n    break", "loop", ["while a:\n    continue"]),
        ("if a:\n    b", "branch", ["if not (a):\n    b"]),
        ("é = 'ü' if ä < ö else 0", "comparison", ["é = 'ü' if ä <= ö else 0"]),
    ],
)
def test_one_place_is_changed_in_one_way(source: str, kind: str, mutants: list[str]) -> None:
    assert changed(source)[kind] == mutants


@pytest.mark.parametrize("source", ["log.info(a)", "assert a < 1", '"""Text."""', "x: int = a", "'a' + b", "return"])
def test_what_no_test_should_notice_is_left_alone(source: str) -> None:
    assert changed(f"def f():\n    {source}") == {}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_each_mutant_of_a_real_module_compiles_and_differs(path: Path) -> None:
    source = path.read_text("utf-8")
    tree = ast.dump(ast.parse(source))

    # Each would take a minute.
    for mutant in mutants_of(source)[::40]:
        text = apply(source, mutant)
        assert ast.dump(ast.parse(text)) != tree, mutant


def test_a_seed_draws_the_same_mutants_again_and_few_of_one_file() -> None:
    sources = {path.name: path.read_text("utf-8") for path in SOURCES}

    first, second = (list(drawn(sources, 60, 3, Random(1))) for _ in range(2))

    assert first == second and len(first) == 60
    assert max(sum(name == other for other, _ in first) for name in sources) <= 3
    assert list(drawn(sources, 60, 3, Random(2))) != first


def test_fewer_places_than_asked_for_end_the_drawing() -> None:
    assert len(list(drawn({"m.py": "a < b\nnot c"}, 10, 3, Random(1)))) == 2


def test_the_report_names_each_survivor_with_its_change() -> None:
    mutant = Mutant("comparison", 7, 0, 1, "<=")
    verdicts = [Verdict("qmq/broker/x.py", mutant, "<", by) for by in (None, "FAILED tests/broker/test_x.py::test_y")]

    report = page(verdicts, seed=1, seconds=60)

    assert "| broker | 2 | 1 | 1 |" in report
    assert report.count("- `qmq/broker/x.py:7` comparison: `<` → `<=`") == 1
