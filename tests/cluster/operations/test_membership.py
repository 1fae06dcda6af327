"""The mesh changes while it works: a fourth node joins under load, one leaves for good, and may not come back."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import CLUSTER
from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_mesh import ROOT, Cluster
from tests.support.cluster_wait import eventually
from tests.support.cluster_work import Publisher


class Changing:
    """Five nodes of which three run, with a peers file that grows and shrinks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        head, *nodes = cluster.peers_text.split("[[nodes]]")
        self._head = head
        self._nodes = dict(zip(cluster.names, nodes, strict=True))
        self._file = cluster.folder / "peers-now.toml"
        self.version = 0
        for name in cluster.names:
            cluster.fleet.peers_files[name] = self._file

    def write(self, *names: str) -> None:
        """The next version of the file, for every node."""
        self.version += 1
        head = self._head.replace("version = 1", f"version = {self.version}")
        self._file.touch(0o600)
        self._file.write_text("[[nodes]]".join([head, *(self._nodes[name] for name in names)]), "utf-8")

    def leave_behind(self, name: str) -> None:
        """This node keeps the file that there is now."""
        path = self.cluster.folder / f"peers-{name}.toml"
        path.touch(0o600)
        path.write_text(self._file.read_text("utf-8"), "utf-8")
        self.cluster.fleet.peers_files[name] = path

    def hang_up(self, *names: str) -> None:
        """SIGHUP to these; returns when they go by the present version."""
        for name in names:
            process = self.cluster.fleet.nodes[name].process
            assert process is not None
            process.send_signal(signal.SIGHUP)
        for name in names:
            eventually(
                lambda n=name: self.membership(n).get("peers_version") == self.version,
                lambda n=name: f"{n} goes by {self.membership(n)}, reports {self.cluster.reported(n)}",
            )

    def membership(self, name: str) -> dict[str, Any]:
        return dict(self.cluster.status(name).get("membership", {}))

    def until_counted(self, *names: str) -> None:
        """None of them is a learner, as they say and as the others see it."""
        eventually(
            lambda: all(self._is_whole(name, names) for name in names),
            lambda: f"learners are left: { {name: self.membership(name) for name in names} }",
        )

    def _is_whole(self, name: str, names: tuple[str, ...]) -> bool:
        status = self.cluster.status(name)
        learners = [peer["name"] for peer in status.get("peers", ()) if peer["learner"] and peer["name"] in names]
        return bool(status) and not status["membership"]["learner"] and not learners

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`qmq` as an operator runs it."""
        return subprocess.run(
            [sys.executable, "-m", "qmq", *words], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
        )


@pytest.fixture
def changing(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Changing]:
    """Nodes a, b and c of version 1, all counted."""
    with Cluster(tmp_path, "five.toml") as cluster:
        request.node.stash[CLUSTER] = cluster
        made = Changing(cluster)
        made.write("a", "b", "c")
        cluster.start("a", "b", "c")
        cluster.wait_for_links(["a", "b", "c"])
        made.until_counted("a", "b", "c")
        yield made


def test_a_fourth_node_joins_under_load_and_one_leaves_for_good(changing: Changing) -> None:
    mesh = changing.cluster
    addresses = [mesh.address(name) for name in ("a", "b")]
    publisher = Publisher(addresses, "/fanout/growing", (b"news %d" % number for number in count()))
    publisher.start()
    jobs = numbered("job", 200)
    mesh.client("c").publish("/queue/left.behind", *jobs)

    # A fourth node.
    changing.write("a", "b", "c", "d")
    changing.hang_up("a", "b", "c")
    publisher.goes_on()
    mesh.start("d")
    mesh.wait_for_links(["a", "b", "c", "d"])
    changing.until_counted("a", "b", "c", "d")
    publisher.goes_on()

    # c leaves.
    still_there = changing.command("mesh", "retire", "c", "--at", mesh.at("a"))
    assert still_there.returncode == 1
    assert "still-reachable" in still_there.stderr
    mesh.stop("c")
    for name in ("a", "b", "d"):
        eventually(lambda n=name: mesh.misses(n, "c"), lambda n=name: f"{n} still hears c")
    done = changing.command("mesh", "retire", "c", "--at", mesh.at("a"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["adopter"] == "a"
    got = mesh.client("d").consume("/queue/left.behind")
    eventually(lambda: len(got) >= len(jobs), lambda: f"d has {len(got)} of {len(jobs)} jobs that c left")
    assert bodies(got) == jobs
    publisher.goes_on()

    # The file follows, and c may not come back.
    changing.leave_behind("c")
    changing.write("a", "b", "d")
    changing.hang_up("a", "b", "d")
    eventually(lambda: changing.membership("b").get("members") == ["a", "b", "d"], "b has other members")
    c = mesh.fleet.start("c")
    eventually(lambda: c.exit_code == 3, lambda: f"the retired node goes on, or ends with {c.exit_code}", 60)

    def report_it() -> list[str]:
        return [name for name in ("a", "b", "d") if "retired-node" in mesh.reported(name)]

    # The refusals of a majority are enough for c to end.
    eventually(lambda: len(report_it()) >= 2, lambda: f"only {report_it()} report that the retired node was there")
    again = mesh.fleet.start("c")
    eventually(lambda: again.exit_code == 3, lambda: f"the retired node starts again: {again.exit_code}", 30)

    publisher.enough()
    publisher.wait()
    read = mesh.client("d").subscribe("/fanout/growing")
    wanted = set(publisher.receipted)
    eventually(lambda: wanted <= set(bodies(read)), lambda: f"d lacks {len(wanted - set(bodies(read)))} receipted")


def test_a_node_that_lost_its_disk_learns_before_it_counts(changing: Changing) -> None:
    mesh = changing.cluster
    mesh.client("a").publish("/fanout/kept", *numbered("kept", 50))
    mesh.kill("c")
    mesh.wipe("c")
    mesh.kill("b")

    mesh.start("c")
    eventually(lambda: mesh.links("c").get("a") == ("up", "up"), "c and a are not linked")
    eventually(lambda: changing.membership("c").get("learner"), "c counts before it has learnt from all")
    eventually(lambda: "new-disk" in mesh.reported("a"), "a does not notice the new disk")
    client = mesh.client("a")
    receipt = client.send("/queue/level", b"x", receipt=True)
    client.wait_receipts([receipt])
    assert client.receipts[receipt]["copies"] == "1"

    mesh.start("b")
    changing.until_counted("a", "b", "c")


def test_a_file_that_would_cut_the_mesh_changes_nothing(changing: Changing) -> None:
    mesh = changing.cluster
    changing.write("a", "b")
    process = mesh.fleet.nodes["a"].process
    assert process is not None

    process.send_signal(signal.SIGHUP)

    eventually(lambda: "reload" in mesh.reported("a"), "a took up a file without c, which was not retired")
    eventually(lambda: changing.membership("a").get("members") == ["a", "b", "c"], "a has other members")
    eventually(lambda: mesh.links("a").get("c") == ("up", "up"), "a has no link with c")
