"""A TCP proxy on loopback for the line between two nodes: each direction can be cut, delayed, or slow.

Three things can happen to a direction, and each to one alone or to both:

    cut     what comes is lost without an error: what was connected stays connected, a new connection is accepted and
            never answered, as behind a firewall that drops. When it heals, every connection that lived through the cut
            is closed, because bytes of it are lost.
    held    what comes waits, and arrives when it heals: as TCP does across a short break, where nothing is lost and
            everything is late.
    slow    so many bytes a second.
"""

import contextlib
import socket
import threading
import time

READ_BYTES = 64 << 10
SLICES = 20
"""A slow direction passes on what it may in a second in so many pieces."""

FORTH, BACK = 0, 1
"""The directions: from the end that dialled to the other one, and back."""
BOTH = (FORTH, BACK)


class _Line:
    """One connection: two sockets, and the directions in which bytes of it are lost."""

    def __init__(self, caller: socket.socket) -> None:
        self.sockets = [caller]
        self.lost: set[int] = set()


class Proxy:
    """Forwards 127.0.0.1:`port` to `target` until closed."""

    def __init__(self, port: int, target: tuple[str, int]) -> None:
        self.address = ("127.0.0.1", port)
        self._target = target
        self._changed = threading.Condition()
        self._dark: set[int] = set()
        self._held: set[int] = set()
        self._rate: float | None = None
        self._lines: set[_Line] = set()
        self._closed = False
        self.bytes_passed = 0
        self._listener = socket.create_server(self.address)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *ways: int) -> None:
        """From now on nothing passes in these directions, both without any."""
        with self._changed:
            self._dark |= set(ways or BOTH)
            for line in self._lines:
                line.lost |= self._dark

    def hold(self, *ways: int) -> None:
        """From now on what comes in these directions, both without any, waits until `heal`."""
        with self._changed:
            self._held |= set(ways or BOTH)

    def slow(self, bytes_per_second: float) -> None:
        """From now on each direction of each connection passes on no more than that."""
        with self._changed:
            self._rate = bytes_per_second

    def heal(self) -> None:
        """Let everything through as it comes; end the connections that a cut has damaged."""
        with self._changed:
            self._dark.clear()
            self._held.clear()
            self._rate = None
            broken = [line for line in self._lines if line.lost]
            self._changed.notify_all()
        for line in broken:
            _end(line)

    def close(self) -> None:
        """End everything."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            lines = list(self._lines)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for line in lines:
            _end(line)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                self._listener.close()
                return
            line = _Line(caller)
            with self._changed:
                self._lines.add(line)
                line.lost |= self._dark
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: _Line) -> None:
        """The life of one connection."""
        (caller,) = line.sockets
        if line.lost:  # connecting takes both directions
            with contextlib.suppress(OSError):
                while caller.recv(READ_BYTES):
                    continue
        else:
            self._wait_while_held(*BOTH)
            self._connect(line)
        with self._changed:
            self._lines.discard(line)
        for one in line.sockets:
            one.close()

    def _connect(self, line: _Line) -> None:
        try:
            callee = socket.create_connection(self._target)
        except OSError:
            return
        with self._changed:
            line.sockets.append(callee)
        (caller, _) = line.sockets
        back = threading.Thread(target=self._pump, args=(line, callee, caller, BACK), daemon=True)
        back.start()
        self._pump(line, caller, callee, FORTH)
        back.join()

    def _pump(self, line: _Line, source: socket.socket, sink: socket.socket, way: int) -> None:
        """Pass bytes on until one side ends; take and lose them while dark."""
        with contextlib.suppress(OSError):
            while data := source.recv(self._piece()):
                self._wait_while_held(way)
                if way in line.lost:
                    continue
                with self._changed:
                    self.bytes_passed += len(data)
                    rate = self._rate
                sink.sendall(data)
                if rate:
                    time.sleep(len(data) / rate)
        self._wait_while_held(way)
        if way not in line.lost:  # an end does not pass through a cut either
            _end(line)

    def _piece(self) -> int:
        rate = self._rate
        return READ_BYTES if rate is None else max(1, min(READ_BYTES, int(rate / SLICES)))

    def _wait_while_held(self, *ways: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._held.intersection(ways))


def _end(line: _Line) -> None:
    """Wake the thread that reads from it, which closes it."""
    for one in line.sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
