"""What a gateway is given, and which SENDs of it are one run; why it stopped before a command, and what is left."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from qmq.broker.consumers.orders import Order
from qmq.broker.consumers.subscription import StartAt
from qmq.gateways.bound_queues import BoundQueue
from qmq.wire.stomp import Frame, Sends

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


def begins_run(commands: list[Command], at: int) -> bool:
    """Whether the SEND there is one of several with one header block: gathered ones, or followed by another."""
    command = commands[at]
    if isinstance(command, Sends):
        return True
    following = commands[at + 1]
    return isinstance(command, Frame) and isinstance(following, Frame) and following.head is command.head


def run_at(commands: list[Command], begin: int) -> tuple[list[bytes], list[str], int]:
    """All of the run that begins there: bodies, receipts that are asked for, and how many commands it is."""
    first = commands[begin]
    assert isinstance(first, Frame)
    bodies: list[bytes] = []
    receipts: list[str] = []
    for at in range(begin, len(commands)):
        command = commands[at]
        if not isinstance(command, Frame) or command.head is not first.head:
            return bodies, receipts, at - begin
        if isinstance(command, Sends):
            bodies.extend(command.bodies)
            receipts.extend(command.receipts)
        else:
            bodies.append(command.body)
            if command.receipt is not None:
                receipts.append(command.receipt)
    return bodies, receipts, len(commands) - begin
