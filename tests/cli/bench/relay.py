"""A small broker in a thread, for what measures brokers: it can lose, repeat, hold back and refuse messages.

Every subscriber of a destination gets every message, which is right for a queue with one consumer too. A queue without
a consumer keeps its messages for the first one.
"""

import socket
import threading
from collections import Counter

import pytest

from qmq.bench import exchange, paced
from qmq.wire.stomp import Connection, Frame, Role, Version, encode_frame


def answer(command: str, headers: list[tuple[str, str]], body: bytes = b"") -> bytes:
    return encode_frame(command, headers, body, version=Version.V12)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `qmq bench` give up soon on what a relay never delivers."""
    for module in (exchange, paced):
        monkeypatch.setattr(module, "GIVE_UP_SECONDS", 0.2)
    monkeypatch.setattr(exchange, "STALL_SECONDS", 0.2)


class Relay:
    """Listens while its `with` lasts. Set a fault before a client comes; all count messages from 1.

    `lose` and `repeat` name one message; `refuse` answers that one with ERROR and closes; `hold` delivers nothing
    from that one on. Messages can go to the subscribers of another relay too, as in a mesh.
    """

    def __init__(
        self, *, lose: int = 0, repeat: int = 0, refuse: int = 0, hold: int = 0, heart_beat: str = "0,0"
    ) -> None:
        self.lose, self.repeat, self.refuse, self.hold = lose, repeat, refuse, hold
        self.heart_beat = heart_beat
        self.beats = 0
        """Reads that were a line end alone."""
        self.connects: list[dict[str, str]] = []
        self.sent = 0
        self.bodies: set[bytes] = set()
        self.headers: list[dict[str, str]] = []
        """Of SUBSCRIBEs, and of one SEND for each different header block."""
        self.delivered: set[str] = set()
        self.acked: Counter[str] = Counter()
        self.longest_run = 0
        """Most messages taken and not delivered."""
        self.kept: dict[str, list[tuple[int, bytes]]] = {}
        """Unconsumed messages of each queue, with their numbers."""
        self._other: Relay | None = None
        self._leave_out = 0
        self._heads: set[int] = set()
        self._lock = threading.Lock()
        self._subscribers: list[tuple[socket.socket, dict[str, str]]] = []
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.at = "{}:{}".format(*self._listener.getsockname())

    def __enter__(self) -> "Relay":
        self._start(self._accept)
        return self

    @property
    def loses(self) -> bool:
        """Whether something of what it takes is never delivered."""
        return bool(self.lose or self.hold or self._leave_out)

    def forwards_to(self, other: "Relay", leave_out: int = 0) -> None:
        """From now on messages go there too, but for the one that `leave_out` counts."""
        self._other, self._leave_out = other, leave_out

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "the generator left a connection open"
        self._listener.close()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]  # any callable
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        codec = Connection(Role.SERVER)
        with connection:
            try:
                while data := connection.recv(65536):
                    self.beats += data == b"\n"
                    for frame in codec.receive(data):
                        with self._lock:
                            if not self._obey(connection, frame):
                                # Closing with unread bytes would take the ERROR from the client.
                                connection.shutdown(socket.SHUT_WR)
                                while connection.recv(65536):
                                    continue
                                return
                    assert codec.error is None, codec.error
            except ConnectionError:
                return

    def _obey(self, connection: socket.socket, frame: Frame) -> bool:
        command, headers = frame.head.command, frame.head.headers
        if command == "CONNECT":
            self.connects.append(headers)
            connection.sendall(answer("CONNECTED", [("version", "1.2"), ("heart-beat", self.heart_beat)]))
        elif command == "SUBSCRIBE":
            self._subscribers.append((connection, headers))
            self.headers.append(headers)
            for number, body in self.kept.pop(headers["destination"], []):
                self._deliver(headers["destination"], number, body)
        elif command == "ACK":
            self.acked[headers["id"]] += 1
        elif command == "SEND" and not self._take(connection, frame):
            return False
        if frame.receipt is not None:
            connection.sendall(answer("RECEIPT", [("receipt-id", frame.receipt)]))
        return True

    def _take(self, connection: socket.socket, frame: Frame) -> bool:
        self.sent += 1
        self.bodies.add(frame.body)
        if id(frame.head) not in self._heads:
            self._heads.add(id(frame.head))
            self.headers.append(frame.head.headers)
        if self.sent == self.refuse:
            connection.sendall(answer("ERROR", [("message", "enough of you")]))
            return False
        if self.sent == self.lose:
            if frame.receipt is not None:
                frame.receipt = None
            return True
        if self.hold and self.sent >= self.hold:
            return True
        for _ in range(2 if self.sent == self.repeat else 1):
            destination = frame.head.headers["destination"]
            taken = self._deliver(destination, self.sent, frame.body)
            if self._other is not None and self.sent != self._leave_out:
                with self._other._lock:
                    taken |= self._other._deliver(destination, self.sent, frame.body)
            if not taken and destination.startswith("/queue/"):
                self.kept.setdefault(destination, []).append((self.sent, frame.body))
        return True

    def _deliver(self, destination: str, message: int, body: bytes) -> bool:
        """Whether anybody was there to get it."""
        anybody = False
        for number, (subscriber, wanted) in enumerate(self._subscribers):
            if wanted["destination"] != destination:
                continue
            anybody = True
            name = f"{number}-{message}"
            headers = [("subscription", wanted["id"]), ("message-id", name)]
            headers.append(("destination", wanted["destination"]))
            if wanted["ack"] != "auto":
                headers.append(("ack", name))
            self.delivered.add(name)
            subscriber.sendall(answer("MESSAGE", headers, body))
        return anybody
