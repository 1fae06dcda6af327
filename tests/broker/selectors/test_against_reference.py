"""Random selectors, written out as text and asked, against a second reading of the language that is slow and plain.

The second one evaluates trees, not text; numbers are exact fractions in it, LIKE tries every split, and nothing is
shared with the first but the rules on docs/selectors.md.
"""

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qmq.broker.selectors import compile_selector
from qmq.errors import Refused

NAMES = ["a", "b", "c-d", "e.f", "g h", "NOT"]
VALUES = st.sampled_from(["", "1", "2", " 2", "-1", "1.5", "x", "xy", "yx", "x%y", "true", "FALSE", "a_b"])
PATTERNS = st.text(alphabet="xy%_!", max_size=5)
HEADERS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6)


@dataclass(frozen=True)
class Node:
    """`kind` says what it is, `parts` are Nodes, names, texts or numbers."""

    kind: str
    parts: tuple[object, ...]


def number_node(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.tuples(st.sampled_from("+-*/"), children, children).map(lambda t: Node("arithmetic", t)),
        children.map(lambda child: Node("negative", (child,))),
    )


HEADER = st.sampled_from(NAMES).map(lambda name: Node("header", (name,)))
# Halves and small whole numbers, which both readings can write and calculate exactly.
LITERAL = st.one_of(st.integers(0, 9), st.sampled_from([0.5, 2.5])).map(lambda n: Node("number", (n,)))
NUMERIC = st.recursive(st.one_of(HEADER, LITERAL), number_node, max_leaves=4)
TEXT = st.sampled_from(["", "x", "1", "it's"]).map(lambda text: Node("text", (text,)))
LEAF = st.one_of(
    st.tuples(st.sampled_from(["=", "<>"]), HEADER, st.one_of(HEADER, TEXT)).map(lambda t: Node("same text", t)),
    st.tuples(st.sampled_from(["<", ">", "<=", ">="]), NUMERIC, NUMERIC).map(lambda t: Node("compare", t)),
    st.tuples(st.sampled_from(["=", "<>"]), NUMERIC, LITERAL).map(lambda t: Node("compare", t)),
    st.tuples(NUMERIC, NUMERIC, NUMERIC).map(lambda t: Node("between", t)),
    st.tuples(HEADER, st.lists(st.sampled_from(["x", "xy", "2", ""]), min_size=1, max_size=3)).map(
        lambda t: Node("in texts", t)
    ),
    st.tuples(HEADER, st.lists(st.integers(-2, 2), min_size=1, max_size=3)).map(lambda t: Node("in numbers", t)),
    st.tuples(HEADER, PATTERNS).map(lambda t: Node("like", t)),
    HEADER.map(lambda header: Node("null", (header,))),
    HEADER.map(lambda header: Node("truth", (header,))),
    st.booleans().map(lambda value: Node("fixed", (value,))),
)


def condition_node(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.lists(children, min_size=2, max_size=4).map(lambda parts: Node("and", tuple(parts))),
        st.lists(children, min_size=2, max_size=4).map(lambda parts: Node("or", tuple(parts))),
        children.map(lambda child: Node("not", (child,))),
        st.tuples(st.sampled_from(["=", "<>"]), children, children).map(lambda t: Node("same truth", t)),
    )


CONDITION = st.recursive(LEAF, condition_node, max_leaves=8)

TIGHTNESS = {"or": 1, "and": 2, "not": 3}
TIGHTNESS |= dict.fromkeys(
    ("same text", "same truth", "compare", "between", "in texts", "in numbers", "like", "null"), 4
)


def tightness(node: Node) -> int:
    if node.kind == "arithmetic":
        return 5 if node.parts[0] in "+-" else 6  # type: ignore[operator]
    if node.kind == "negative":
        return 7
    return TIGHTNESS.get(node.kind, 8)


def written(node: Node, at_least: int = 0) -> str:
    """`node` as text, with brackets only where its operator binds less tightly than `at_least`."""
    text = plain(node)
    return f"({text})" if tightness(node) < at_least else text


