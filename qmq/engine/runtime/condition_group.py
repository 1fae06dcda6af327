"""Conditions of one code, whose texts follow from the present state: see `qmq.admin.facts.conditions`."""

from collections.abc import Collection

from qmq.engine.runtime.contexts import Reporting


class ConditionGroup:
    """Raises and clears so that exactly the shown texts are present."""

    def __init__(self, context: Reporting, code: str) -> None:
        self._context = context
        self._code = code
        self._shown: frozenset[str] = frozenset()

    @property
    def is_shown(self) -> bool:
        """Whether any text is."""
        return bool(self._shown)

    def show(self, texts: Collection[str]) -> None:
        """Clear what is not among `texts` any more, raise what is new."""
        before, self._shown = self._shown, frozenset(texts)
        for text in sorted(before - self._shown):
            self._context.clear_condition(self._code, text)
        for text in sorted(self._shown - before):
            self._context.raise_condition(self._code, text)
