"""The life of a queue message on the node that owns it, as a table.

The broker decides by this table what becomes of a message that a consumer gives back; docs/queues.md shows the whole
of it, printed from here by `python -m qmq.broker.messages.lifecycle`.
"""

from enum import IntEnum, StrEnum
from typing import Final


class MessageState(StrEnum):
    """Where a message is."""

    STORED = "stored"
    """Only in the queue store: its queue has no consumer, or other messages come before it."""
    DELAYED = "delayed"
    """Not due yet: sent with a delay, or waiting after a failed delivery."""
    READY = "ready"
    IN_FLIGHT = "in flight"
    """With a consumer of this node."""
    LENT = "lent"
    """With a peer that has a consumer."""
    SETTLED = "settled"
    DEAD = "dead letter"
    """Settled here, and accepted in the dead letter queue with the reason in its headers."""


class Back(IntEnum):
    """Why a delivery came back. The numbers travel between peers."""

    UNSEEN = 0
    """No client has seen it: the peer had no consumer free after all."""
    RELEASED = 1
    """Its consumer was lost (a broken connection, an ERROR) without an ACK."""
    TIMED_OUT = 2
    """No ACK came within the ack-timeout."""
    FAILED = 3
    """NACK."""
    REJECTED = 4
    """NACK with `requeue:false`."""
    LEFT = 5
    """Its consumer left in order (DISCONNECT, UNSUBSCRIBE): perhaps seen, and no failure."""


COMES_BACK: Final[dict[Back, tuple[MessageState, MessageState]]] = {
    Back.UNSEEN: (MessageState.READY, MessageState.READY),
    Back.RELEASED: (MessageState.READY, MessageState.DEAD),
    Back.TIMED_OUT: (MessageState.READY, MessageState.DEAD),
    Back.FAILED: (MessageState.DELAYED, MessageState.DEAD),
    Back.REJECTED: (MessageState.DEAD, MessageState.DEAD),
    Back.LEFT: (MessageState.READY, MessageState.READY),
}
"""What becomes of a message that came back: below the limit of deliveries, and at it."""

TRANSITIONS: Final[tuple[tuple[MessageState | str, str, MessageState], ...]] = (
    ("–", "SEND", MessageState.READY),
    ("–", "SEND with a delay", MessageState.DELAYED),
    (MessageState.READY, "checkpoint, no consumer", MessageState.STORED),
    (MessageState.STORED, "a consumer has room", MessageState.READY),
    (MessageState.DELAYED, "due", MessageState.READY),
    (MessageState.DELAYED, "checkpoint", MessageState.STORED),
    (MessageState.READY, "consumer here", MessageState.IN_FLIGHT),
    (MessageState.READY, "consumer on a peer", MessageState.LENT),
    (MessageState.IN_FLIGHT, "ACK", MessageState.SETTLED),
    (MessageState.LENT, "settled there", MessageState.SETTLED),
    (MessageState.READY, "expired, or dropped by overflow", MessageState.SETTLED),
    (MessageState.READY, "the same, where the policy names a dead letter queue", MessageState.DEAD),
)
"""Everything else that can happen to a message."""


def page() -> str:
    """The rows of docs/queues.md: a state, an event, the state after it, and that at the limit of deliveries."""
    rows = [f"| {here} | {event} | {there} | |" for here, event, there in TRANSITIONS]
    for back, (below, at_limit) in COMES_BACK.items():
        here = MessageState.LENT if back is Back.UNSEEN else f"{MessageState.IN_FLIGHT}, {MessageState.LENT}"
        event = back.name.lower().replace("_", " ")
        rows.append(f"| {here} | {event} | {below} | {'' if at_limit is below else at_limit} |".replace("|  |", "| |"))
    return "\n".join(rows)


if __name__ == "__main__":
    print(page())
