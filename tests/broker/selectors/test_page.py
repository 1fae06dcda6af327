"""docs/selectors.md says what the code does: its examples are read, its bounds are those of the code."""

import re
from pathlib import Path

import pytest

from qmq.broker.selectors import compile_selector
from qmq.broker.selectors.like import LIKE_STEPS_MAX
from qmq.broker.selectors.parser import DEPTH_MAX, PARTS_MAX
from qmq.broker.selectors.selector import SELECTOR_CHARS_MAX
from qmq.errors import Refused

PAGE = (Path(__file__).parents[3] / "docs/selectors.md").read_text("utf-8")
EXAMPLES = re.findall(r"^selector:(.*)$", PAGE, re.MULTILINE)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_can_be_read(text: str) -> None:
    assert compile_selector(text).text == text


@pytest.mark.parametrize("bound", [SELECTOR_CHARS_MAX, DEPTH_MAX, PARTS_MAX, LIKE_STEPS_MAX])
def test_every_bound_is_named(bound: int) -> None:
    bounds = PAGE.partition("| bound |")[2]

    assert re.search(rf"\| {bound}\b", bounds)


def test_the_error_of_the_page_is_the_error_of_the_code() -> None:
    with pytest.raises(Refused) as refused:
        compile_selector("price > ")

    assert refused.value.message in PAGE


@pytest.mark.parametrize(
    "text", re.findall(r"`(.*?)`", PAGE.partition("What could never match")[2].partition("\n\n")[0])
)
def test_what_the_page_says_is_refused_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        compile_selector(text)
