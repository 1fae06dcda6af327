"""What the screen shows, and what each key changes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

SORTS: Final = {"d": "depth", "o": "oldest", "r": "rate", "n": "name"}
"""Key → order of queues."""

UP, DOWN, ENTER, ESCAPE = "up", "down", "enter", "escape"
MOVES: Final = {UP: -1, "k": -1, DOWN: 1, "j": 1}


@dataclass(frozen=True, slots=True)
class View:
    sort: str = "depth"
    selected: int = 0
    opened: str | None = None
    """The queue whose consumers are shown."""
    is_paused: bool = False

    def after(self, key: str, queues: Sequence[str]) -> "View":
        """The view after a key; `queues` are the names on the screen. A key without a meaning changes nothing."""
        if key in SORTS and self.opened is None:
            return replace(self, sort=SORTS[key], selected=0)
        if key in MOVES and self.opened is None:
            return replace(self, selected=max(0, min(self.selected + MOVES[key], len(queues) - 1)))
        if key == ENTER and self.opened is None and self.selected < len(queues):
            return replace(self, opened=queues[self.selected])
        if key == ESCAPE:
            return replace(self, opened=None)
        return replace(self, is_paused=not self.is_paused) if key == " " else self
