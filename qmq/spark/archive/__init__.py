"""The archive: a Delta table that has each message of a mesh once. Free of Spark, so `qmq archive` needs no JVM."""
