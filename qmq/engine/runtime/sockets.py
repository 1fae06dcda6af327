"""The real network: connections as `qmq.environment.Pipe`.

A plain connection is a non-blocking socket that waits for readiness through trio and otherwise calls the system
directly. Sending needs no task switch while the kernel has room, so one task per connection can carry a busy broker.
TLS goes through trio's own stream, whose sends can only wait.
"""

import errno
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import trio

from qmq.environment import Network, Pipe, PipeListener, Tls
from qmq.errors import MeshError

LISTEN_BACKLOG = 1024

# Linux returns the error of a connection that died in the queue from accept; only shortages need a pause.
SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class SocketPipe:
    __slots__ = ("_closed", "_drained", "_socket", "peer_address", "peer_certificate_subject", "peer_port")

    def __init__(
        self, connected: socket.socket, peer_address: str, peer_port: int = 0, subject: frozenset[str] = frozenset()
    ) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._closed = False
        self._drained: bool | None = None  # whether the last read took all there was; None before the first
        self.peer_address = peer_address
        self.peer_port = peer_port
        self.peer_certificate_subject = subject

    def with_tls(self, tls: Tls, peer_address: str, peer_port: int) -> "TlsPipe":
        """This connection, of that client, with TLS; the pipe itself is not used again."""
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(self._socket))
        secured = trio.SSLStream(stream, tls(), server_side=True, https_compatible=True)
        return TlsPipe(secured, peer_address, peer_port)

    def of(self, peer_address: str, peer_port: int, subject: frozenset[str]) -> "SocketPipe":
        """This connection, of that client; the pipe itself is not used again."""
        return SocketPipe(self._socket, peer_address, peer_port, subject)

    async def receive_some(self, bytes_max: int) -> bytes:
        if self._drained and not self._closed:
            await trio.lowlevel.wait_readable(self._socket)
        elif self._drained is False:
            # A sender that always has more must not keep the others from their turn.
            await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            try:
                data = self._socket.recv(bytes_max)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error
            self._drained = len(data) < bytes_max
            return data

    @property
    def peer_certificate_names(self) -> frozenset[str]:
        return frozenset()

    def send_now(self, data: bytes) -> int:
        if self._closed:
            return 0
        try:
            return self._socket.send(data)
        except OSError:
            return 0  # full, or broken; `send_all` finds out which

    async def send_all(self, data: bytes) -> None:
        unsent = memoryview(data)
        while unsent:
            if self._closed:
                raise trio.ClosedResourceError
            try:
                sent = self._socket.send(unsent)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error
            unsent = unsent[sent:]

    def end_sending(self) -> None:
        if not self._closed:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class TlsPipe:
    def __init__(self, stream: trio.SSLStream[trio.SocketStream], peer_address: str, peer_port: int) -> None:
        self._stream = stream
        self.peer_address = peer_address
        self.peer_port = peer_port

    @property
    def peer_certificate_names(self) -> frozenset[str]:
        return frozenset(value for kind, value in self._certificate().get("subjectAltName", ()) if kind == "DNS")

    @property
    def peer_certificate_subject(self) -> frozenset[str]:
        parts = self._certificate().get("subject", ())
        return frozenset(value for part in parts for kind, value in part if kind == "commonName")

    def _certificate(self) -> Mapping[str, Any]:
        try:
            return self._stream.getpeercert() or {}
        except trio.NeedHandshakeError:
            return {}

    async def receive_some(self, bytes_max: int) -> bytes:
        return bytes(await self._stream.receive_some(bytes_max))

    def send_now(self, data: bytes) -> int:
        return 0

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    def end_sending(self) -> None:
        # The close message of TLS may have to wait; both sides already accept the end of the stream below it.
        with suppress(OSError):
            self._stream.transport_stream.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._stream.transport_stream.socket.close()


class TcpListener:
    """A listening TCP socket, with TLS when `tls` is given."""

    def __init__(self, listening: socket.socket, tls: Tls | None) -> None:
        listening.setblocking(False)
        self._socket = listening
        self._tls = tls
        name = listening.getsockname()
        self.address: tuple[str, int] = (name[0], name[1])

    async def accept(self) -> Pipe:
        connected, remote = await accept(self._socket)
        host, port = remote[:2]
        pipe = SocketPipe(connected, host, port)
        return pipe if self._tls is None else pipe.with_tls(self._tls, host, port)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


async def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection, and its address. Raises OSError when a resource of the system is exhausted."""
    while True:
        try:
            accepted = listening.accept()
        except BlockingIOError:
            await trio.lowlevel.wait_readable(listening)
            continue
        except OSError as error:
            if error.errno in SHORTAGES or listening.fileno() < 0:
                raise
            continue
        # A flood of connections must not keep the others from their turn.
        await trio.lowlevel.cancel_shielded_checkpoint()
        return accepted


class TcpNetwork:
    """`qmq.environment.Network` on the operating system's sockets."""

    async def connect(self, host: str, port: int, tls: Tls | None, server_name: str) -> Pipe:
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError as error:
            raise ConnectionError(f"cannot connect to {host}:{port}: {_why(error)}") from error
        if tls is None:
            connected = socket.socket(fileno=stream.socket.detach())
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return SocketPipe(connected, host, port)
        secured = trio.SSLStream(stream, tls(), server_hostname=server_name, https_compatible=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            stream.socket.close()
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                why = error.__cause__.verify_message
                raise MeshError(
                    "bad-certificate", f"{host}:{port} shows a certificate that is not trusted: {why}"
                ) from error
            raise ConnectionError(f"TLS with {host}:{port} failed: {error.__cause__ or error}") from error
        except BaseException:
            stream.socket.close()
            raise
        return TlsPipe(secured, host, port)

    def as_client(self, pipe: Pipe, address: str, port: int, common_name: str, tls: Tls | None) -> Pipe:
        assert isinstance(pipe, SocketPipe), "what its listeners accept without TLS"
        if tls is not None:
            return pipe.with_tls(tls, address, port)
        return pipe.of(address, port, frozenset([common_name] if common_name else ()))

    async def listen(self, host: str, port: int, tls: Tls | None) -> PipeListener:
        await trio.lowlevel.checkpoint()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # What is accepted has these, too. For clients without heartbeats: a host that is down must not hold its
            # messages for ever.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listening.bind((host, port))
            listening.listen(LISTEN_BACKLOG)
        except OSError as error:
            listening.close()
            is_used = error.errno == errno.EADDRINUSE
            more = "; another process, perhaps a node, serves there: stop it, or choose another address" * is_used
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}{more}") from error
        return TcpListener(listening, tls)


def _why(error: OSError) -> str:
    """What the system said of the last address that was tried; trio's own text does not have it."""
    group = error.__cause__
    last = group.exceptions[-1] if isinstance(group, BaseExceptionGroup) else None
    if isinstance(last, OSError) and last.errno:
        return os.strerror(last.errno)
    return error.strerror or str(error)


def real_network() -> Network:
    return TcpNetwork()
