"""The recipes of the page, as they are printed, on three nodes: only addresses and paths are those of the test."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest
import yaml

from qmq.spark.archive.table import open_table
from tests.spark.rig import START_US, A, batch, node, record
from tests.support.cluster_mesh import Cluster
from tests.support.pages import addresses, blocks, moved, paste

PAGE = "docs/spark-recipes.md"
QUEUE = "/queue/orders"
BODIES = [b'{"order": %d}' % number for number in range(20)]


@pytest.fixture
def orders(mesh: Cluster) -> Cluster:
    """With twenty orders, which all nodes have."""
    mesh.client("a").publish(QUEUE, *BODIES)
    mesh.wait_until_same()
    return mesh


def here(text: str, mesh: Cluster, folder: Path) -> str:
    (folder / "data").mkdir(exist_ok=True)
    paths = {
        "/data/": f"{folder}/data/",
        "/var/lib/qmq/a": str(mesh.fleet.nodes["a"].data),
        "/var/log/": f"{folder}/",
        "/usr/local/bin/qmq": f"{folder}/bin/qmq",
    }
    return moved(text, {**addresses(mesh), **paths})


def block(kind: str, word: str) -> str:
    """The one block of a kind that has this word."""
    (found,) = [text for text in blocks(PAGE, kind) if word in text]
    return found


def archived(folder: Path) -> list[bytes]:
    bodies: list[bytes] = open_table(f"{folder}/data/archive").to_pyarrow_table()["body"].to_pylist()
    return sorted(bodies)


def ran(command: str, folder: Path) -> str:
    done = paste(command, folder)
    assert done.returncode == 0, done.stdout
    return done.stdout


def bare(command: str) -> str:
    """Run by `sh`, with no more variables than cron and systemd set, and those that find this tree."""
    path = "$(dirname $(command -v sh)):/usr/bin:/bin"
    return f'env -i PATH={path} PYTHONPATH="$PYTHONPATH" sh -c {shlex.quote(command)}'


def test_the_timer_starts_an_audit(orders: Cluster, tmp_path: Path) -> None:
    service, timer = (here(text, orders, tmp_path) for text in blocks(PAGE, "ini"))
    (command,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)

    assert "clean" in ran(bare(command), tmp_path)
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        units = tmp_path / "qmq-audit.service", tmp_path / "qmq-audit.timer"
        for unit, text in zip(units, (service.replace("User=qmq\n", ""), timer), strict=True):
            unit.write_text(text)
        done = subprocess.run([verify, "verify", *units], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_cron_runs_the_archive(orders: Cluster, tmp_path: Path) -> None:
    (line,) = here(block("cron", "archive"), orders, tmp_path).splitlines()
    command = line.split(maxsplit=6)[6]

    ran(f"{bare(command)}\n{bare(command)}", tmp_path)

    assert archived(tmp_path) == sorted(BODIES)
    assert len((tmp_path / "qmq.log").read_text().splitlines()) == 2


class Operator:
    """Stands for Airflow's BashOperator, and remembers in which order they are to run."""

    made: list["Operator"]

    def __init__(self, task_id: str, bash_command: str) -> None:
        self.command = bash_command
        self.made.append(self)

    def __rshift__(self, after: Self) -> Self:
        assert self.made.index(self) < self.made.index(after)
        return after


class Dag:
    """Stands for Airflow's DAG."""

    def __init__(self, dag_id: str, **said: Any) -> None:
        assert said.keys() <= {"schedule", "start_date", "catchup", "max_active_runs"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_the_tasks_of_the_airflow_file_run_in_their_order(
    orders: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("airflow.providers.standard.operators.bash", "airflow.sdk"):
        stand_in = ModuleType(name)
        vars(stand_in).update(BashOperator=Operator, DAG=Dag)
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.setattr(Operator, "made", [], raising=False)

    exec(here(block("python", "airflow"), orders, tmp_path), {})
    for task in Operator.made:
        ran(task.command, tmp_path)

    assert len(archived(tmp_path)) == 20
    rows = open_table(f"{tmp_path}/data/orders").to_pyarrow_table(columns=["order"])["order"].to_pylist()
    assert sorted(rows) == list(range(20))


def test_the_query_of_dbt_runs_on_the_archive(orders: Cluster, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    ran(here(block("cron", "archive"), orders, tmp_path).strip().split(maxsplit=6)[6], tmp_path)
    profile = yaml.safe_load(block("yaml", "outputs"))["qmq"]
    (source,) = yaml.safe_load(here(block("yaml", "sources"), orders, tmp_path))["sources"]
    (table,) = source["tables"]

    name = f"{{{{ source('{source['name']}', '{table['name']}') }}}}"
    query = block("sql+jinja", name).replace(name, "messages")
    with duckdb.connect() as connection:
        delta = open_table(table["config"]["meta"]["delta_table_path"])
        connection.register("messages", delta.to_pyarrow_dataset())
        rows = connection.sql(query).fetchall()

    assert profile["outputs"][profile["target"]]["plugins"] == [{"module": source["config"]["plugin"]}]
    assert [row[1:] for row in rows] == [(QUEUE, 20, sum(map(len, BODIES)))]


def test_windows_are_written_once_the_watermark_has_passed(spark: Any, tmp_path: Path) -> None:
    """Messages a second apart, and one two minutes later; of twelve seconds the first ten are a window."""
    log = node(tmp_path, "a")
    at = [START_US + 1_000_000 * seconds for seconds in range(12)] + [START_US + 120_000_000]
    log.segment([batch(A, 1, [record(number, at_us=time) for number, time in enumerate(at, 1)])])
    code = block("python", "withWatermark").replace("/var/lib/qmq/a", str(tmp_path / "a"))

    exec(code.replace("/data/", f"{tmp_path}/"), {})

    rows = spark.read.parquet(f"{tmp_path}/counts").orderBy("window.start").collect()
    assert [(row["count"], row.destination) for row in rows] == [(10, "/queue/jobs"), (2, "/queue/jobs")]


def test_the_cells_of_the_notebook_run_one_after_the_other(spark: Any, orders: Cluster, tmp_path: Path) -> None:
    ran(here(block("cron", "archive"), orders, tmp_path).strip().split(maxsplit=6)[6], tmp_path)
    orders.client("b").publish(QUEUE, b"{}")
    orders.wait_until_same()
    first, second = (here(block("python", word), orders, tmp_path) for word in ("createOrReplace", "toPandas"))
    names: dict[str, Any] = {}

    exec(first, names)
    *lines, shown = second.strip().splitlines()
    exec("\n".join(lines), names)
    frame = eval(shown, names)

    assert [tuple(row)[:2] for row in frame.itertuples(index=False)] == [(QUEUE, 21)]
