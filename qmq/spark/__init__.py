"""The mesh's commit logs in Spark, through PySpark: a data source, a sink, and the jobs built on them.

Needs the extra `qmq[spark]` and a Java runtime; nothing of the broker imports this package. What reads and plans
(`reading`) works without Spark; `source` is what Spark calls. `history` is the function that most queries begin with,
and `backfill` is for streams; they are imported when they are first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qmq.spark.history_frame import backfill, history

__all__ = ["backfill", "history"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from qmq.spark import history_frame

        return getattr(history_frame, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
