"""The contract between a session and the protocol that its client speaks.

A session owns the connection: reading, the outbox, memory, and how a connection ends. A **dialogue** knows the
protocol. For each read it cuts complete frames (`receive`), then decides them and submits what follows (`respond`).
It sets `encoder` of the session, which writes what the node sends.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from qmq.errors import Refused
from qmq.mesh.peers.calls import NO_CALLS, CallTable

PRODUCT_CHARS_MAX: Final = 100
"""Of what a client says that it is; it may say more."""


class ClientDialogue:
    """One client's side of a protocol, from its first bytes to its last."""

    product = ""
    """What the client says that it is, for lists of connections: nothing relies on it."""

    def note_product(self, *texts: object) -> None:
        """The client says that it is this: a product and perhaps its version."""
        found = " ".join([text for text in texts if isinstance(text, str) and text])[:PRODUCT_CHARS_MAX]
        self.product = "".join([char if char.isprintable() else "?" for char in found])

    ahead = b""
    """Bytes that were read while the client was waited for, and are to be received next."""

    @property
    def keep_open(self) -> bool:
        """Whether the client requested to stay after a refusal that is not its fault."""
        return False

    answers_each = False
    """Whether each request has a response of its own: a refusal that comes late ends nothing else."""

    @property
    def unfinished_bytes(self) -> int:
        """What is held of a frame that is not complete."""
        return 0

    @property
    def awaits_frame(self) -> bool:
        """Whether a stop of the node waits for the frame that the client was sending."""
        return False

    def start(self) -> None:
        """The connection is open. Limits how long the login may take."""

    def receive(self, data: bytes) -> None:
        """Take bytes of the client. Never waits, and decides nothing."""

    async def respond(self) -> None:
        """Decide what is complete and submit it. The session reads on when this returns."""

    def note_stop(self) -> None:
        """The node is stopping: it waits only for the frame that the client is sending, and for no later one."""

    def release(self) -> None:
        """The client's messages are requeued: nothing that is unfinished counts any more."""

    def finish(self) -> None:
        """The session reads no more. A login that is pending is pending no more."""

    def stop(self) -> None:
        """The connection has ended: check no more times."""

    def leave(self) -> None:
        """Everything that the client sent is delivered, too: its place is free. Drops what refers to the session."""


class ClientProtocol(NamedTuple):
    """A protocol on one node (`dialogue.protocol` in its room): what its listeners and its peers need of it."""

    name: str
    """For metrics."""
    begin: Callable[..., ClientDialogue]
    """Called with the session, its pipe, and its pending login."""
    refusal: Callable[[Refused], bytes]
    """What a connection is sent that is not accepted."""
    shared: Any = None
    """What its connections share on this node."""
    calls: CallTable[Any] = NO_CALLS
    """What peers ask of it."""
    served: Callable[[], None] = lambda: None
    """Called when its first listener opens."""
    is_for_operators: bool = False
    """Whether a drained node lets its connections in: probes, metrics and control requests come by them."""
