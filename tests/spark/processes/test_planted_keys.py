"""The key of an object store, planted in the environment of all processes, is in nothing that they write or answer."""

import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from qmq.spark.archive.storage import files_of
from tests.spark.kills import PATIENCE_SECONDS, TEST_SECONDS_MAX, Driver
from tests.spark.object_store import SECRET, StoreProcess
from tests.spark.processes.test_end_to_end import more, publisher
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

TABLE = "s3://bucket/some/archive"
WEB = ("metrics", "v1/control/overview", "v1/control/status", "v1/control/definitions/export")


class Commands:
    """Runs of `qmq`, and what each has printed."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        logs.mkdir()

    def run(self, *said: str) -> tuple[int, str]:
        log = self._logs / f"{len([*self._logs.iterdir()])}-{said[0]}"
        with Driver(log, "-m", "qmq", *said) as driver:
            code = driver.process.wait(PATIENCE_SECONDS)
        return code, log.read_text("utf-8", "replace")


def written(*roots: Path) -> Iterator[Path]:
    for root in roots:
        yield from (path for path in root.rglob("*") if path.is_file())


@pytest.mark.timeout(TEST_SECONDS_MAX)
@pytest.mark.parametrize("any_store", ["moto"], indirect=True)
def test_the_key_of_the_store_is_in_nothing_that_is_written_or_answered(
    any_store: StoreProcess, mesh: Cluster, tmp_path: Path
) -> None:
    home, node_file = mesh.fleet.nodes["a"].data, tmp_path / "node.toml"
    node_file.write_text(f'data = "{home}"\n')
    qmq, at, config = Commands(tmp_path / "logs"), ("--data", str(home)), ("--config", str(node_file))
    worker = publisher(mesh, "b", "/fanout/orders")
    worker.start()
    more([worker], 100)
    eventually(lambda: len(worker.receipted) >= 100, "nothing is sent")
    worker.enough()
    worker.wait()

    with_key = qmq.run("archives", "set", "archive", f"table=s3://id:{SECRET}@bucket/some/archive", *at)
    assert with_key[0] != 0 and "must have no keys in it" in with_key[1]
    assert qmq.run("archives", "set", "archive", f"table={TABLE}", *at)[0] == 0
    mesh.wait_until_same()
    once = ("archive", *config, "--once")
    eventually(lambda: not qmq.run(*once)[1].startswith("0 messages"), "nothing is archived", PATIENCE_SECONDS)
    assert qmq.run("archives", "set", "archive", "table=s3://missing/archive", *at)[0] == 0
    failed = qmq.run(*once)
    assert failed[0] == 1 and "missing" in failed[1], failed
    for said in ("definitions export", "archives list", "status", "conditions --past"):
        assert "archive" in qmq.run(*said.split(), *at)[1] or "conditions" in said
    assert str(home) in qmq.run("config", "show", *config)[1]
    assert qmq.run("backup", "make", str(tmp_path / "backups"), *config)[0] == 0
    assert qmq.run("support", str(tmp_path / "support.tar.gz"), *at, *config)[0] == 0
    with tarfile.open(tmp_path / "support.tar.gz") as support:
        support.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        support.extractall(tmp_path / "support")
    host, port = mesh.web_address("a")
    for path in WEB:
        with urllib.request.urlopen(f"http://{host}:{port}/{path}") as answer:
            (tmp_path / path.replace("/", "-")).write_bytes(answer.read())

    files = files_of(TABLE)
    everything = fs.FileSelector("", recursive=True)
    found = {one.path: files.open_input_file(one.path).read() for one in files.get_file_info(everything) if one.is_file}
    assert any(path.endswith(".parquet") for path in found)
    found |= {str(path): path.read_bytes() for path in written(tmp_path)}
    assert not [path for path, data in found.items() if SECRET.encode() in data]
