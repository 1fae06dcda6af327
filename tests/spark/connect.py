"""What `test_connect` runs in a process of its own: a session of Spark Connect cannot stand beside a plain one.

Arguments: two data directories, the table of an archive, and one of JSON bodies. Prints one line of JSON.
"""

import json
import sys

from pyspark.sql import SparkSession

from qmq.spark import history
from qmq.spark.jobs.archive import archive, read_archive
from qmq.spark.jobs.audit import audit, audit_deep
from qmq.spark.reading.logs import DataDirectory
from qmq.spark.reading.options import read_options
from qmq.spark.typed.job import tables

early, late, table, typed = sys.argv[1:]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
archived = archive(spark, read_options({"path": early}), table)
rows = history(spark, table, path=late).collect()
done = tables(read_options({"path": late}), typed)
typed_rows = read_archive(spark, typed).collect()
directory = DataDirectory(late)
found = audit([directory])
audit_deep(spark, [directory], found)
facts = {
    "is_connect": "connect" in type(spark).__module__,
    "archived": archived.rows,
    "history": sorted(row.sequence for row in rows),
    "tables": [done.done.rows, done.drift.unparsed.total(), sorted(row.n or 0 for row in typed_rows)],
    "verified": found.bytes_verified > 0 and found.clean,
}
print(json.dumps(facts))
spark.stop()
