"""The selectors of all subscriptions by their text; equal ones are one object, because large ones take much memory."""

from qmq.broker.selectors.selector import Selector
from qmq.errors import Refused


class SharedSelectors:
    """`parts` is what the different selectors cost together."""

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
