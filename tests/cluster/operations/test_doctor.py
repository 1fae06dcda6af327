"""`qmq doctor` on a running mesh: nothing wrong, then a node that is gone, and a queue of dead letters."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qmq.cli import main
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("doctor"), node_file=PATIENT_NODE_FILE) as made:
        yield made


def doctor(mesh: Cluster) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the findings that are no matter of the disk and clock of this machine."""
    result = CliRunner().invoke(main, ["doctor", "--at", mesh.at("a"), "--json"])
    return result.exit_code, [one for one in json.loads(result.stdout)["findings"] if "fsync" not in one["message"]]


def test_a_mesh_is_well_until_a_node_ends_or_letters_die(mesh: Cluster) -> None:
    mesh.wait_until_clear()
    assert doctor(mesh) == (0, [])

    sender = mesh.client("b")
    sender.publish("/queue/dead-letters", b"failed")
    mesh.kill("c")
    eventually(lambda: mesh.misses("a", "c"), "a still calls its links with c up after c was killed")

    eventually(lambda: doctor(mesh)[0], "the node that ended is no finding")

    code, findings = doctor(mesh)
    assert code == 1
    wheres = {one["where"]: one for one in findings}
    assert wheres["c"]["message"] == "does not answer"
    assert wheres["/queue/dead-letters"]["message"].startswith("1 dead letter")


def test_what_support_packs_of_a_mesh_has_the_status_of_a_node(mesh: Cluster, tmp_path: Path) -> None:
    output = tmp_path / "shop.tar.gz"

    result = CliRunner().invoke(main, ["support", str(output), "--at", mesh.at("a")])

    assert result.exit_code == 0, result.output
    with tarfile.open(output) as packed:
        status = packed.extractfile("shop/node/status.json")
        assert status is not None
        assert json.load(status)["node"] == "a"
        assert "shop/mesh/findings.txt" in packed.getnames()
