"""What a service manager hears of this process, by sd_notify(3): that it serves, that it lives, and that it stops.

Only if it asks for it, as systemd does for `Type=notify` and `WatchdogSec`. All calls are from the event loop: if that
hangs, the watchdog hears nothing, and restarts the node.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

import trio


class ServiceManager:
    """Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID of `environment`. Without the first, nothing is sent."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        is_watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        period = environment.get("WATCHDOG_USEC", "") if is_watched and self._address else ""
        self._beat_seconds = int(period) / 2e6 if period.isascii() and period.isdigit() else 0.0

    def ready(self) -> None:
        """All listeners are open."""
        self._send(b"READY=1")

    def stopping(self) -> None:
        """The node drains."""
        self._send(b"STOPPING=1")

    async def run(self) -> None:
        """Twice in each period of the watchdog, until cancelled; returns at once if there is none."""
        while self._beat_seconds:
            self._send(b"WATCHDOG=1")
            await trio.sleep(self._beat_seconds)

    def _send(self, state: bytes) -> None:
        if not self._address:
            return
        # A name that begins with @ is in no file system. If systemd does not listen, there is nothing to do about it.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state, f"\0{self._address[1:]}" if self._address.startswith("@") else self._address)
