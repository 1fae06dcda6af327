"""One connection of the generator: log in and subscribe, then read and write bytes without blocking.

The polite part goes through the codec and blocks. The fast part hands whatever is read to a counter and never looks
at a frame; when the node closes the connection, its last words are found in what was read last. Heart-beats are sent
where they were agreed, never within a frame; whether the node sends its own is not looked at.
"""

import contextlib
import re
import socket
import ssl
from typing import Final, Protocol

from qmq.address import Address
from qmq.bench.dialect import DIALECTS, Dialect
from qmq.wire.stomp import Connection, Frame, Role, encode_frame

READ_BYTES_MAX = 1 << 18
LAST_WORDS_BYTES = 4096
ANSWER_SECONDS = 10.0
FAREWELL_SECONDS = 60.0
"""A node needs time to remove a million subscriptions."""

ERROR_MESSAGE = re.compile(rb"(?:^|\0\n?)ERROR\n(?:[^\n\0]+\n)*?message:([^\n]*)\n")

NOT_READY: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""The kernel has no data or no room now."""


class Counter(Protocol):
    """Handles the bytes that a connection reads."""

    def take(self, data: bytes) -> tuple[int, bytes]:
        """(Number of complete messages, bytes to write back)."""


class Ignore:
    """For connections without counted messages."""

    def take(self, data: bytes) -> tuple[int, bytes]:
        return 0, b""


class LoadConnection:
    """A logged-in connection. `received` counts what `counter` found.

    Every method raises ConnectionError with the node's reason when the node ends the connection or refuses, and
    TimeoutError when it does not answer.
    """

    def __init__(
        self,
        address: Address,
        counter: Counter,
        *,
        login: str | None = None,
        passcode: str | None = None,
        tls: ssl.SSLContext | None = None,
        dialect: Dialect = DIALECTS["qmq"],
        heart_beat_ms: int = 0,
    ) -> None:
        self._has_tls = tls is not None
        try:
            self.socket = socket.create_connection(address, ANSWER_SECONDS)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=address.host)
        except OSError as error:
            raise ConnectionError(f"{address}: {error.strerror or error}; is a node running there?") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = 0
        self.waiting = b""
        """Bytes to write back when the kernel has room."""
        self._counter = counter
        self._address = address
        self._dialect = dialect
        self._within_frame = False
        self._beat_seconds = 0.0
        """Seconds between two heart-beats of this side; 0: none were agreed."""
        self._beat_due = 0.0
        self._last_read = b""
        self._subscriptions = 0
        self._codec = Connection(Role.CLIENT)
        headers = [("accept-version", "1.2"), ("host", dialect.host or address.host)]
        headers.append(("heart-beat", f"{heart_beat_ms},{heart_beat_ms}"))
        if login is not None:
            headers += [("login", login), ("passcode", passcode or "")]
        try:
            connected = self._ask("CONNECT", [*headers, *dialect.connect], "CONNECTED")
            self._beat_seconds = _agreed(heart_beat_ms, connected.head.headers.get("heart-beat", "0,0")) / 2
        except BaseException:
            self.socket.close()
            raise

    def subscribe(self, destination: str, ack: str, *headers: tuple[str, str]) -> None:
        """Subscribe and wait for the receipt. No message may be on its way to the destination yet."""
        self._subscriptions += 1
        name = str(self._subscriptions)
        asked = [("destination", destination), ("id", name), ("ack", ack), *headers, *self._dialect.subscribe]
        self._ask("SUBSCRIBE", [*asked, ("receipt", f"subscribed-{name}")], "RECEIPT")

    def subscribe_without_receipt(self, destination: str, ack: str, *headers: tuple[str, str]) -> None:
        """Subscribe, after `begin`, to waiting messages, which may come before a receipt."""
        self._subscriptions += 1
        asked = [("destination", destination), ("id", str(self._subscriptions)), ("ack", ack), *headers]
        self.waiting += encode_frame("SUBSCRIBE", [*asked, *self._dialect.subscribe])
        self.write_waiting()

    def count_with(self, counter: Counter) -> None:
        """From now on `counter` gets all bytes; the counter before must have got all of its own."""
        self._counter = counter

    def begin(self) -> None:
        """From now on nothing blocks, and the counter gets all bytes."""
        self.socket.setblocking(False)

    def read(self) -> int:
        """Read available bytes; returns the number of messages they complete, 0 if there are none."""
        try:
            data = self.socket.recv(READ_BYTES_MAX)  # More than a record of TLS: nothing that is decrypted is left.
        except NOT_READY:
            return 0
        except OSError as error:
            raise ConnectionError(self._why(error)) from error
        return self._count(data)

    def write(self, data: bytes | memoryview) -> int:
        """Write as many bytes as the kernel accepts; returns their number."""
        try:
            sent = self.socket.send(data)
        except NOT_READY:
            # TLS has begun with these bytes, and wants them again.
            self._within_frame = self._within_frame or self._has_tls
            return 0
        except OSError as error:
            raise ConnectionError(self._why(error)) from error
        self._within_frame = sent < len(data)
        return sent

    @property
    def beats(self) -> bool:
        """Whether heart-beats of this side were agreed."""
        return self._beat_seconds > 0

    def beat_if_due(self, now: float) -> None:
        """Send a heart-beat if one is due; never inside a frame, where it would be a byte of the frame."""
        if self._beat_seconds and now >= self._beat_due and not (self.waiting or self._within_frame):
            self._beat_due = now + self._beat_seconds
            self.write(b"\n")

    def write_waiting(self) -> None:
        """Write as much of `waiting` as the kernel accepts."""
        if self.waiting:
            self.waiting = self.waiting[self.write(self.waiting) :]

    def leave(self) -> None:
        """Disconnect and wait for the receipt; messages before it are counted. Blocks."""
        self.socket.settimeout(FAREWELL_SECONDS)
        goodbye = encode_frame("DISCONNECT", [("receipt", "goodbye")])
        self.socket.sendall(self.waiting + goodbye)
        self.waiting = b""
        seen = b""
        while b"receipt-id:goodbye" not in seen:
            data = self.socket.recv(READ_BYTES_MAX)
            self._count(data)
            seen = seen[-64:] + data

    def close(self) -> None:
        """Close without DISCONNECT. Idempotent."""
        self.socket.close()

    def _count(self, data: bytes) -> int:
        if not data:
            raise ConnectionError(self._why(None))
        self._last_read = data
        count, answer = self._counter.take(data)
        self.received += count
        if answer:
            self.waiting += answer
            if self.socket.gettimeout() == 0:
                self.write_waiting()
        return count

    def _ask(self, command: str, headers: list[tuple[str, str]], wanted: str) -> Frame:
        self.socket.sendall(encode_frame(command, headers))
        frames: list[Frame] = []
        while not frames:
            data = self.socket.recv(READ_BYTES_MAX)
            self._last_read = data
            if not data:
                raise ConnectionError(self._why(None))
            frames = self._codec.receive(data)
            if self._codec.error is not None:
                raise ConnectionError(f"{self._address}: not STOMP: {self._codec.error.message}")
        head = frames[0].head
        if head.command != wanted:
            said = head.headers.get("message", head.command)
            raise ConnectionError(f"{self._address}: answered {command} with: {said}")
        return frames[0]

    def _why(self, error: OSError | None) -> str:
        """The reason in an ERROR of the node, which may still be unread when a write fails."""
        with contextlib.suppress(OSError):
            while error is not None and (data := self.socket.recv(READ_BYTES_MAX)):
                self._last_read = data
        found = ERROR_MESSAGE.search(self._last_read[-LAST_WORDS_BYTES:])
        reason = found[1].decode("utf-8", "backslashreplace") if found else str(error or "closed without a reason")
        return f"{self._address}: the node ended the connection: {reason}"


def _agreed(ours_ms: int, theirs: str) -> float:
    """Most seconds between two heart-beats of this side (STOMP 1.2, Heart-beating); 0 if one side wants none."""
    asked_ms = int(theirs.partition(",")[2] or 0)
    return max(ours_ms, asked_ms) / 1000 if ours_ms and asked_ms else 0.0
