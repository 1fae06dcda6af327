"""The environment of a node: clock, random numbers, network and blocking calls, as interfaces.

`qmq.node` implements them for real; tests/simulation implements them on a virtual clock with one seed for everything.
So a whole node can run in a simulation. A running node reads clocks, draws numbers, opens sockets and starts
threads only through them. (Waiting uses trio's own clock, which a test replaces as a whole.)
"""

import random
import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Tls = Callable[[], ssl.SSLContext]
"""Returns the context for the next handshake, because certificates are renewed while a node runs."""


class Pipe(Protocol):
    """Both directions of one connection."""

    @property
    def peer_address(self) -> str:
        """Host of the other side, for limits and logs."""

    @property
    def peer_port(self) -> int:
        """Its port; 0 where there is none."""

    @property
    def peer_certificate_names(self) -> frozenset[str]:
        """The DNS names in the certificate of the other side; empty without one, and before the first bytes arrive.

        The TLS layer has checked the certificate against its CA. The caller decides whether one of the names is right.
        """

    @property
    def peer_certificate_subject(self) -> frozenset[str]:
        """The common names in the subject of that certificate; empty as above."""

    async def receive_some(self, bytes_max: int) -> bytes:
        """Wait for bytes; b"" when the other side has ended its half. A trio checkpoint.

        Raises trio.BrokenResourceError when the connection broke, trio.ClosedResourceError after `close`.
        """

    def send_now(self, data: bytes) -> int:
        """Send what fits without waiting; return how many bytes were taken (0 is always allowed).

        Never called during a `send_all`. A broken connection returns 0; `send_all` then raises.
        """

    async def send_all(self, data: bytes) -> None:
        """Send everything. After a cancel an unknown part is sent, so the connection must be closed.

        Raises as `receive_some`.
        """

    def end_sending(self) -> None:
        """Signal the end of sending to the other side, if the connection can; reading continues."""

    def close(self) -> None:
        """Close at once, without a handshake; waiting calls raise trio.ClosedResourceError. Idempotent."""


class PipeListener(Protocol):
    """A place that accepts connections."""

    @property
    def address(self) -> tuple[str, int]:
        """The bound address (port 0 is replaced by the real port)."""

    async def accept(self) -> Pipe:
        """Wait for a connection. Raises OSError when a resource of the system is exhausted; try again later."""

    def close(self) -> None:
        """Stop listening."""


class Network(Protocol):
    """Connections, real or simulated."""

    async def connect(self, host: str, port: int, tls: Tls | None, server_name: str) -> Pipe:
        """Open a connection; with `tls`, the certificate must carry `server_name`.

        Raises OSError, and MeshError when the certificate of the other side is not trusted.
        """

    def as_client(self, pipe: Pipe, address: str, port: int, common_name: str, tls: Tls | None) -> Pipe:
        """A connection that a listener without TLS has accepted, as that of the client behind the proxy that made it.

        With `tls` the client's bytes are TLS, and the certificate is that of the client. Without, `common_name` is that
        of the certificate which the proxy has checked; "" for none. The first pipe is not used again.
        """

    async def listen(self, host: str, port: int, tls: Tls | None) -> PipeListener:
        """Listen there. Raises OSError when it cannot. A TLS handshake happens inside `Pipe.receive_some`."""


class RunBlocking(Protocol):
    """How blocking calls are made."""

    async def __call__(self, call: Callable[[], T]) -> T:
        """Run `call` without blocking the event loop. If the caller is cancelled, `call` still finishes first."""


class RunCommit(Protocol):
    """How appends to the journal are made."""

    async def __call__(self, call: Callable[[], T], *, is_lone: bool = False) -> T:
        """As `RunBlocking`, but no cancel keeps `call` from being made. If it `is_lone`, nothing else waits for the
        disk, nor is anything else known to wait for a turn: it may be made in the thread of the event loop, without a
        checkpoint.
        """


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
        run_commit: RunCommit,
        run_abandonable: RunBlocking | None = None,
        tracer: "Tracer | None" = None,
    ) -> None:
        self.network = network
        self.rng = rng
        self.now_us = now_us
        """µs since 1970, by a clock that never jumps (`qmq.engine.runtime.clock`): for time stamps, never for
        waiting."""
        self.boot_seconds = boot_seconds
        """A clock that cannot be set and that runs on while the machine sleeps or the process is stopped."""
        self.tracer = tracer
        """Makes the spans of the node; None: it makes none. It never blocks."""
        self._run_blocking = run_blocking
        self._run_commit = run_commit
        self._run_abandonable = run_abandonable

    async def run_blocking(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Make the call as `RunBlocking` says."""
        return await self._run_blocking(partial(call, *args))

    async def run_commit(self, call: Callable[[], T], *, is_lone: bool = False) -> T:
        """Make the call as `RunCommit` says; only for the commit task."""
        return await self._run_commit(call, is_lone=is_lone)

    async def run_abandonable(self, call: Callable[[], T]) -> T:
        """As `run_blocking`, for calls to other services and of code of other packages. A caller that is cancelled
        leaves at once, and the result of the call is dropped.
        """
        return await (self._run_abandonable or self.run_blocking)(call)
