"""What a node answers to a SEND, an ACK or a COMMIT of the client."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """How a node has confirmed a message or transaction."""

    copies: int | None
    """On how many disks it is, if fewer than its level requires; None: the level was reached."""
    is_duplicate: bool
    """A message with this `dedup-id` was there already, most often by an earlier attempt of this one."""
    is_edge: bool = False
    """An ACK that asked for `quorum` did not get it in time: its message is settled, and may be delivered again."""