def plain(node: Node) -> str:
    kind, parts = node.kind, node.parts
    if kind == "header":
        name = str(parts[0])
        return f'"{name}"' if name in ("g h", "NOT") else name
    if kind == "number":
        return str(parts[0])
    if kind == "text":
        return quoted(str(parts[0]))
    if kind == "fixed":
        return "TRUE" if parts[0] else "false"
    if kind == "truth":
        return inner(parts[0], 0)
    if kind == "negative":
        return f"-{inner(parts[0], 7)}"
    if kind == "arithmetic":
        level = tightness(node)
        return f"{inner(parts[1], level)} {parts[0]} {inner(parts[2], level + 1)}"
    if kind in ("and", "or"):
        return f" {kind.upper()} ".join(inner(part, tightness(node) + 1) for part in parts)
    if kind == "not":
        return f"NOT {inner(parts[0], 3)}"
    if kind == "between":
        return f"{inner(parts[0], 5)} BETWEEN {inner(parts[1], 5)} AND {inner(parts[2], 5)}"
    if kind in ("in texts", "in numbers"):
        choices = ", ".join(quoted(c) if isinstance(c, str) else str(c) for c in parts[1])  # type: ignore[attr-defined]
        return f"{inner(parts[0], 5)} in ({choices})"
    if kind == "like":
        return f"{inner(parts[0], 5)} LIKE {quoted(str(parts[1]))}"
    if kind == "null":
        return f"{inner(parts[0], 5)} IS NULL"
    if kind == "same truth":
        # Two headers beside = are texts, so each is made a condition.
        return f"{truth(parts[1])} {parts[0]} {truth(parts[2])}"
    return f"{inner(parts[1], 5)} {parts[0]} {inner(parts[2], 5)}"


def inner(node: object, at_least: int) -> str:
    assert isinstance(node, Node)
    return written(node, at_least)


def truth(node: object) -> str:
    assert isinstance(node, Node)
    return f"(TRUE AND {plain(node)})" if node.kind == "truth" else written(node, 5)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


Headers = dict[str, str]


def asked(node: object, headers: Headers) -> bool | None:
    """The slow reading."""
    assert isinstance(node, Node)
    kind, parts = node.kind, node.parts
    if kind == "fixed":
        return bool(parts[0])
    if kind == "not":
        return negated(asked(parts[0], headers))
    if kind in ("and", "or"):
        results = [asked(part, headers) for part in parts]
        decides = kind == "or"
        return decides if decides in results else (None if None in results else not decides)
    if kind == "same truth":
        left, right = asked(parts[1], headers), asked(parts[2], headers)
        same = None if left is None or right is None else left == right
        return same if parts[0] == "=" else negated(same)
    if kind == "same text":
        texts = [text_of(parts[1], headers), text_of(parts[2], headers)]
        same = None if None in texts else texts[0] == texts[1]
        return same if parts[0] == "=" else negated(same)
    if kind == "compare":
        return compared(str(parts[0]), value_of(parts[1], headers), value_of(parts[2], headers))
    if kind == "between":
        low, value, high = (value_of(parts[index], headers) for index in (1, 0, 2))
        both = [compared("<=", low, value), compared("<=", value, high)]
        return False if False in both else (None if None in both else True)
    text = text_of(parts[0], headers)
    if kind == "null":
        return text is None
    if text is None:
        return None
    if kind == "truth":
        return {"true": True, "false": False}.get(text.strip(" ").lower())
    if kind == "in texts":
        return text in parts[1]  # type: ignore[operator]
    if kind == "in numbers":
        number = value_of(parts[0], headers)
        return None if number is None else number in parts[1]  # type: ignore[operator]
    assert kind == "like"
    return is_like(text, str(parts[1]))


def negated(result: bool | None) -> bool | None:
    return None if result is None else not result


def compared(operator: str, left: Fraction | None, right: Fraction | None) -> bool | None:
    if left is None or right is None:
        return None
    return {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        ">": left > right,
        "<=": left <= right,
        ">=": left >= right,
    }[operator]


def text_of(node: object, headers: Headers) -> str | None:
    assert isinstance(node, Node)
    return headers.get(str(node.parts[0])) if node.kind == "header" else str(node.parts[0])


class Whole(Fraction):
    """Is divided towards zero."""


