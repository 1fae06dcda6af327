"""`[[amqp]]`, and `amqp` of a node in the peers file."""

from pathlib import Path

import pytest

from qmq.config import load
from qmq.errors import ConfigError

PEERS = """
mesh = "m"
version = 1
[[nodes]]
name = "a"
client = "127.0.0.1:7001"
mesh = "127.0.0.1:7002"
amqp = "127.0.0.1:7003"
"""


def loaded(tmp_path: Path, node: str, peers: str | None = None) -> list[str]:
    (tmp_path / "node.toml").write_text(node)
    if peers is not None:
        (tmp_path / "peers.toml").write_text(peers)
    settings, _ = load(tmp_path / "node.toml", tmp_path / "peers.toml" if peers is not None else None, "a")
    return [str(one.address) for one in settings.listeners_of("amqp")]


def test_a_node_serves_amqp_where_its_file_says_so(tmp_path: Path) -> None:
    assert loaded(tmp_path, '[[amqp]]\naddress = "127.0.0.1:5672"\n') == ["127.0.0.1:5672"]
    assert loaded(tmp_path, "") == []


def test_the_peers_file_has_an_address_for_amqp(tmp_path: Path) -> None:
    assert loaded(tmp_path, 'name = "a"\n', PEERS) == ["127.0.0.1:7003"]


def test_two_listeners_at_one_address_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, '[[stomp]]\naddress = "127.0.0.1:5672"\n[[amqp]]\naddress = "127.0.0.1:5672"\n')
    assert any("two listeners" in line for line in caught.value.diagnostics)


def test_off_loopback_a_listener_needs_tls_and_users(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, '[[amqp]]\naddress = "10.0.0.1:5672"\n')
    assert any("passwords would cross the network" in line for line in caught.value.diagnostics)
