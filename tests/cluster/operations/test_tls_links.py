"""Links over TLS, as between machines: certificates carry the names of the nodes, and nothing else opens a link."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.cluster_bodies import bodies, numbered
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually


def tls_section(folder: Path, authority: trustme.CA, name: str, file: str) -> str:
    """Files of a certificate for `name`, and the lines of a node file that use them."""
    issued = authority.issue_cert(name)
    (folder / f"{file}.key").touch(0o600)
    issued.private_key_pem.write_to_path(folder / f"{file}.key")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(folder / f"{file}.pem", append=number > 0)
    authority.cert_pem.write_to_path(folder / f"{file}.ca")
    return f'[mesh.tls]\ncertificate = "{file}.pem"\nkey = "{file}.key"\nca = "{file}.ca"\n'


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[Cluster]:
    """Three nodes with a certificate each and no secret."""
    folder = tmp_path_factory.mktemp("tls")
    files = {name: tls_section(folder, authority, name, name) for name in "abc"}
    with Cluster(folder, secret=False, node_files=files, cuttable=[("a", "b")]) as made:
        yield made


def test_messages_cross_links_with_tls(mesh: Cluster) -> None:
    sent = numbered("secured", 300)
    fanned = {name: mesh.client(name).subscribe("/fanout/tls") for name in mesh.names}
    worked = mesh.client("b").consume("/queue/tls")

    mesh.client("a").publish("/fanout/tls", *sent)
    mesh.client("a").publish("/queue/tls", *sent)

    for name, got in fanned.items():
        eventually(lambda g=got: len(g) >= 300, lambda n=name, g=got: f"{n} has {len(g)} of 300")
        assert bodies(got) == sent
    eventually(lambda: len(worked) >= 300, lambda: f"b has {len(worked)} of 300 jobs")
    assert bodies(worked) == sent


def test_more_than_a_socket_holds_crosses_a_link_with_tls(mesh: Cluster) -> None:
    big = [bytes([number]) * (512 << 10) for number in range(20)]
    got = mesh.client("b").subscribe("/fanout/tls.big")

    mesh.client("a").publish("/fanout/tls.big", *big)

    eventually(lambda: len(got) >= 20, lambda: f"b has {len(got)} of 20")
    assert bodies(got) == big


def test_a_link_with_tls_returns_after_a_cut(mesh: Cluster) -> None:
    mesh.cut("a", "b")
    eventually(lambda: mesh.misses("a", "b"), "a still calls its links with b up")

    mesh.heal("a", "b")

    mesh.wait_for_links()


@pytest.mark.parametrize("case", ["the name of another node", "another authority"])
def test_a_node_with_the_wrong_certificate_is_refused(mesh: Cluster, authority: trustme.CA, case: str) -> None:
    destination = f"/fanout/tls.{case.replace(' ', '.')}"
    right = mesh.node_files["c"]
    wrong = (
        tls_section(mesh.folder, authority, "d", "wrong")
        if case == "the name of another node"
        else tls_section(mesh.folder, trustme.CA(), "c", "wrong")
    )
    mesh.kill("c")
    mesh.node_files["c"] = re.sub(r"\[mesh\.tls\].*", wrong, right, flags=re.DOTALL)
    try:
        mesh.start("c")
        mesh.client("c").publish(destination, b"forged")
        got = mesh.client("b").subscribe(destination)
        mesh.client("a").publish(destination, b"right")
        eventually(lambda: got, "the mesh does not go on beside the node with the wrong certificate")
        code = "wrong-certificate" if case == "the name of another node" else "bad-certificate"
        eventually(lambda: code in mesh.reported("a"), lambda: f"a reports {mesh.reported('a')}")

        assert bodies(got) == [b"right"]
        assert all("up" not in states for states in mesh.links("c").values())
    finally:
        mesh.kill("c")
        mesh.node_files["c"] = right
    mesh.start("c")
    mesh.wait_for_links()
