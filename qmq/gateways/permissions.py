"""What the user of a session may do with a destination: the one place where the gateway asks.

`Permissions.check` is called for each SEND (once for a run of SENDs with the same header block) and for each
SUBSCRIBE, before anything is decided. A control request is not checked here: the part that responds to it does so.
"""

from collections.abc import Callable
from enum import Enum

from qmq.broker.messages.destination import DestinationKind


class Action(Enum):
    """What a client wants to do with a destination."""

    SEND = "send"
    SUBSCRIBE = "subscribe"


class Permissions:
    """Those of one session. `check_right` raises Refused when `user` may not subscribe to this system topic."""

    __slots__ = ("_check_right", "_user")

    def __init__(self, user: str | None, check_right: Callable[[str | None, str], None]) -> None:
        self._user = user
        self._check_right = check_right

    def check(self, action: Action, destination: str, kind: DestinationKind) -> None:
        """Raises Refused when the user may not do this."""
        if action is Action.SUBSCRIBE and kind is DestinationKind.SYSTEM:
            self._check_right(self._user, destination)
