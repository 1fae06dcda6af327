"""One connection to one node, for programs that ask something and leave: commands, and tasks of the pipeline.

It speaks STOMP 1.2 only and reads whatever the node sends in between: frames that are not asked for yet wait in order.
It never reconnects; an ERROR frame or a lost connection is an exception whose text is ready to print. Connecting,
sending and waiting for one answer are each bounded by `timeout_seconds`; `receive` by its own argument.

It is not `qmq.client.blocking` on purpose: a command or a task should fail, and say why, where that one waits for
another node; and it sees frames, such as those of a node's journal, that are no messages to an application.
"""

import socket
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from ssl import SSLContext, SSLError, SSLWantReadError
from types import TracebackType
from typing import Self

from qmq.client.core.encode import PRODUCT
from qmq.client.core.failures import error_of, other_protocol, tls_failure
from qmq.errors import LocalProtocolError, NotConnected, Refused
from qmq.unix_socket import socket_path
from qmq.wire.stomp import Connection, Frame, Limits, Role, Version, encode_frame

READ_BYTES_MAX = 64 << 10
TIMEOUT_SECONDS = 10.0

# A node's answers may be longer than what it accepts from strangers: a status is one header.
LIMITS = Limits(header_line_bytes_max=4 << 20, header_bytes_max=8 << 20, body_bytes_max=64 << 20)

Headers = Iterable[tuple[str, str]]


