"""Jobs on the mesh's history: plain functions of a session and values, which `qmq pipeline` and `spark-submit` run."""
