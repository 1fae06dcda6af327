"""Runs one after the other, for as long as a service lasts: what is waited for, and what ends it.

How long a pause is and what a failure means is decided here; what a run is, and how one waits, are arguments.
"""

import time
from collections.abc import Callable
from typing import Final

from deltalake.exceptions import DeltaError

from qmq.errors import NotConnected, QmqError
from qmq.spark.archive.run import Archived
from qmq.spark.archive.table import Overtaken

FOLLOW_FAILURES_MAX: Final = 10
"""Runs of Spark in a row that may fail: a worker may be killed, a disk full for an hour."""
FOLLOW_PAUSE_SECONDS_MAX: Final = 600.0
"""Between runs after failures, unless they are further apart in any case. It grows from the usual one."""

Errors = tuple[type[Exception], ...]
MENDED_LATER: Final[Errors] = (QmqError, DeltaError, OSError)
"""What a later run may get over."""


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def follow(
    run: Callable[[], Archived],
    *,
    every_seconds: float,
    on_run: Callable[[Archived], bool],
    failed: Callable[[Exception, float], None],
    pause: Callable[[float], bool] = _sleep,
    mended_later: Errors = MENDED_LATER,
    final: Errors = (),
    failures_max: int | None = None,
) -> None:
    """Run repeatedly, until `on_run`, which is called after each run, returns False, or `pause` returns True.

    After a run that has failed, `failed` is called with the seconds until the next one. Nodes that do not answer, and
    other runs that were first, are waited for without end, at the usual pace. After other failures the pause grows;
    the last of `failures_max` in a row is raised. `final` are raised at once, and so is all that is not `mended_later`.
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
        except final:
            raise
        except mended_later as error:
            failures += 1
            if failures == failures_max:
                raise
            seconds = max(seconds, min(seconds * 2 ** min(failures - 1, 20), FOLLOW_PAUSE_SECONDS_MAX))
            failed(error, seconds)
        if pause(max(0.0, seconds - (time.monotonic() - began))):
            return
