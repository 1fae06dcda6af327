"""The mesh's commit logs in Spark, through PySpark: a data source, a sink, and the jobs built on them.

Needs the extra `qmq[spark]` and a Java runtime; nothing of the broker imports this package. What reads and plans
(`logs`, `plan`, `columns`, `options`) works without Spark; `source` is what Spark calls.
"""
