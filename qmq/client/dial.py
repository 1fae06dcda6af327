"""Real connections of a client: TCP, with TLS on request.

`Line` is what the client needs of a connection; any `qmq.environment.Pipe` is one, so tests dial a network in memory.
"""

import ssl
from typing import Protocol

import trio


class Line(Protocol):
    """Both directions of one connection. Waiting calls raise trio.BrokenResourceError or trio.ClosedResourceError."""

    async def receive_some(self, bytes_max: int) -> bytes:
        """Wait for bytes; b"" when the other side has ended."""

    async def send_all(self, data: bytes) -> None:
        """After a cancel an unknown part is sent, so the connection must be closed."""

    def close(self) -> None:
        """Close at once. Idempotent."""


class Dial(Protocol):
    """How connections are made."""

    async def __call__(self, host: str, port: int, tls: ssl.SSLContext | None, server_name: str) -> Line:
        """Raises OSError. With `tls` the certificate must carry `server_name`."""


class StreamLine:
    """A TCP connection, or TLS over one."""

    def __init__(self, socket: trio.SocketStream, stream: trio.abc.Stream) -> None:
        self._socket = socket
        self._stream = stream

    async def receive_some(self, bytes_max: int) -> bytes:
        return bytes(await self._stream.receive_some(bytes_max))

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    def close(self) -> None:
        self._socket.socket.close()


async def dial(host: str, port: int, tls: ssl.SSLContext | None, server_name: str) -> Line:
    """See `Dial`. A failed or cancelled handshake leaves no socket open."""
    socket = await trio.open_tcp_stream(host, port)
    if tls is None:
        return StreamLine(socket, socket)
    secured = trio.SSLStream(socket, tls, server_hostname=server_name, https_compatible=True)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        socket.socket.close()
        raise ConnectionError(f"TLS with {host}:{port} failed: {error.__cause__ or error}") from error
    except BaseException:
        socket.socket.close()
        raise
    return StreamLine(socket, secured)
