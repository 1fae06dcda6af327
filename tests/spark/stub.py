"""What the stubs of nodes have in common, and a node that only takes what is published to it."""

import contextlib
import socket
import threading

from qmq.wire.stomp import Connection, Frame, Role, encode_frame


class Host:
    """A port on loopback; each connection to it is served in a thread of its own."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Nobody gets in any more once this returns: a thread that waits in accept would still let one in."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        raise NotImplementedError


class Stub(Host):
    """A node that takes SENDs, gives receipts and remembers; it closes connections after `lives` SENDs of each."""

    def __init__(self, lives: list[int]) -> None:
        self.sends: list[Frame] = []
        self._lives = lives
        self._lock = threading.Lock()
        super().__init__()

    def _serve(self, peer: socket.socket) -> None:
        codec = Connection(Role.SERVER)
        with self._lock:
            left = self._lives.pop(0) if self._lives else 1 << 30
        with peer:
            while data := peer.recv(65536):
                for frame in codec.receive(data):
                    if frame.head.command != "SEND":
                        peer.sendall(encode_frame("CONNECTED", [("version", "1.2")]))
                        continue
                    if not left:
                        return
                    left -= 1
                    with self._lock:
                        self.sends.append(frame)
                    peer.sendall(encode_frame("RECEIPT", [("receipt-id", frame.receipt or "")]))
