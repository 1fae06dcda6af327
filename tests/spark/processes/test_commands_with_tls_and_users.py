"""Each command of the pipeline against a node that wants TLS and a login, as a user with no more rights than needed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result

from qmq.cli import main
from qmq.testing.ports import free_ports
from tests.support.cluster_client import Client
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually

PASSWORD, SECRET = "correct horse", "of the pipeline"
ORDERS, JOBS, AGAIN = "/fanout/orders", "/queue/jobs", "/queue/again"


def hashed(password: str) -> str:
    return CliRunner().invoke(main, ["config", "hash"], input=f"{password}\n").output.split()[-1]


class Guarded:
    """Node a of three, with a second listener, and who may do what."""

    def __init__(self, mesh: Cluster, address: tuple[str, int], authority: Path) -> None:
        self.mesh = mesh
        self.address = address
        self.at = "{}:{}".format(*address)
        self.authority = authority

    def run(self, *said: str, passcode: str = SECRET) -> Result:
        """A command without a secret in it."""
        logins = {"QMQ_LOGIN": "spark", "QMQ_PASSCODE": passcode}
        return CliRunner().invoke(main, [*said, "--cafile", str(self.authority)], env=logins)

    def lines(self, *said: str) -> list[Any]:
        done = self.run(*said, "--json")
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    folder = tmp_path / "authority"
    folder.mkdir()
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    (folder / "node.key").touch(0o600)
    issued.private_key_pem.write_to_path(folder / "node.key")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(folder / "node.pem", append=number > 0)
    authority.cert_pem.write_to_path(folder / "authority.pem")
    (port,) = free_ports(1)
    (tmp_path / "mesh").mkdir()
    with Cluster(tmp_path / "mesh", node_file=PATIENT_NODE_FILE) as mesh:
        mesh.node_files["a"] += f"""
[[stomp]]
address = "{mesh.at("a")}"

[[stomp]]
address = "127.0.0.1:{port}"
tls.certificate = "{folder / "node.pem"}"
tls.key = "{folder / "node.key"}"

[definitions.user.ann]
password_hash = '{hashed(PASSWORD)}'
groups = ["client", "observer"]

[definitions.user.spark]
password_hash = '{hashed(SECRET)}'

[definitions.permission."user:spark allow subscribe /system/journal"]
user = "spark"
allow = ["subscribe"]
destinations = ["/system/journal"]

[definitions.permission."user:spark allow send /queue/again"]
user = "spark"
allow = ["send"]
destinations = ["{AGAIN}"]
"""
        mesh.logins |= dict.fromkeys("abc", ("ann", PASSWORD))
        mesh.make_healthy()
        yield Guarded(mesh, ("127.0.0.1", port), folder / "authority.pem")


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_each_command_reads_a_node_with_tls_as_a_user_with_few_rights(
    spark: Any, guarded: Guarded, tmp_path: Path
) -> None:
    table, again, listed = str(tmp_path / "table"), str(tmp_path / "again"), str(tmp_path / "listed")
    here = ["--servers", guarded.at]
    ann = Client(guarded.address, login=("ann", PASSWORD), authority=guarded.authority)
    try:
        ann.publish(ORDERS, *(b'{"order": %d}' % number for number in range(20)))
        ann.publish(JOBS, *(b"job %d" % number for number in range(5)))
        got = ann.subscribe(JOBS, ack="client-individual")
        eventually(lambda: len(got) == 5, "no jobs come")
        for message in got[:3]:
            ann.refuse(message, receipt=True, requeue="false")
        for message in got[3:]:
            ann.acknowledge(message)
        eventually(lambda: guarded.mesh.depth("a", JOBS) == 0, "jobs are left")
        guarded.mesh.wait_until_same()

        (archived,) = guarded.lines("archive", table, *here, "--once")
        (by_spark,) = guarded.lines("pipeline", "archive", again, *here)
        (typed,) = guarded.lines("pipeline", "tables", str(tmp_path / "typed"), *here, "--destination", ORDERS)
        (stats,) = guarded.lines("pipeline", "stats", *here)
        groups = guarded.lines("pipeline", "dead-letters", *here, "--redrive", listed)
        compared = [guarded.lines("pipeline", "compare", one, guarded.at)[0] for one in (table, again)]
        audited = guarded.run("pipeline", "audit", guarded.at)
        chosen = ["--list", listed, "--into", AGAIN, "--name", "again"]
        sent = [guarded.lines("pipeline", "replay", *here, *chosen)[0] for _ in range(2)]
        refused = guarded.run("pipeline", "replay", *here, "--into", JOBS, "--name", "no")
        wrong = guarded.run("pipeline", "stats", *here, passcode="wrong horse")
        unknown = CliRunner().invoke(
            main, ["archive", table, *here, "--once"], env={"QMQ_LOGIN": "spark", "QMQ_PASSCODE": SECRET}
        )

        assert archived["rows"] == by_spark["rows"] >= 25
        assert typed["columns"] == {"order": "int64"} and typed["rows"] == 20
        totals = {total["destination"]: total for total in stats["totals"]}
        assert totals[ORDERS]["messages"] == 20
        assert (totals[JOBS]["messages"], totals[JOBS]["settled"], totals[JOBS]["dead_letters"]) == (5, 5, 3)
        assert [(group["queue"], group["letters"]) for group in groups] == [(JOBS, 3)]
        assert all(one["equal"] and one["records"] == archived["rows"] for one in compared)
        assert audited.exit_code == 0 and "clean" in audited.output, audited.output
        assert [one["messages"] for one in sent] == [3, 3]
        returned = ann.subscribe(AGAIN, "again")
        eventually(lambda: len(returned) == 3, lambda: f"{len(returned)} of 3 were sent again")
        assert sorted(message.body for message in returned) == sorted(message.body for message in got[:3])
        for failed in (refused, wrong, unknown):
            assert failed.exit_code == 1 and failed.stderr.count("\n") == 1, failed.output
        said = "".join(one.output for one in (audited, refused, wrong, unknown))
        assert not any(secret in said for secret in (SECRET, "wrong horse"))
    finally:
        ann.drop()
