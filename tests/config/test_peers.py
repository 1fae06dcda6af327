"""The peers file: which nodes form a mesh, and what must be true between nodes on one machine and on several."""

from pathlib import Path

import pytest

from qmq.config import PeersFile, load, load_peers
from qmq.errors import ConfigError
from qmq.protocols.http.listener import HttpListenerSettings

SECRET = "sixteen characters or more"


def peers_text(*nodes: tuple[str, str, str], secret: str | None = SECRET) -> str:
    lines = ['mesh = "m"', "version = 3"]
    if secret is not None:
        lines.append(f'secret = "{secret}"')
    for name, client, mesh in nodes:
        lines += ["[[nodes]]", f'name = "{name}"', f'client = "{client}"', f'mesh = "{mesh}"']
    return "\n".join(lines) + "\n"


A = ("a", "127.0.0.1:1001", "127.0.0.1:2001")
B = ("b", "127.0.0.1:1002", "127.0.0.1:2002")
FAR = ("far", "10.0.0.9:1003", "10.0.0.9:2003")


def read(tmp_path: Path, text: str) -> PeersFile:
    path = tmp_path / "peers.toml"
    path.write_text(text, "utf-8")
    return load_peers(path)


def diagnostic_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def test_a_peers_file_is_read(tmp_path: Path) -> None:
    peers = read(tmp_path, peers_text(A, B))

    assert (peers.mesh, peers.version, peers.secret) == ("m", 3, SECRET)
    assert [(peer.name, str(peer.client), str(peer.mesh)) for peer in peers.nodes] == [A, B]
    assert peers.is_loopback
    assert peers.peer("b") is peers.nodes[1]
    assert peers.peer("c") is None


def test_the_secret_does_not_show_in_the_representation(tmp_path: Path) -> None:
    assert SECRET not in repr(read(tmp_path, peers_text(A, B)))


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        ((A, ("a", "127.0.0.1:5", "127.0.0.1:6")), "two nodes named 'a'"),
        ((A, ("b", "127.0.0.1:1001", "127.0.0.1:6")), "127.0.0.1:1001 twice"),
        ((A, ("b", "127.0.0.1:5", "127.0.0.1:1001")), "127.0.0.1:1001 twice"),
        ((("a", "127.0.0.1:5", "127.0.0.1:5"),), "127.0.0.1:5 twice"),
        ((("a", "127.0.0.1:5", "0.0.0.0:6"),), "other nodes can dial for node 'a', not 0.0.0.0:6"),
        ((("a", "[::]:5", "127.0.0.1:6"),), "other nodes can dial for node 'a', not [::]:5"),
        ((("a", "127.0.0.1:0", "127.0.0.1:5"),), "fixed port for node 'a'"),
    ],
)
def test_names_and_addresses_are_each_used_once(
    tmp_path: Path, nodes: tuple[tuple[str, str, str], ...], sentence: str
) -> None:
    assert sentence in diagnostic_of(tmp_path, peers_text(*nodes))


def test_a_mesh_has_at_most_eight_nodes(tmp_path: Path) -> None:
    nodes = [(f"n{i}", f"127.0.0.1:{1000 + i}", f"127.0.0.1:{2000 + i}") for i in range(9)]

    assert len(read(tmp_path, peers_text(*nodes[:8])).nodes) == 8
    assert "1 to 8 nodes, not 9" in diagnostic_of(tmp_path, peers_text(*nodes))


@pytest.mark.parametrize("name", ["", "A", "a_b", "a" * 33, "é", "a b", "a\\n"])
def test_a_node_has_a_name_that_fits_everywhere(tmp_path: Path, name: str) -> None:
    assert "nodes[0].name" in diagnostic_of(tmp_path, peers_text((name, "127.0.0.1:1", "127.0.0.1:2")))


def test_a_short_secret_is_refused_without_being_repeated(tmp_path: Path) -> None:
    diagnostic = diagnostic_of(tmp_path, peers_text(A, B, secret="swordfish"))

    assert diagnostic.endswith("peers.toml:3: secret: must have at least 16 characters")


