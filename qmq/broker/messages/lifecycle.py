"""The life of a queue message on the node that owns it, as a table.

The broker decides by this table what becomes of a message that a consumer gives back; docs/queues.md shows the whole
of it as a diagram, drawn from here by `python -m qmq.broker.messages.lifecycle`.
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

TRANSITIONS: Final[tuple[tuple[MessageState, str, MessageState], ...]] = (
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


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    names = {state: state.name.lower() for state in MessageState}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state.value}" as {names[state]}' for state in MessageState if state.value != names[state]]
    lines += [
        f"    [*] --> {names[MessageState.READY]}: SEND",
        f"    [*] --> {names[MessageState.DELAYED]}: SEND with a delay",
    ]
    lines += [f"    {names[here]} --> {names[there]}: {event}" for here, event, there in TRANSITIONS]
    for back, (below, at_limit) in COMES_BACK.items():
        event = back.name.lower().replace("_", " ")
        for here in (MessageState.LENT,) if back is Back.UNSEEN else (MessageState.IN_FLIGHT, MessageState.LENT):
            lines.append(f"    {names[here]} --> {names[below]}: {event}")
            if at_limit is not below:
                lines.append(f"    {names[here]} --> {names[at_limit]}: {event}, delivery limit reached")
    lines += [f"    {names[MessageState.SETTLED]} --> [*]", f"    {names[MessageState.DEAD]} --> [*]"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
