"""Several messages and acknowledgements that take effect together or not at all."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from qmq.client.blocks import not_entered
from qmq.client.core.core import Core
from qmq.client.core.encode import Headers, Send
from qmq.client.core.feed import Delivered
from qmq.client.message import MessageContent, Receipt


class Committer(Protocol):
    """What a transaction needs from its client."""

    @property
    def core(self) -> Core: ...

    def sending(
        self, operation: str, destination: str, body: bytes, headers: Headers
    ) -> AbstractContextManager[Headers]: ...

    def release(self, settles: list[tuple[Delivered, bool]]) -> None: ...

    async def commit(
        self, sends: list[Send], settles: list[tuple[Delivered, bool]], timeout_seconds: float
    ) -> Receipt: ...


class Collection:
    """Made by `Client.transaction`. What it is given is kept here and sent as a whole at the end of its block; a block
    that ends with an exception sends nothing at all. A node holds at most 1,000 frames and 16 MiB unless configured
    otherwise (docs/limits.md).
    """

    BLOCK = "async with"

    def __init__(self, client: Committer, timeout_seconds: float) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds
        self._sends: list[Send] = []
        self._settles: list[tuple[Delivered, bool]] = []
        self._is_open = False
        self.receipt: Receipt | None = None
        """How the node has taken it, after the block."""

    def begin(self) -> None:
        """The block begins."""
        self._is_open = True

    def _check_open(self) -> None:
        if not self._is_open:
            raise not_entered("a transaction", self.BLOCK)

    def send(self, destination: str, body: bytes, headers: Headers | None = None) -> None:
        """Add a message."""
        self._check_open()
        with self._client.sending("create", destination, body, headers or {}) as all_headers:
            self._sends.append((destination, body, dict(all_headers)))

    def ack(self, message: MessageContent) -> None:
        """Add an ACK. Until the block ends the message counts as settled, so that its own context does nothing; if
        the transaction comes to nothing, it waits for its ACK again. Raises Stale.
        """
        self.hold(message, True)

    def nack(self, message: MessageContent) -> None:
        """Add a NACK; otherwise as `ack`."""
        self.hold(message, False)

    def hold(self, message: MessageContent, is_ack: bool) -> None:
        """Add an ACK or a NACK."""
        self._check_open()
        if self._client.core.hold(message.delivery):
            self._settles.append((message.delivery, is_ack))

    async def finish(self, is_failed: bool) -> None:
        """The block ends: commit, or forget what was collected. See `Transaction.__aexit__`."""
        self._is_open = False
        if is_failed:
            self._client.release(self._settles)
        elif self._sends or self._settles:
            self.receipt = await self._client.commit(self._sends, self._settles, self._timeout_seconds)


class Transaction(Collection):
    __doc__ = Collection.__doc__

    async def __aenter__(self) -> "Transaction":
        self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """On return all of it is on the node's disk. When the connection ends first, a transaction that only sends is
        sent again, like a message. Cancelled in flight, it may be applied: its messages count as settled, and return
        when the node refuses it.

        Raises:
            Refused: the node refuses all of it.
            Stale: a message of it came over a connection that has ended. Nothing was applied, or, when the connection
                ended before the receipt, all or nothing: the error says which.
            TimeoutError: not confirmed in time: as if cancelled then.
            NotConnected: the client was closed or has given up.
        """
        await self.finish(kind is not None)
