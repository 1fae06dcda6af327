"""The response to a control request: all that sessions need to know of control destinations."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """`headers` for the RECEIPT; `body`, JSON, for a client that used `reply-to`."""

    headers: dict[str, str]
    body: bytes
