"""Single keys of a terminal, without waiting for a line, and without an echo."""

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .view import DOWN, ENTER, ESCAPE, UP

NAMES: Final = {"\x1b[A": UP, "\x1bOA": UP, "\x1b[B": DOWN, "\x1bOB": DOWN, "\r": ENTER, "\n": ENTER, "\x1b": ESCAPE}
"""What terminals send (xterm, ECMA-48) → the name of the key."""

SCREEN, BACK, HOME, CLEAR_LINE, CLEAR_BELOW = (
    "\x1b[?1049h\x1b[?25l",
    "\x1b[?25h\x1b[?1049l",
    "\x1b[H",
    "\x1b[K",
    "\x1b[J",
)
"""The second screen without a cursor, and back; to the first line; what is right of the cursor, and below it."""


@contextmanager
def keys() -> Iterator[None]:
    """The terminal on its second screen, and `next_key` inside. Both end with the block, whatever ends it."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    sys.stdout.write(SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(BACK)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def next_key(seconds: float) -> str | None:
    """The key that is pressed within this time; None if there is none. The end of input is the key `q`."""
    ready, _, _ = select.select([sys.stdin], [], [], max(0.0, seconds))
    if not ready:
        return None
    text = os.read(sys.stdin.fileno(), 8).decode("utf-8", "replace")
    return NAMES.get(text, text[:1]) if text else "q"


def show(lines: list[str]) -> None:
    """Draw the whole screen."""
    sys.stdout.write(HOME + "\n".join(line + CLEAR_LINE for line in lines) + CLEAR_BELOW)
    sys.stdout.flush()
