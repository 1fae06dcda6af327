"""The Unix socket in the data directory, as a listener: only the user of the node, and root, are accepted.

The lock of the data directory is held, so a socket file that is found there is left from a killed process. A process
can connect only after `listen`, when the file already has its mode. The mode alone keeps other users out; the check of
the credentials also does so if the mode is changed later.
"""

import logging
import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from qmq.engine.runtime.sockets import LISTEN_BACKLOG, SocketPipe, accept
from qmq.environment import Pipe
from qmq.unix_socket import socket_path

CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group (unix(7), SO_PEERCRED)."""

MODE: Final = 0o600

log = logging.getLogger("qmq.node")


class LocalListener:
    """The listening socket at `path`. Raises OSError, with the path, if there can be none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.address = (str(path), 0)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if os.path.lexists(path):
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    raise OSError("a file that is no socket is in its place")
                path.unlink()
            with socket_path(path) as short:
                self._socket.bind(short)
            path.chmod(MODE)
            self._socket.listen(LISTEN_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise OSError(error.errno, f"cannot listen on {path}: {error.strerror or error}") from error
        self._socket.setblocking(False)

    async def accept(self) -> Pipe:
        while True:
            connected, _ = await accept(self._socket)
            user = peer_user(connected)
            if user in (0, os.geteuid()):
                return SocketPipe(connected, "local")
            log.warning("! %s: refused a process of user %d", self._path, user)
            connected.close()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            with suppress(OSError):
                self._path.unlink()
            self._socket.close()


def peer_user(connected: socket.socket) -> int:
    """The user id of the process at the other end, as the kernel saw it at `connect`."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    user: int = CREDENTIALS.unpack(found)[1]
    return user
