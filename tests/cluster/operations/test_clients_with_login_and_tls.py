"""A listener for clients from elsewhere: TLS on one node, which the others need not know, and a user, whom all know."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner

from qmq.cli import main
from qmq.testing.ports import free_ports
from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_client import Client, LostError
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def admission() -> tuple[str, int]:
    """Where node a serves clients with TLS and login, beside its plain listener."""
    return "127.0.0.1", free_ports(1)[0]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of certificates that clients trust; the node's own files lie beside it."""
    folder = tmp_path_factory.mktemp("authority")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    (folder / "node.key").touch(0o600)
    issued.private_key_pem.write_to_path(folder / "node.key")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(folder / "node.pem", append=number > 0)
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return folder / "authority.pem"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, admission: tuple[str, int], authority: Path) -> Iterator[Cluster]:
    """Three nodes; a has a second listener, and in its file a user whose password `qmq config hash` has hashed."""
    hashed = CliRunner().invoke(main, ["config", "hash"], input=PASSWORD + "\n").output.split()[-1]
    with Cluster(tmp_path_factory.mktemp("login"), node_file=PATIENT_NODE_FILE) as made:
        made.node_files["a"] += f"""
[[stomp]]
address = "{made.at("a")}"

[[stomp]]
address = "{admission[0]}:{admission[1]}"
tls.certificate = "{authority.with_name("node.pem")}"
tls.key = "{authority.with_name("node.key")}"

[[users]]
name = "ann"
password_hash = '{hashed}'
groups = ["client", "observer"]
"""
        made.logins |= dict.fromkeys("abc", ("ann", PASSWORD))
        yield made


def test_a_client_with_tls_and_the_right_password_works_with_clients_of_other_nodes(
    mesh: Cluster, admission: tuple[str, int], authority: Path
) -> None:
    sent = numbered("secured", 300)
    worked = mesh.client("b", login=("ann", PASSWORD)).consume("/queue/login")
    ann = Client(admission, login=("ann", PASSWORD), authority=authority)
    try:
        heard = ann.subscribe("/fanout/login")
        ann.publish("/queue/login", *sent)
        mesh.client("c", login=("ann", PASSWORD)).publish("/fanout/login", *sent)

        eventually(lambda: len(worked) >= 300, lambda: f"b has {len(worked)} of 300 jobs")
        eventually(lambda: len(heard) >= 300, lambda: f"ann has {len(heard)} of 300")
    finally:
        ann.drop()
    assert bodies(worked) == sent
    assert bodies(heard) == sent


@pytest.mark.parametrize("login", [("ann", "wrong"), ("bob", PASSWORD), None])
def test_a_client_without_the_right_password_is_refused_with_a_reason(
    mesh: Cluster, admission: tuple[str, int], authority: Path, login: tuple[str, str] | None
) -> None:
    with pytest.raises(LostError, match="wrong passcode|users that log in"):
        Client(admission, login=login, authority=authority)


def test_a_client_that_trusts_another_authority_does_not_connect(
    mesh: Cluster, admission: tuple[str, int], tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")

    with pytest.raises(LostError):
        Client(admission, login=("ann", PASSWORD), authority=tmp_path / "other.pem")

    assert mesh.status("a")["node"] == "a"


def test_a_client_without_tls_at_that_door_ends_alone(
    mesh: Cluster, admission: tuple[str, int], authority: Path
) -> None:
    ann = Client(admission, login=("ann", PASSWORD), authority=authority)
    try:
        with pytest.raises(LostError):
            Client(admission, login=("ann", PASSWORD))

        ann.publish("/queue/login.beside", b"still here")
    finally:
        ann.drop()
