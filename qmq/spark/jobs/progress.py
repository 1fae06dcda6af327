"""The progress of a Spark job: tasks done of all tasks, polled from Spark a few times per second."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

ASK_SECONDS: Final = 0.3

ProgressReport = Callable[[int, int], None]
"""Called with tasks done and tasks in all."""


@contextmanager
def watched(spark: SparkSession, report: ProgressReport | None) -> Iterator[None]:
    """Report the jobs that the block starts, from a thread of its own; of none through Spark Connect, which has no
    context to ask.
    """
    context = getattr(spark, "sparkContext", None)
    if report is None or context is None:
        yield
        return
    tracker = context.statusTracker()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(ASK_SECONDS):
            done = total = 0
            for stage_id in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    done += stage.numCompletedTasks
                    total += stage.numTasks
            if total:
                report(done, total)

    watcher = threading.Thread(target=watch, name="qmq-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
