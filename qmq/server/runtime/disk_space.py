"""What is done when a disk has no room: it is tried again until there is some."""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from qmq.environment import World
from qmq.errors import DiskFull

ROOM_SECONDS: Final = 1.0
"""Between two tries, and between two looks at a full disk."""

T = TypeVar("T")


async def when_there_is_room(world: World, call: Callable[[], T]) -> T:
    """What the blocking `call` returns, which changes nothing when it raises DiskFull."""
    while True:
        try:
            return await world.run_blocking(call)
        except DiskFull:
            await trio.sleep(ROOM_SECONDS)
