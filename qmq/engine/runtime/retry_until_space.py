"""Retries a call while the disk has no room, until there is some."""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from qmq.environment import Environment
from qmq.errors import DiskFull

SPACE_SECONDS: Final = 1.0
"""Between two attempts, and between two checks of a full disk."""

T = TypeVar("T")


async def when_space_is_free(environment: Environment, call: Callable[[], T]) -> T:
    """Return the result of the blocking `call`, which changes nothing when it raises DiskFull."""
    while True:
        try:
            return await environment.run_blocking(call)
        except DiskFull:
            await trio.sleep(SPACE_SECONDS)
