"""The progress of a run: its phase and its current rate, on one line of a terminal.

A workload reports the begin of a phase and, as often as it likes, its count. A RunProgress decides what is shown.
The default shows nothing and costs one call per read.
"""

import time
from collections.abc import Callable
from typing import Protocol

SHOW_SECONDS = 0.5
"""Between two changes of the line."""

TO_START_AND_CLEAR = "\r\x1b[K"


class RunProgress(Protocol):
    """Receives the progress of a run."""

    def phase(self, name: str) -> None:
        """A phase begins."""

    def saw(self, count: int) -> None:
        """So much has come in all since the phase began, or longer ago; only the difference counts."""

    def end(self) -> None:
        """Nothing more comes."""


class Silent:
    """Shows nothing."""

    def phase(self, name: str) -> None:
        return

    def saw(self, count: int) -> None:
        return

    def end(self) -> None:
        return


SILENT = Silent()


class Live:
    """Keeps one line of a terminal, through `write`, which must not buffer."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._phase = ""
        self._began = 0.0
        self._shown = 0.0
        self._count: int | None = None

    def phase(self, name: str) -> None:
        self._phase = name
        self._began = self._shown = self._clock()
        self._count = None
        self._write(f"{TO_START_AND_CLEAR}{name} …")

    def saw(self, count: int) -> None:
        now = self._clock()
        if self._count is None or count < self._count:
            self._count = count  # from here on: a new connection counts from 0
        if now - self._shown < SHOW_SECONDS:
            return
        rate = (count - self._count) / (now - self._shown)
        self._write(f"{TO_START_AND_CLEAR}{self._phase} … {now - self._began:.1f} s, {rate:,.0f}/s")
        self._shown = now
        self._count = count

    def end(self) -> None:
        self._write(TO_START_AND_CLEAR)
