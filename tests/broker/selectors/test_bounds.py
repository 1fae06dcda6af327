"""What a hostile selector or header may cost, counted and not timed."""

import sys
from types import FrameType

import pytest

from qmq.broker.selectors import compile_selector
from qmq.broker.selectors.lexer import tokens_of
from qmq.broker.selectors.like import LIKE_STEPS_MAX, Steps, pattern_of
from qmq.broker.selectors.parser import DEPTH_MAX, PARTS_MAX, Parser
from qmq.broker.selectors.selector import SELECTOR_CHARS_MAX, _compile
from qmq.broker.selectors.values import Row
from qmq.errors import Refused

CALLS_PER_CHARACTER_MAX = 12
CALLS_PER_PART_MAX = 8


class Calls:
    """Counts the Python functions that are called inside `with`."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "Calls":
        sys.setprofile(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event == "call"


def depth_of(text: str) -> int:
    """How deep the Python stack gets while `text` is read, and asked about."""
    most = 0
    depth = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal depth, most
        depth += (event == "call") - (event == "return")
        most = max(most, depth)

    sys.setprofile(called)
    try:
        compile_selector(text).matches({})
    finally:
        sys.setprofile(None)
    return most


NESTED = {
    "brackets": lambda n: "(" * n + "a" + ")" * n,
    "nots": lambda n: "NOT " * n + "a",
    "signs": lambda n: "-" * n + "1 = a",
    "every level": lambda n: "(x OR y AND NOT z = 1 + 2 * -" * n + "3" + ")" * n,
}


@pytest.mark.parametrize("kind", NESTED)
def test_nesting_is_refused_long_before_it_could_exhaust_the_stack(kind: str) -> None:
    text = NESTED[kind](SELECTOR_CHARS_MAX)[:SELECTOR_CHARS_MAX]

    with pytest.raises(Refused) as refused:
        compile_selector(text)

    assert refused.value.code == "bad-selector"
    assert f"at most {DEPTH_MAX} levels" in refused.value.message


@pytest.mark.parametrize("kind", ["brackets", "nots", "signs"])
def test_nesting_up_to_the_bound_is_read_with_a_small_stack(kind: str) -> None:
    assert depth_of(NESTED[kind](DEPTH_MAX - 1)) < 4 * DEPTH_MAX


@pytest.mark.parametrize("chain", [" OR a", " AND a", " = 1 OR a", " + 1 > 2 AND a"])
def test_long_chains_cost_no_depth(chain: str) -> None:
    assert depth_of("a" + chain * (PARTS_MAX // 10)) < 30


def test_sums_from_left_to_right_cost_no_depth() -> None:
    assert depth_of("a = 1" + " + 1 - 1" * 100) < 30


def test_the_number_of_parts_is_bounded() -> None:
    compile_selector("a" + " OR a" * (PARTS_MAX // 3))

    for text in ("a" + " OR a" * 800, "a IN (" + "1," * 1000 + "1)", "1" + "+1" * 1000 + " = a"):
        with pytest.raises(Refused) as refused:
            compile_selector(text)
        assert f"at most {PARTS_MAX}" in refused.value.message


def test_the_length_is_bounded_before_anything_is_read_or_remembered() -> None:
    longest = "a = '" + "x" * (SELECTOR_CHARS_MAX - 6) + "'"
    compile_selector(longest)
    before = _compile.cache_info()

    with pytest.raises(Refused):
        compile_selector(longest + " ")

    assert _compile.cache_info() == before


@pytest.mark.parametrize(
    "text",
    [
        "a OR " * 160 + "a",
        "a" * SELECTOR_CHARS_MAX,
        "a-" * (SELECTOR_CHARS_MAX // 2 - 1),
        "'" * (SELECTOR_CHARS_MAX - 2) + " =a",
        "1" * SELECTOR_CHARS_MAX,
        "1e" * (SELECTOR_CHARS_MAX // 2),
        "." * SELECTOR_CHARS_MAX,
        " " * SELECTOR_CHARS_MAX,
        "-" * SELECTOR_CHARS_MAX,
        "convert_string_expressions:" * 150,
        "a LIKE '" + "%_" * 2000 + "'",
    ],
    ids=range(11),
)
def test_reading_costs_calls_in_proportion_to_the_length(text: str) -> None:
    with Calls() as calls:
        try:
            _compile(text)
        except Refused:
            pass

    assert calls.count < CALLS_PER_CHARACTER_MAX * len(text) + 100


def test_asking_costs_calls_in_proportion_to_the_parts() -> None:
    text = " AND ".join(["a BETWEEN b + 1 AND c * 2"] * 50)
    condition = Parser(tokens_of(text, 0)).whole()
    row = Row({"a": "5", "b": "1", "c": "9"})

    with Calls() as calls:
        assert condition.test(row) is True

    assert calls.count < CALLS_PER_PART_MAX * PARTS_MAX


def test_like_gives_up_when_its_steps_are_used_up_and_knows_nothing_then() -> None:
    """Every place looks right until the end: n·m steps for whoever does not count."""
    pattern = pattern_of("%" + "a_" * 50 + "b%", "")
    assert pattern is not None
    steps = Steps()

    assert pattern.matches("a" * 8000, steps) is None
    assert -100 < steps.left <= 0

    condition = "h LIKE '%" + "a_" * 50 + "b%'"
    headers = {"h": "a" * 8000}
    assert not compile_selector(condition).matches(headers)
    assert not compile_selector(f"NOT {condition}").matches(headers)
    assert compile_selector(f"{condition} OR h IS NOT NULL").matches(headers)


def test_all_likes_of_one_evaluation_share_the_steps() -> None:
    one = "h LIKE '%" + "a_" * 20 + "b%'"
    condition = Parser(tokens_of(" OR ".join([one] * 60), 0)).whole()
    row = Row({"h": "a" * 8000})

    assert condition.test(row) is None
    assert row.steps.left <= 0
    assert LIKE_STEPS_MAX - row.steps.left < LIKE_STEPS_MAX + 60 * 100


@pytest.mark.parametrize("pattern", ["%a%a%a%a%a%a%a%a%a%b", "%_%_%_%_%_%_%_%b", "%a_%a_%a_%a_%b%", "a%a%a%a%b_"])
def test_like_does_not_backtrack_over_percent_signs(pattern: str) -> None:
    read = pattern_of(pattern, "")
    assert read is not None
    steps = Steps()

    assert read.matches("a" * 8000, steps) is False
    assert LIKE_STEPS_MAX - steps.left < 100


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("a = 1", 3),
        ("a = 1 AND b IN ('x', 'y')", 8),
        ("h LIKE 'a%b%'", 5),
        ("h LIKE '%" + "a_" * 20 + "b%'", 3 + LIKE_STEPS_MAX),
        (" OR ".join(["h LIKE '%" + "a_" * 20 + "b%'"] * 60), 4 * 60 - 1 + LIKE_STEPS_MAX),
    ],
)
def test_a_selector_knows_what_an_answer_costs_at_most(text: str, cost: int) -> None:
    assert compile_selector(text).cost <= cost

    condition = Parser(tokens_of(text, 0)).whole()
    row = Row({"a": "1", "h": "a" * 8000})
    condition.test(row)
    # The piece at which the steps are used up is compared to its end.
    assert LIKE_STEPS_MAX - row.steps.left <= compile_selector(text).cost + 100
