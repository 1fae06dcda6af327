"""One decoded frame, or many: ACKs that differ in their number only, SENDs in receipt and body only."""

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


class Acks(Frame):
    """ACKs that came one after the other, without a receipt: the first with `head` but for its id, and so on.

    `numbers` are their ids, of 1 to 18 digits each.
    """

    __slots__ = ("numbers",)

    def __init__(self, head: Head, numbers: list[bytes]) -> None:
        super().__init__(head, b"", None)
        self.numbers = numbers

    def one_by_one(self) -> list[Frame]:
        """The same as frames of their own."""
        head = self.head
        return [
            Frame(Head(head.command, {**head.headers, "id": number.decode()}, head.version), b"", None)
            for number in self.numbers
        ]


class Sends(Frame):
    """SENDs with one header block, which came one after the other. `bodies` are theirs.

    `receipts` are those that they ask for: one each, or none at all.
    """

    __slots__ = ("bodies", "receipts")

    def __init__(self, head: Head, bodies: list[bytes], receipts: list[str]) -> None:
        super().__init__(head, b"", None)
        self.bodies = bodies
        self.receipts = receipts

    def one_by_one(self) -> list[Frame]:
        """The same as frames of their own."""
        if not self.receipts:
            return [Frame(self.head, body, None) for body in self.bodies]
        return [Frame(self.head, body, receipt) for body, receipt in zip(self.bodies, self.receipts, strict=True)]
