"""One decoded frame."""

from qmq.wire.stomp.head import Head


class Frame:
    """One frame as it was sent. `body` is exactly the sender's bytes; `receipt` is the unescaped header, or None.

    A plain class: hundreds of thousands are made in a second. Its Head is shared with other frames.
    """

    __slots__ = ("body", "head", "receipt")

    def __init__(self, head: Head, body: bytes, receipt: str | None) -> None:
        self.head = head
        self.body = body
        self.receipt = receipt

    def __repr__(self) -> str:
        return f"Frame({self.head!r}, body of {len(self.body)} bytes, receipt={self.receipt!r})"
