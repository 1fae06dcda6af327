"""Runs one after the other, for as long as a service lasts: what is waited for, and for how long.

What a run is, and how one waits, are arguments.
"""

import time
from collections.abc import Callable
from typing import Final

from qmq.errors import NotConnected
from qmq.spark.archive.run import Archived
from qmq.spark.archive.table import Overtaken

FOLLOW_PAUSE_SECONDS_MAX: Final = 600.0
"""Between runs after failures, unless they are further apart in any case. It grows from the usual one."""


def follow(
    run: Callable[[], Archived],
    *,
    every_seconds: float,
    on_run: Callable[[Archived], bool],
    failed: Callable[[Exception, float], None],
    pause: Callable[[float], bool],
) -> None:
    """Run repeatedly, until `on_run`, which is called after each run, returns False, or `pause` returns True.

    No error ends it: `failed` is called with the seconds until the next run. Nodes that do not answer, and other runs
    that were first, are waited for at the usual pace. After other failures the pause grows.
    """
    failures = 0
    while True:
        began, seconds = time.monotonic(), every_seconds
        try:
            if not on_run(run()):
                return
            failures = 0
        except (NotConnected, Overtaken) as error:
            failed(error, seconds)
        except Exception as error:
            failures += 1
            seconds = max(seconds, min(seconds * 2 ** min(failures - 1, 20), FOLLOW_PAUSE_SECONDS_MAX))
            failed(error, seconds)
        if pause(max(0.0, seconds - (time.monotonic() - began))):
            return
