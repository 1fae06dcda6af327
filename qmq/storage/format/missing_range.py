"""A range of records that the journal, a fanout log or the queue store should have and does not; see the repair engine.

In a queue store it stands for unsettled messages, which may have been there before the damage.
"""

from typing import NamedTuple

from qmq.model.dots import Origin


class MissingRange(NamedTuple):
    """Records of `origin` after `after`, up to `through`."""

    origin: Origin
    after: int
    through: int
    sequence: int = 0
    """The sequence of the damaged row, as far as it is credible; 0: more than one row is missing."""
    queue: str = ""
    """The queue of the damaged row."""

    @property
    def is_of_one(self) -> bool:
        """Whether only the message is missing that the damaged row names."""
        return self.after + 1 == self.through == self.sequence
