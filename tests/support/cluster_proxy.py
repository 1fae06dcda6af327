"""A TCP proxy on loopback that can go dark, for cutting the line between two nodes.

While cut, nothing comes through in either direction and nobody is told: what was connected stays connected, a new
connection is accepted and never answered, as behind a firewall that drops. When it heals, every connection that
lived through the cut is closed, because bytes of it are lost.
"""

import contextlib
import socket
import threading

READ_BYTES = 64 << 10


class Proxy:
    """Forwards 127.0.0.1:`port` to `target` until closed."""

    def __init__(self, port: int, target: tuple[str, int]) -> None:
        self.address = ("127.0.0.1", port)
        self._target = target
        self._lock = threading.Lock()
        self._cut = False
        self._sockets: set[socket.socket] = set()
        self._broken: set[socket.socket] = set()
        self.bytes_passed = 0
        self._listener = socket.create_server(self.address)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing passes."""
        with self._lock:
            self._cut = True
            self._broken |= self._sockets

    def heal(self) -> None:
        """Let new connections through; end those that the cut has damaged."""
        with self._lock:
            self._cut = False
            broken, self._broken = self._broken, set()
        for one in broken:
            _end(one)

    def close(self) -> None:
        """End everything."""
        _end(self._listener)
        with self._lock:
            sockets = set(self._sockets)
        for one in sockets:
            _end(one)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                self._listener.close()
                return
            with self._lock:
                dark = self._cut
                self._sockets.add(caller)
                if dark:
                    self._broken.add(caller)
            threading.Thread(target=self._swallow if dark else self._connect, args=(caller,), daemon=True).start()

    def _connect(self, caller: socket.socket) -> None:
        try:
            callee = socket.create_connection(self._target)
        except OSError:
            self._forget(caller)
            return
        with self._lock:
            self._sockets.add(callee)
            if self._cut:
                self._broken |= {caller, callee}
        back = threading.Thread(target=self._pump, args=(callee, caller), daemon=True)
        back.start()
        self._pump(caller, callee)
        back.join()
        self._forget(caller)
        self._forget(callee)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass bytes on until one side ends; take and lose them while dark."""
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                if source not in self._broken:
                    with self._lock:
                        self.bytes_passed += len(data)
                    sink.sendall(data)
        if source not in self._broken:  # an end does not pass through a cut either
            _end(sink)
            _end(source)

    def _swallow(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while caller.recv(READ_BYTES):
                continue
        self._forget(caller)

    def _forget(self, one: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(one)
            self._broken.discard(one)
        one.close()


def _end(one: socket.socket) -> None:
    """Wake whoever reads from it; that thread closes it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