def value_of(node: object, headers: Headers) -> Fraction | None:
    assert isinstance(node, Node)
    if node.kind == "number":
        number = node.parts[0]
        return Whole(number) if isinstance(number, int) else Fraction(str(number))
    if node.kind == "header":
        text = (text_of(node, headers) or "").strip(" ")
        try:
            return Whole(int(text))
        except ValueError:
            try:
                return Fraction(text)
            except ValueError:
                return None
    if node.kind == "negative":
        operand = value_of(node.parts[0], headers)
        return None if operand is None else type(operand)(-operand)
    operator, left, right = node.parts[0], value_of(node.parts[1], headers), value_of(node.parts[2], headers)
    if left is None or right is None:
        return None
    if operator == "/" and right == 0:
        return None
    whole = isinstance(left, Whole) and isinstance(right, Whole)
    result = {"+": left + right, "-": left - right, "*": left * right, "/": left / right if right else Fraction(0)}[
        str(operator)
    ]
    return Whole(int(result)) if whole else Fraction(result)


def is_like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(is_like(text[cut:], pattern[1:]) for cut in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and is_like(text[1:], pattern[1:])


def divides(node: object) -> bool:
    """Whether a division is in `node`: its float may lie a bit beside the exact fraction."""
    if isinstance(node, Node):
        return node.parts[:1] == ("/",) or any(divides(part) for part in node.parts)
    return False


@settings(max_examples=400, deadline=None)
@given(CONDITION.filter(lambda node: not divides(node)), HEADERS)
def test_random_selectors_mean_what_the_slow_reading_says(node: Node, headers: Headers) -> None:
    text = plain(node)
    wanted = asked(node, headers)

    assert compile_selector(text).matches(headers) == (wanted is True), text
    assert compile_selector(f"NOT ({text})").matches(headers) == (wanted is False), text


@settings(max_examples=200, deadline=None)
@given(st.integers(-20, 20), st.integers(-5, 5))
def test_whole_numbers_are_divided_towards_zero(left: int, right: int) -> None:
    headers = {"l": str(left), "r": str(right)}

    for quotient in range(-20, 21):
        matches = right != 0 and int(Fraction(left, right)) == quotient
        assert compile_selector(f"l / r = {quotient}").matches(headers) == matches


@settings(max_examples=500, deadline=None)
@given(
    st.text(alphabet="xy", max_size=12),
    st.lists(st.sampled_from(["%", "%x_x%", "%_x%", "%x_y_x%", "x_", "_", "x", "yx"]), max_size=4).map("".join),
)
@example("xxyx", "%x_x%")
@example("yx", "%_x%")
def test_like_finds_what_trying_every_split_finds(text: str, pattern: str) -> None:
    assert compile_selector(f"h LIKE '{pattern}'").matches({"h": text}) == is_like(text, pattern)


FRAGMENTS = st.sampled_from(
    ["a", "'x'", '"h"', "1", "2.5", "(", ")", "=", "<>", "<", "+", "-", "*", "/", ",", " ", "'", '"', ".", "e", "0x"]
    + [" AND ", " OR ", " NOT ", " IN ", " LIKE ", " BETWEEN ", " ESCAPE ", " IS ", " NULL ", " TRUE ", "JMSType", "$"]
)


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(max_size=40), st.lists(FRAGMENTS, max_size=15).map("".join)), HEADERS)
def test_any_text_is_a_selector_or_refused(text: str, headers: Headers) -> None:
    try:
        selector = compile_selector(text)
    except Refused as refused:
        assert refused.code == "bad-selector"
        assert refused.message.isprintable()
    else:
        assert selector.matches(headers) in (True, False)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_any_header_is_bearable(value: str) -> None:
    for text in ("h > 1", "h = 'x'", "h LIKE '%a_b%'", "h", "h IN (1)", "h * h / h - h = 0", "h BETWEEN h AND h"):
        assert compile_selector(text).matches({"h": value}) in (True, False)


def test_the_slow_reading_can_disagree() -> None:
    """The comparison above is worth something: a wrong answer is seen."""
    node = Node("compare", ("<", Node("header", ("a",)), Node("number", (2,))))

    assert plain(node) == "a < 2"
    assert [asked(node, headers) for headers in ({"a": "1"}, {"a": "2"}, {"a": "x"}, {})] == [True, False, None, None]
    with pytest.raises(AssertionError):
        inner("text", 0)