def test_a_secret_between_machines_is_refused(tmp_path: Path) -> None:
    diagnostic = diagnostic_of(tmp_path, peers_text(A, FAR))

    assert "secret: must be left out: 10.0.0.9:2003 is not on loopback" in diagnostic


def test_every_missing_key_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    path.write_text('[[nodes]]\nname = "a"\n', "utf-8")

    with pytest.raises(ConfigError) as caught:
        load_peers(path)

    assert [diagnostic.rpartition("toml")[2] for diagnostic in caught.value.diagnostics] == [
        ": mesh: is required",
        ": version: is required",
        ":1: nodes[0].client: is required",
        ":1: nodes[0].mesh: is required",
    ]


def load_both(tmp_path: Path, peers: str, node: str, name: str = "a") -> None:
    (tmp_path / "peers.toml").write_text(peers, "utf-8")
    (tmp_path / "node.toml").write_text(node, "utf-8")
    load(tmp_path / "node.toml", tmp_path / "peers.toml", name)


TLS = '[mesh.tls]\ncertificate = "a.pem"\nkey = "a.key"\nca = "ca.pem"\n'


def test_a_mesh_across_machines_needs_tls(tmp_path: Path) -> None:
    peers = peers_text(A, FAR, secret=None)

    with pytest.raises(ConfigError, match=r"need TLS: set \[mesh.tls\]"):
        load_both(tmp_path, peers, "")
    load_both(tmp_path, peers, TLS)


def test_a_mesh_on_loopback_needs_its_secret_or_tls(tmp_path: Path) -> None:
    peers = peers_text(A, B, secret=None)

    with pytest.raises(ConfigError, match="secret: is required"):
        load_both(tmp_path, peers, "")
    load_both(tmp_path, peers, TLS)


def test_a_mesh_of_one_node_needs_neither(tmp_path: Path) -> None:
    load_both(tmp_path, peers_text(A, secret=None), "")


def test_a_client_address_off_loopback_needs_a_login(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="passwords would cross the network to 10.0.0.9:1003 in clear"):
        load_both(tmp_path, peers_text(A, FAR, secret=None), TLS, "far")


@pytest.mark.parametrize(
    ("node_file", "expected"),
    [
        ("", [("https://app.example", "http://127.0.0.1:8000")]),
        (
            '[[http]]\naddress = "127.0.0.1:4001"\norigins = ["https://own.example"]\n'
            '[[http]]\naddress = "127.0.0.1:4002"\n',
            [
                ("https://own.example", "https://app.example", "http://127.0.0.1:8000"),
                ("https://app.example", "http://127.0.0.1:8000"),
            ],
        ),
    ],
)
def test_pages_of_the_origins_of_a_peers_file_may_use_the_web_port_of_each_node(
    tmp_path: Path, node_file: str, expected: list[tuple[str, ...]]
) -> None:
    origins = 'origins = ["https://app.example", "http://127.0.0.1:8000"]\n[[nodes]]'
    text = peers_text(A, B).replace("[[nodes]]", origins, 1).replace(A[1] + '"', A[1] + '"\nhttp = "127.0.0.1:3001"')
    (tmp_path / "peers.toml").write_text(text, "utf-8")
    (tmp_path / "peers.toml").chmod(0o600)
    (tmp_path / "node.toml").write_text(f'name = "a"\n{node_file}', "utf-8")

    settings, _ = load(tmp_path / "node.toml", tmp_path / "peers.toml")

    assert [one.origins for one in settings.listeners_of("http") if isinstance(one, HttpListenerSettings)] == expected


def test_what_is_no_origin_is_refused_in_a_peers_file(tmp_path: Path) -> None:
    text = peers_text(A, B).replace("[[nodes]]", 'origins = ["app.example/x"]\n[[nodes]]', 1)

    assert "must have origins as https://HOST[:PORT], not 'app.example/x'" in diagnostic_of(tmp_path, text)
