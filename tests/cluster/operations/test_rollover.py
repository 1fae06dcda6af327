"""A new authority for the links, node by node: no link ends, and in each step a restarted node links again."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from qmq.cli import main
from qmq.cli.launch import tail
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

TLS = '[mesh.tls]\ncertificate = "{0}/node.pem"\nkey = "{0}/node.key"\nca = "{0}/ca.pem"\n'


def run(*words: str) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator's folder, with certificates of nodes a, b and c."""
    folder = tmp_path_factory.mktemp("papers")
    run("cert", "ca", "--dir", str(folder))
    for name in "abc":
        run("cert", "node", name, "--dir", str(folder))
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, papers: Path) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("rollover")
    for name in "abc":
        copy_to_host(papers, folder, name)
    with Cluster(folder, secret=False, node_files={name: TLS.format(name) for name in "abc"}) as made:
        yield made


def copy_to_host(papers: Path, folder: Path, name: str) -> None:
    host = folder / name
    host.mkdir(exist_ok=True)
    for file in (papers / name).iterdir():
        (host / file.name).touch(0o600)
        (host / file.name).write_bytes(file.read_bytes())


def reload(mesh: Cluster, name: str) -> None:
    """SIGHUP; returns when the node has taken up its files."""
    node = mesh.fleet.nodes[name]
    process = node.process
    assert process is not None
    before = tail(node.log, 400).count("node.pem: renewed")
    process.send_signal(signal.SIGHUP)
    eventually(lambda: tail(node.log, 400).count("node.pem: renewed") > before, lambda: f"{name}: {tail(node.log, 5)}")


def links(mesh: Cluster) -> dict[str, tuple[int, int]]:
    """Link → since when the peer is linked, and how often this node has dialled."""
    rows = json.loads(run("links", "--json", "--data", str(mesh.fleet.nodes["a"].data)))["rows"]
    return {row["id"]: (row["in_since_us"], row["dialled"]) for row in rows}


def test_an_authority_is_replaced_without_losing_a_link(mesh: Cluster, papers: Path) -> None:
    for step in (["rollover", "begin"], ["renew", "--all"], ["rollover", "end"]):
        before = links(mesh)
        run("cert", *step, "--dir", str(papers))

        for name in "abc":
            copy_to_host(papers, mesh.folder, name)
            reload(mesh, name)
            assert links(mesh) == before, f"{step}, {name}"
            if name == "b":  # two nodes have taken the step, and one has not
                mesh.stop("b")
                mesh.start("b")
                mesh.wait_for_links()
                before = links(mesh)

    assert [mesh.conditions(name) & {"bad-certificate", "wrong-certificate", "reload"} for name in "abc"] == [set()] * 3
