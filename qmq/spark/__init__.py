"""The mesh's commit logs in Spark, through PySpark: a data source, a sink, and the jobs built on them.

Needs the extra `qmq[spark]` and a Java runtime; nothing of the broker imports this package. What reads and plans
(`reading`) works without Spark; `source` is what Spark calls. `history` is the one function
that most queries begin with; it is imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qmq.spark.history_frame import history

__all__ = ["history"]


def __getattr__(name: str) -> Any:
    if name == "history":
        from qmq.spark.history_frame import history

        return history
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
