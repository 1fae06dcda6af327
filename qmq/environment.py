"""Seams to the outside: clock, chance, network and blocking work, so that a whole node can run in a simulation.

`qmq.server` has the real ones; tests/simulation has twins on a virtual clock with one seed for everything. Nothing in
`server` or `replication` may read a clock, draw a number, open a socket or start a thread except through these.
(Waiting uses trio's own clock, which a test replaces as a whole.)
"""

import random
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

Tls = Callable[[], ssl.SSLContext]
"""Gives the context for the next handshake: certificates are renewed while a node runs."""


class Pipe(Protocol):
    """Both directions of one connection."""

    @property
    def peer_address(self) -> str:
        """Host of the other side, for limits and logs."""

    @property
    def peer_certificate_names(self) -> frozenset[str]:
        """The DNS names in the certificate that the other side has shown; none without one, and until bytes came.

        Checked by the TLS layer against its CA; whether one of them is the right one is the caller's question.
        """

    async def receive_some(self, bytes_max: int) -> bytes:
        """Wait for bytes; b"" when the other side has ended its half. A checkpoint.

        Raises trio.BrokenResourceError when the connection broke, trio.ClosedResourceError after `close`.
        """

    def send_now(self, data: bytes) -> int:
        """Hand over what fits without waiting; returns how many bytes were taken (0 is always allowed).

        Never called while a `send_all` is under way. A broken connection returns 0; `send_all` then raises.
        """

    async def send_all(self, data: bytes) -> None:
        """Hand over everything. After a cancel an unknown part is sent, so the connection must be closed.

        Raises as `receive_some`.
        """

    def end_sending(self) -> None:
        """Tell the other side that no more will come, where the connection can say so; reading goes on."""

    def close(self) -> None:
        """Let go at once, without a farewell; waiting calls raise trio.ClosedResourceError. Idempotent."""


class PipeListener(Protocol):
    """A place that accepts connections."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it really listens (port 0 was replaced)."""

    async def accept(self) -> Pipe:
        """Wait for a connection. Raises OSError when the system is short of something; try again later."""

    def close(self) -> None:
        """Stop listening."""


class Network(Protocol):
    """Connections, real or simulated."""

    async def connect(self, host: str, port: int, tls: Tls | None, server_name: str) -> Pipe:
        """Open a connection; with `tls`, the certificate must carry `server_name`.

        Raises OSError, and MeshError when the other side shows a certificate that is not to be trusted.
        """

    async def listen(self, host: str, port: int, tls: Tls | None) -> PipeListener:
        """Raises OSError when the address cannot be had. A TLS handshake happens inside `Pipe.receive_some`."""


class RunBlocking(Protocol):
    """How blocking calls are made."""

    async def __call__(self, call: Callable[[], T]) -> T:
        """Run `call` without blocking the loop; when the caller is cancelled it is finished first, not abandoned."""


class Environment:
    """Everything a node takes from outside itself."""

    def __init__(
        self,
        *,
        network: Network,
        rng: random.Random,
        now_us: Callable[[], int],
        run_blocking: RunBlocking,
        boot_seconds: Callable[[], float],
        run_commit: RunBlocking | None = None,
    ) -> None:
        self.network = network
        self.rng = rng
        self.now_us = now_us
        """µs since 1970, by a clock that never jumps (`qmq.server.runtime.clock`): for time stamps, never for
        waiting."""
        self.run_blocking = run_blocking
        self.boot_seconds = boot_seconds
        """A clock that nobody sets and that goes on while the machine sleeps or the process is stopped."""
        self._run_commit = run_commit

    async def run_commit(self, call: Callable[[], T]) -> T:
        """As `run_blocking`, for the one task that commits: in a thread that nobody else keeps waiting, if there is
        one."""
        return await (self._run_commit or self.run_blocking)(call)
