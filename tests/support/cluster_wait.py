"""Waiting for what must become true, in tests with real processes: a condition, or a failure that is a sentence."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.03
PATIENCE_SECONDS = 60.0
"""Long enough for a machine that is busy with other things; what works needs a small part of it."""


def eventually(condition: Callable[[], T], sentence: str | Callable[[], str], seconds: float = PATIENCE_SECONDS) -> T:
    """Ask `condition` until it is true and return what it gave; fail with `sentence` after `seconds`.

    A callable `sentence` is asked at the end, so that it can tell how far things had come.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{sentence if isinstance(sentence, str) else sentence()} (waited {seconds:g} s)")
        pause.wait(POLL_SECONDS)
