"""A compiled selector, and the two ways to write one.

Equal texts give equal selectors, and mostly the same object: the last few hundred are remembered, because a thousand
workers subscribe with the same words.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from qmq.broker.selectors.conditions import Condition
from qmq.broker.selectors.lexer import shown, tokens_of
from qmq.broker.selectors.parser import Parser
from qmq.broker.selectors.values import Row
from qmq.errors import Refused

SELECTOR_CHARS_MAX = 4096

SCANNED_OF_COST = 7
"""2 to this power bytes of headers that a LIKE reads cost as much as one part."""

REMEMBERED_MAX = 256
"""Compiled selectors kept for the next subscription; the largest take some 50 KiB each."""

# ActiveMQ and Artemis read numbers from text headers, and hyphens in names, only behind these; here it is always so.
IMPLIED_PREFIXES = ("convert_string_expressions:", "hyphenated_props:")


class Selector:
    """What a subscription wants. `text` is as it was written; it alone makes two selectors equal.

    `cost` bounds what one answer about short headers takes: a fifth of a microsecond each, more or less. Besides, it
    may read the headers of a message `scans` times.
    """

    __slots__ = ("_condition", "cost", "scans", "text")

    def __init__(self, text: str, condition: Condition, cost: int, scans: int = 0) -> None:
        self.text = text
        self.cost = cost
        self.scans = scans
        self._condition = condition

    def cost_of(self, header_bytes: int) -> int:
        """What one answer about a message with so many bytes of headers costs at most."""
        return self.cost + self.scans * (header_bytes >> SCANNED_OF_COST)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these headers is wanted. Never raises; unknown is no."""
        return self._condition.test(Row(properties)) is True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def compile_selector(text: str) -> Selector:
    """Read a selector (docs/selectors.md). Raises Refused `bad-selector`, with the column and what was expected."""
    # Checked here, so that no long text is ever a key of what is remembered.
    if len(text) > SELECTOR_CHARS_MAX:
        raise Refused("bad-selector", f"A selector has at most {SELECTOR_CHARS_MAX} characters.")
    return _compile(text)


def compile_filter(text: str) -> Selector:
    """Read xtomp's `NAME=VALUE`: the header NAME has exactly this VALUE. Raises Refused `bad-selector`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Refused("bad-selector", f"The header filter is NAME=VALUE, and not {shown(text)}.")
    quoted_name = name.replace('"', '""')
    quoted_value = value.replace("'", "''")
    return compile_selector(f"\"{quoted_name}\" = '{quoted_value}'")


@lru_cache(maxsize=REMEMBERED_MAX)
def _compile(text: str) -> Selector:
    start = 0
    while True:
        at = start
        for prefix in IMPLIED_PREFIXES:
            if text.startswith(prefix, start):
                start += len(prefix)
        if start == at:
            break
    parser = Parser(tokens_of(text, start))
    condition = parser.whole()
    return Selector(text, condition, parser.cost, parser.scans)


class SelectorCosts:
    """What those of several subscriptions cost together, for one message; each counts as often as it is added."""

    __slots__ = ("cost", "scans")

    def __init__(self, selectors: Iterable[Selector | None] = ()) -> None:
        self.cost = self.scans = 0
        for selector in selectors:
            self.add(selector)

    def add(self, selector: Selector | None, sign: int = 1) -> None:
        """Count one more, with `sign` -1 one less."""
        if selector is not None:
            self.cost += sign * selector.cost
            self.scans += sign * selector.scans

    def of(self, header_bytes: int) -> int:
        """As `Selector.cost_of`."""
        return self.cost + self.scans * (header_bytes >> SCANNED_OF_COST)


class SharedSelectors:
    """The selectors of all subscriptions by their text; equal ones are one object, because large ones take much memory.

    `parts` is what the different ones cost together.
    """

    def __init__(self) -> None:
        self.parts = 0
        self._by_text: dict[str, tuple[Selector, int]] = {}

    def check(self, selector: Selector, parts_max: int) -> None:
        """Refuse one more selector that would make `parts` more than `parts_max`."""
        if selector.text not in self._by_text and self.parts + selector.cost > parts_max:
            raise Refused("too-many-selectors", f"Different selectors have at most {parts_max} parts together.")

    def share(self, selector: Selector) -> Selector:
        """The selector itself, or the one with the same text that other subscriptions have."""
        known, count = self._by_text.get(selector.text, (selector, 0))
        if not count:
            self.parts += known.cost
        self._by_text[known.text] = (known, count + 1)
        return known

    def release(self, selector: Selector) -> None:
        """A subscription with this one ends."""
        known, count = self._by_text.pop(selector.text)
        if count > 1:
            self._by_text[known.text] = (known, count - 1)
        else:
            self.parts -= known.cost
