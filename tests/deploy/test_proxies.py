"""HAProxy before two of three nodes, with the configuration of docs/proxies.md."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from qmq.cli import main
from qmq.testing.ports import free_ports
from tests.support.cluster_mesh import PATIENT_NODE_FILE, Cluster
from tests.support.cluster_wait import eventually

PAGE = Path(__file__).parents[2] / "docs" / "proxies.md"
PASSCODE = "correct horse"
CLIENT = "127.0.0.9"
"""Where the client is. The proxy itself reaches the nodes from 127.0.0.1."""

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed (make deploy-test)")


@pytest.fixture(scope="module")
def front() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, front: int) -> Iterator[Cluster]:
    """Nodes a and b have a listener for the proxy beside their own, and all know the user ann."""
    hashed = CliRunner().invoke(main, ["config", "hash"], input=PASSCODE + "\n").output.split()[-1]
    folder = tmp_path_factory.mktemp("proxied")
    (text,) = re.findall(r"^```haproxy\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    text = text.replace("127.0.0.1:61600", f"127.0.0.1:{front}")
    with Cluster(folder, node_file=PATIENT_NODE_FILE) as made:
        for name, stomp, web in (("a", 61613, 61680), ("b", 61623, 61690)):
            (behind,) = free_ports(1)
            made.node_files[name] += (
                f'[[stomp]]\naddress = "{made.at(name)}"\n'
                f'[[stomp]]\naddress = "127.0.0.1:{behind}"\nproxied_from = ["127.0.0.1"]\n'
                f'[definitions.user.ann]\npassword_hash = "{hashed}"\ngroups = ["client", "observer"]\n'
            )
            text = text.replace(f":{stomp} ", f":{behind} ").replace(f"port {web}", f"port {made.web_address(name)[1]}")
        made.logins |= dict.fromkeys("abc", ("ann", PASSCODE))
        made.start("a", "b", "c")
        made.make_healthy()
        (folder / "haproxy.cfg").write_text(text, "utf-8")
        with subprocess.Popen(["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]) as proxy:
            try:
                yield made
            finally:
                proxy.terminate()


class Stomp:
    """A client at CLIENT that goes through the proxy."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 15.0, (CLIENT, 0))
        self._got = b""

    def ask(self, frame: str) -> str:
        """Send a frame, and return the first one that answers."""
        self._socket.sendall(frame.encode() + b"\0")
        while b"\0" not in self._got:
            data = self._socket.recv(65536)
            assert data, "the connection has ended"
            self._got += data
        first, _, self._got = self._got.partition(b"\0")
        return first.decode().lstrip()

    def close(self) -> None:
        self._socket.close()


def connected(port: int) -> Stomp:
    client = Stomp(port)
    said = client.ask(f"CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:{PASSCODE}\n\n")
    assert said.startswith("CONNECTED\n"), said
    return client


def is_served(port: int) -> bool:
    try:
        connected(port).close()
    except (OSError, AssertionError):
        return False
    return True


def test_a_client_behind_haproxy_is_known_by_its_address_and_goes_on_at_the_other_node(
    cluster: Cluster, front: int
) -> None:
    eventually(lambda: is_served(front), lambda: "no client gets through")
    client = connected(front)

    assert client.ask("SEND\ndestination:/queue/q\nreceipt:1\n\nx").startswith("RECEIPT\n")

    at = f"{cluster.at('a')},{cluster.at('b')}"
    options = ["--json", "--at", at, "--login", "ann", "--passcode", PASSCODE]
    shown = CliRunner().invoke(main, ["connections", *options])
    assert CLIENT in {row["address"] for row in json.loads(shown.output)["rows"]}
    client.close()

    cluster.kill("a")
    eventually(lambda: is_served(front), lambda: "no client gets through to the other node")
