"""The job on the page "Spark over HTTP", as it is printed there, on three nodes of which the first is down."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

PAGE = Path(__file__).parents[3] / "docs" / "spark-http.md"


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_job_sends_and_receives_over_http_while_a_node_is_dead(mesh: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    job, target = tmp_path / "orders.py", tmp_path / "orders"
    job.write_text(program, "utf-8")
    nodes = ",".join("{}:{}".format(*mesh.web_address(name)) for name in "abc")
    mesh.kill("a")

    # `spark-submit` is a script of the same package, which a test need not find.
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(job), nodes, str(target)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "1000 orders"
    assert sorted(order["id"] for order in orders_in(target)) == list(range(1000))
    eventually(lambda: sum(mesh.depth(name, "/queue/orders") for name in "bc") == 0, "messages are left")


def orders_in(folder: Path) -> list[dict[str, int]]:
    from pyarrow import parquet

    return [json.loads(body) for body in parquet.read_table(folder).column("body").to_pylist()]
