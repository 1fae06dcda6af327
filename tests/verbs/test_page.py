"""The table of verbs in docs/administration.md follows from their declarations: `python -m tests.verbs.test_page`."""

from pathlib import Path

import pytest

from qmq.verbs.table import VERBS, needs_of
from qmq.verbs.verb import CONTROL, Verb, options_of

PAGE = Path(__file__).parents[2] / "docs" / "administration.md"


def row_of(verb: type[Verb]) -> str:
    """The row of one verb. A `|` in a cell is escaped."""
    options = ", ".join(f"`{name}`" for name in options_of(verb)) or "–"
    request = f"{CONTROL}{verb.word()}/{verb.kinds()[0]}/NAME" if verb.kinds() else f"{CONTROL}{verb.word()}/x"
    needs = " and ".join(dict.fromkeys(f"`{need.action.value}`" for need in needs_of(request))) or "–"
    form = f"{CONTROL}{verb.form}".replace("|", "\\|")
    return f"| `{form}` | {options} | {needs} | {verb.summary()} |"


@pytest.mark.parametrize("word", sorted(VERBS))
def test_each_verb_has_its_row(word: str) -> None:
    assert row_of(VERBS[word]) in PAGE.read_text("utf-8").splitlines()


def test_each_row_is_that_of_a_verb() -> None:
    table = PAGE.read_text("utf-8").partition("| request | options | needs | what it does |\n")[2].partition("\n\n")[0]

    assert sorted(table.splitlines()[1:]) == sorted(map(row_of, VERBS.values()))


if __name__ == "__main__":
    print("\n".join(map(row_of, VERBS.values())))
