"""When no node answers, all are asked again: for how long, and after which pauses. A node that restarts comes back."""

import random
import time
from collections.abc import Iterator
from typing import Final

RETRY_SECONDS: Final = 60.0
"""A node that restarts on a busy machine needs half of it."""
PAUSE_SECONDS: Final = 0.25
"""After the first round; twice as long each time, up to the next figure."""
PAUSE_SECONDS_MAX: Final = 4.0


def rounds(seconds: float) -> Iterator[None]:
    """One round at once, and more, each after a pause, until `seconds` are over."""
    end, longest = time.monotonic() + seconds, PAUSE_SECONDS
    while True:
        yield
        left = end - time.monotonic()
        if left <= 0:
            return
        # Half of it by chance: all tasks of a job have lost the same node at the same moment.
        time.sleep(min(left, longest * random.uniform(0.5, 1.0)))
        longest = min(PAUSE_SECONDS_MAX, 2 * longest)
