"""The next node to dial, and the wait before it.

The list is walked in rotation: a node that fails is followed by the next one at once, and only when a whole round has
failed does the client wait, exponentially longer, a random part of it ("full jitter"), so that the clients of a node
that died do not come back in step. Pure: chance is an argument.
"""

from collections.abc import Callable, Iterable

from qmq.address import Address
from qmq.client.core.address import parse_address


class Rotation:
    """Walks the nodes for ever. `seconds_min` bounds the first wait, `seconds_max` the longest. `uniform` draws a
    number between two others.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        uniform: Callable[[float, float], float],
        *,
        seconds_min: float,
        seconds_max: float,
    ) -> None:
        """Raises ValueError for an empty list or a text that is no address."""
        self.addresses = tuple(parse_address(text) for text in addresses)
        if not self.addresses:
            raise ValueError("at least one node address is needed")
        if not 0 < seconds_min <= seconds_max:
            raise ValueError("redial seconds: 0 < min <= max")
        self._uniform = uniform
        self._seconds_min = seconds_min
        self._seconds_max = seconds_max
        self._next = 0
        self._failures = 0

    def next(self) -> tuple[Address, float]:
        """The node to try, and how many seconds to wait before that."""
        address = self.addresses[self._next]
        self._next = (self._next + 1) % len(self.addresses)
        rounds, in_round = divmod(self._failures, len(self.addresses))
        if not rounds or in_round:
            return address, 0.0
        # Beyond 2**63 the longest wait has long been reached, and floats would overflow.
        most = min(self._seconds_max, self._seconds_min * 2.0 ** min(rounds - 1, 63))
        return address, self._uniform(0.0, most)

    @property
    def has_failed_everywhere(self) -> bool:
        """Whether every node has failed since the last connection that stood."""
        return self._failures >= len(self.addresses)

    def failed(self) -> None:
        """The last node could not be reached, or its connection ended early."""
        self._failures += 1

    def stood(self) -> None:
        """The connection to the node last named has served for a while; its end counts as the first failure."""
        self._failures = 1 if len(self.addresses) > 1 else 0
