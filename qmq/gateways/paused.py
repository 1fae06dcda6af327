"""What a gateway is given; why it stopped in front of a command, and the commands that are left."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from qmq.broker.consumers.orders import Order
from qmq.broker.consumers.subscription import StartAt
from qmq.gateways.bound_queues import BoundQueue
from qmq.wire.stomp import Frame

Command = Frame | Order
"""What a gateway obeys: a SEND, with the header block that its message shares with others of its sender, or an order.
STOMP has frames of other kinds, too."""


class PauseReason(Enum):
    """What must happen before the gateway can continue."""

    TURN = "turn"
    """The frames need an Outcome of their own, after other tasks have had a turn."""
    CONTROL = "control"
    """The first frame is a control request: its response goes to `StompGateway.send_answer`."""
    DEDUP = "dedup"
    """The first frame is a SEND or COMMIT whose messages the mesh may have: see `Repeats`."""
    NEED = "need"
    """The first frame is a SUBSCRIBE that needs `bound` to be declared, or an UNSUBSCRIBE that deletes it; a SUBSCRIBE
    that begins a durable subscription at `start`, which the log must find; or a SEND that is mandatory, to a `queue` of
    which this node knows nothing."""


class Paused(NamedTuple):
    """`frames` are those that are not decided. `keys` are the dedup ids that peers must be asked about first."""

    reason: PauseReason
    frames: list[Command]
    keys: Sequence[bytes] = ()
    bound: BoundQueue | None = None
    start: tuple[str, StartAt] | None = None
    """The fanout, and where in its log."""
    queue: str = ""
