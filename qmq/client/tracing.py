"""How a client can be observed: what its option `tracing` offers. `qmq.client.opentelemetry` is one such observer."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from qmq.address import Address
from qmq.client.core.encode import Headers
from qmq.client.core.feed import Delivered


class Tracing(Protocol):
    """Contexts in which a client does what it is asked; an exception that passes through one is why it failed.

    `server` is the node that the client is logged in to, if there is one.
    """

    def sending(
        self, operation: str, destination: str, body: bytes, headers: Headers, server: Address | None
    ) -> AbstractContextManager[Headers]:
        """Around one message that is sent, requested, or put into a transaction (operation `create`): yields the
        headers to send.
        """

    def processing(self, delivery: Delivered, server: Address | None) -> AbstractContextManager[object]:
        """Around the block of a message."""


class NoTracing:
    """Observes nothing."""

    def sending(
        self, operation: str, destination: str, body: bytes, headers: Headers, server: Address | None
    ) -> AbstractContextManager[Headers]:
        return nullcontext(headers)

    def processing(self, delivery: Delivered, server: Address | None) -> AbstractContextManager[object]:
        return nullcontext()
