"""What a node says to a question: the one thing that sessions need to know of control destinations."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """`headers` for the RECEIPT; `body` for whoever asked with `reply-to`, JSON."""

    headers: dict[str, str]
    body: bytes
