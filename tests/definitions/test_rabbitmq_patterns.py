"""Regular expressions as names and prefixes."""

import re

import pytest

from qmq.definitions.rabbitmq_patterns import PATTERNS_MAX, parts_of

NAMES = ["", "a", "b", "ab", "abc", "jobs", "jobs.x", "jobs-x", "a.b", "axb", "xjobs", "amq.default", "a$", "a|b", "c"]


@pytest.mark.parametrize(
    ("expression", "patterns"),
    [
        ("", ["*"]),
        (".*", ["*"]),
        (".*$", ["*"]),
        ("^", ["*"]),
        ("^.*", ["*"]),
        ("^.*$", ["*"]),
        ("^$", []),
        (r"^jobs\.", ["jobs.*"]),
        ("^jobs.*", ["jobs*"]),
        ("^jobs.*$", ["jobs*"]),
        ("^jobs-x$", ["jobs-x"]),
        (r"^a\.b$", ["a.b"]),
        (r"^a\$$", ["a$"]),
        (r"^a\|b$", ["a|b"]),
        ("^(a|b)", ["a*", "b*"]),
        ("^(a|b)$", ["a", "b"]),
        ("^(?:a|b)$", ["a", "b"]),
        ("^(a|b).*$", ["a*", "b*"]),
        ("^(a.*|b)$", ["a*", "b"]),
        ("^(a|b)(b|c)$", ["ab", "ac", "bb", "bc"]),
        ("^(a(b|c)|jobs)$", ["ab", "ac", "jobs"]),
        ("^a$|^jobs", ["a", "jobs*"]),
        ("^a$|^$", ["a"]),
        ("^a$|.*", ["*"]),
        ("^ab$|^a", ["a*"]),
        ("^a$|^a$", ["a"]),
        ("jobs", None),
        ("jobs$", None),
        ("^a|jobs", None),
        ("^a.b$", None),
        ("^[ab]", None),
        (r"^\d+", None),
        ("^a+", None),
        ("^a?", None),
        ("^(a)?b", None),
        ("^a{2}", None),
        ("^.*a", None),
        ("^.*?", None),
        ("^(a$|b)", None),
        ("^(a.*|b)c", None),
        ("^(?!a)", None),
        ("^(a", None),
        ("^a)", None),
        ("^a$$", None),
        (r"^a\*$", None),
        ("^a#$", None),
        ("^a\\", None),
        ("(?i)^a", None),
        ("^" + "(a|b)" * 7 + "$", None),
        ("^" + "(" * 10 + "a" + ")" * 10, None),
    ],
)
def test_an_expression_is_a_list_of_names_and_prefixes_or_has_no_counterpart(
    expression: str, patterns: list[str] | None
) -> None:
    found = parts_of(expression)

    assert (None if found is None else [part.pattern for part in found]) == patterns
    for name in NAMES if found is not None else ():
        if name:
            matches = re.search(expression, name) is not None
            assert any(part.matches(name) for part in found or []) == matches, name


def test_an_expression_with_very_many_alternatives_has_no_counterpart() -> None:
    most = "|".join(f"^{number}$" for number in range(PATTERNS_MAX))

    assert len(parts_of(most) or []) == PATTERNS_MAX
    assert parts_of(f"{most}|^more$") is None
