"""Jobs on the mesh's history. Each is a plain function of a session and values; `qmq pipeline` and `spark-submit` run
them (`python -m qmq.spark.jobs JOB …` is the same command)."""
