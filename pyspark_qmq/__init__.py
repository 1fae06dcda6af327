"""Makes `spark.read.format("qmq")` known: Spark imports every module whose name begins with `pyspark_`."""

from qmq.spark.source import QmqSource as DefaultSource

__all__ = ["DefaultSource"]