class NodeConnection:
    """One connection to a node, logged in once made. Use it as a context manager; leaving it just closes."""

    def __init__(
        self,
        address: tuple[str, int] | Path,
        *,
        login: str | None = None,
        passcode: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        tls: SSLContext | None = None,
    ) -> None:
        """Connect and log in; a Path is that of a Unix socket. Raises NotConnected without an answer, Refused when the
        node refuses.
        """
        if isinstance(address, Path):
            self.host, self.address = "localhost", str(address)
        else:
            self.host = address[0]
            self.address = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        self.timeout_seconds = timeout_seconds
        self.server = ""
        self._codec = Connection(Role.CLIENT, LIMITS)
        self._waiting: deque[Frame] = deque()
        self._receipts = 0
        self._has_answered = False
        try:
            self._socket = dial(address, timeout_seconds, tls)
        except SSLError as error:
            raise self.failure(f"{self.address}: {tls_failure(error)}") from error
        except OSError as error:
            raise self.failure(f"{self.address}: {error.strerror or error}; is a node running there?") from error
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._log_in(login, passcode)
        except BaseException:
            self._socket.close()
            raise

    def failure(self, text: str) -> Exception:
        """The exception for what could not be done; `text` names the node."""
        return NotConnected(text)

    def refusal(self, frame: Frame) -> Exception:
        """The exception for an ERROR frame. The node is about to close."""
        error = error_of(frame)
        return Refused(error.code, f"{self.address}: {error.message}")

    def _log_in(self, login: str | None, passcode: str | None) -> None:
        headers = [("accept-version", Version.V12.text), ("host", self.host), ("client-product", PRODUCT)]
        headers += [(key, value) for key, value in (("login", login), ("passcode", passcode)) if value is not None]
        self.write(encode_frame("CONNECT", headers, version=Version.V10))  # CONNECT is never escaped
        frame = self.receive(self.timeout_seconds)
        if frame is None:
            patience = f"{self.timeout_seconds:g} s"
            raise self.failure(f"{self.address}: no answer to CONNECT within {patience}; is it a STOMP node?")
        if frame.head.command != "CONNECTED":
            raise self.failure(f"{self.address}: answered CONNECT with {frame.head.command}")
        self.server = frame.head.headers.get("server", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection without a frame. Idempotent."""
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Send encoded frames; blocks while the node takes none, up to the time limit."""
        self._socket.settimeout(self.timeout_seconds)
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise self.failure(f"{self.address}: accepts no data for {self.timeout_seconds:g} s") from error
        except OSError as error:
            self._say_why_it_closed()
            raise self.failure(f"{self.address}: connection lost: {error.strerror or error}") from error

    def frame(self, command: str, headers: Headers, body: bytes = b"") -> bytes:
        """One frame's bytes. Raises NotConnected for headers that STOMP cannot carry."""
        try:
            return encode_frame(command, headers, body, version=Version.V12)
        except LocalProtocolError as error:
            raise self.failure(error.message) from error

    def request(self, command: str, headers: Headers, body: bytes = b"") -> Frame:
        """Send one frame with a receipt and return the RECEIPT; what comes before it waits for `receive`."""
        receipt = self.next_receipt()
        self.write(self.frame(command, [*headers, ("receipt", receipt)], body))
        return self.wait_for_receipt(receipt)

    def next_receipt(self) -> str:
        """A receipt id that this connection has not used."""
        self._receipts += 1
        return f"q{self._receipts}"

    def wait_for_receipt(self, receipt: str) -> Frame:
        """The RECEIPT with that id. Raises NotConnected when it does not come in time."""
        deadline = time.monotonic() + self.timeout_seconds
        passed: list[Frame] = []
        try:
            while frame := self.receive(deadline - time.monotonic()):
                if frame.head.command == "RECEIPT" and frame.head.headers.get("receipt-id") == receipt:
                    return frame
                passed.append(frame)
        finally:
            self._waiting.extendleft(reversed(passed))
        raise self.failure(f"{self.address}: no receipt within {self.timeout_seconds:g} s")

    def receive(self, timeout_seconds: float | None) -> Frame | None:
        """The next frame, or None when none comes in time (None waits for ever; 0 takes only what is here).

        Raises Refused for an ERROR frame, NotConnected for a closed connection or bytes that are not STOMP.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._waiting:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            data = self._read(left)
            if data is None:
                return None
            if not data:
                why = "" if self._has_answered else " without an answer; does it need TLS?"
                raise self.failure(f"{self.address}: closed the connection{why}")
            if not self._has_answered and (error := other_protocol(data)):
                raise self.failure(f"{self.address}: {error}")
            self._has_answered = True
            self._waiting += self._codec.receive(data)
            if self._codec.error is not None and not self._waiting:
                raise self.failure(f"{self.address}: not STOMP: {self._codec.error.message}")
        frame = self._waiting.popleft()
        if frame.head.command == "ERROR":
            raise self.refusal(frame)
        return frame

    def leave(self) -> None:
        """DISCONNECT and wait for its receipt: then the node has taken everything that was sent before."""
        self.request("DISCONNECT", [])

    def _read(self, timeout_seconds: float | None) -> bytes | None:
        """The next bytes; b"" at the end, None when none come in time."""
        self._socket.settimeout(timeout_seconds)  # 0 makes the call non-blocking
        try:
            return self._socket.recv(READ_BYTES_MAX)
        except (TimeoutError, BlockingIOError, SSLWantReadError):
            return None
        except OSError as error:  # also those of TLS, and of networks that are not there any more
            raise self.failure(f"{self.address}: connection lost: {error.strerror or error}") from error

    def _say_why_it_closed(self) -> None:
        """After a failed write: an ERROR frame that has already arrived has more detail than the system error."""
        self._socket.settimeout(0.2)
        try:
            while data := self._socket.recv(READ_BYTES_MAX):
                for frame in self._codec.receive(data):
                    if frame.head.command == "ERROR":
                        raise self.refusal(frame)
        except OSError:
            return


def dial(address: tuple[str, int] | Path, timeout_seconds: float, tls: SSLContext | None) -> socket.socket:
    """A connected socket, which carries TLS if asked; its certificate must have the host. Raises OSError."""
    if isinstance(address, Path):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        connection = socket.create_connection((address[0], address[1]), timeout_seconds)
    try:
        if isinstance(address, Path):
            connection.settimeout(timeout_seconds)
            with socket_path(address) as short:
                connection.connect(short)
            return connection
        return connection if tls is None else tls.wrap_socket(connection, server_hostname=address[0])
    except BaseException:
        connection.close()
        raise
