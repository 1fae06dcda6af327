"""The jobs through Spark Connect, which has neither a Spark context nor RDDs."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.spark.object_store import StoreProcess
from tests.spark.rig import A, batch, node, record

pytestmark = pytest.mark.skipif(find_spec("grpc") is None, reason="Spark Connect is not installed")


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_archive_history_tables_and_deep_audit_run_through_spark_connect(store: StoreProcess, tmp_path: Path) -> None:
    """The archive is in an object store, the typed table in a directory."""
    bodies = [record(n, b'{"n": %d}' % n if n < 6 else b"no json") for n in range(1, 7)]
    node(tmp_path / "early", "a").segment([batch(A, 1, bodies[:3])])
    node(tmp_path / "late", "a").segment([batch(A, 1, bodies[:3]), batch(A, 4, bodies[3:])])
    early, late, typed = (str(tmp_path / name) for name in ("early/a", "late/a", "typed"))
    paths = [early, late, "s3://bucket/table", typed]
    root = Path(__file__).parents[3]
    local = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(root)}

    command = [sys.executable, "-m", "tests.spark.connect", *paths]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **local}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "is_connect": True,
        "archived": 3,
        "history": [1, 2, 3, 4, 5, 6],
        "tables": [6, 1, [0, 1, 2, 3, 4, 5]],
        "verified": True,
    }
