"""One blocking client of a process, for frameworks whose calls stand in no block: connected on first use, in each
process, and again when it has given up.
"""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from threading import Lock
from typing import Unpack
from weakref import WeakMethod

from qmq.client import blocking
from qmq.client.options import ConnectOptions


class ProcessClient:
    """`addresses` and `options` are those of `qmq.client.blocking.connect`. All threads may use it."""

    def __init__(self, addresses: str | Iterable[str], **options: Unpack[ConnectOptions]) -> None:
        self._addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        self._options = options
        self._lock = Lock()
        self._opened = ExitStack()
        self._client: blocking.Client | None = None
        begin_in_child = WeakMethod(self._begin_in_child)
        os.register_at_fork(after_in_child=lambda: (begin_in_child() or int)())

    @property
    def client(self) -> blocking.Client:
        """The client of this process; another one if it has given up. Raises NotConnected, Refused."""
        with self._lock:
            if self._client is None or self._client.is_closed:
                self._opened.close()
                opened = ExitStack()
                self._client = opened.enter_context(blocking.connect(self._addresses, **self._options))
                self._opened = opened
            return self._client

    def close(self) -> None:
        """Disconnect, after what was sent is confirmed. The next use connects again."""
        with self._lock:
            self._client = None
            self._opened.close()

    def _begin_in_child(self) -> None:
        """A thread of the parent may hold the lock, and the client is the parent's."""
        self._lock, self._opened, self._client = Lock(), ExitStack(), None
