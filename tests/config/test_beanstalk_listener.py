"""`[[beanstalk]]` in the node file, and `beanstalk` in the peers file."""

from pathlib import Path

import pytest

from qmq.config import load
from qmq.errors import ConfigError
from qmq.protocols.beanstalk.listener import BeanstalkListenerSettings
from tests.config.test_load import HASH

USERS = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'
PEERS = """mesh = "m"
version = 1
secret = "sixteen characters"
[[nodes]]
name = "a"
client = "127.0.0.1:61613"
mesh = "127.0.0.1:61713"
beanstalk = "127.0.0.1:11300"
"""


def check(tmp_path: Path, text: str) -> list[str]:
    """The errors of a node file."""
    path = tmp_path / "node.toml"
    path.write_text(text)
    path.chmod(0o600)
    try:
        load(path, None)
    except ConfigError as error:
        return [line.replace(str(path), "FILE") for line in error.diagnostics]
    return []


def listener(keys: str = "", address: str = "127.0.0.1:11300") -> str:
    return f'[[beanstalk]]\naddress = "{address}"\n{keys}\n'


def test_there_is_no_listener_unless_one_is_configured(tmp_path: Path) -> None:
    settings, _ = load(None, None)

    assert settings.listeners_of("beanstalk") == ()


def test_a_listener_needs_no_user_while_there_are_none(tmp_path: Path) -> None:
    assert check(tmp_path, listener()) == []


def test_a_listener_must_name_a_user_when_there_are_users(tmp_path: Path) -> None:
    assert check(tmp_path, listener() + USERS) == [
        "FILE: beanstalk: user: must name the user as which clients at 127.0.0.1:11300 act: beanstalkd has no login"
    ]
    assert check(tmp_path, listener('user = "ann"') + USERS) == []
    assert check(tmp_path, listener("anonymous = true") + USERS) == []


def test_a_node_of_a_peers_file_may_have_users_and_then_serves_no_client_there(tmp_path: Path) -> None:
    peers, node = tmp_path / "peers.toml", tmp_path / "node.toml"
    peers.write_text(PEERS)
    node.write_text(USERS)
    peers.chmod(0o600)
    node.chmod(0o600)

    settings, _ = load(node, peers, "a")

    (one,) = settings.listeners_of("beanstalk")
    assert isinstance(one, BeanstalkListenerSettings) and one.user is None and not one.serves_anonymous(has_users=True)


def test_the_user_must_exist(tmp_path: Path) -> None:
    (error,) = check(tmp_path, listener('user = "anne"') + USERS)

    assert error.startswith("FILE: beanstalk: user: no user is named 'anne'") and "ann" in error


def test_a_listener_off_loopback_must_name_a_user(tmp_path: Path) -> None:
    (error,) = check(tmp_path, listener("insecure = true", "10.0.0.1:11300"))

    assert error.startswith("FILE: beanstalk: user: must name a user: 10.0.0.1:11300 can be reached")


@pytest.mark.parametrize("other", ["stomp", "http", "beanstalk"])
def test_two_listeners_have_two_addresses(tmp_path: Path, other: str) -> None:
    (error,) = check(tmp_path, f'[[{other}]]\naddress = "127.0.0.1:11300"\n' + listener())

    assert "must not have two listeners at 127.0.0.1:11300" in error


def test_a_node_of_a_peers_file_serves_at_its_address_there(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    path.write_text(PEERS)
    path.chmod(0o600)

    settings, peers = load(None, path, "a")

    assert [str(one.address) for one in settings.listeners_of("beanstalk")] == ["127.0.0.1:11300"]
    assert peers is not None and len(peers.nodes[0].addresses) == 3


def test_a_listener_with_proxies_on_loopback_must_name_a_user_too(tmp_path: Path) -> None:
    (error,) = check(tmp_path, listener('proxied_from = ["127.0.0.1"]'))

    assert error.startswith("FILE: beanstalk: user: must name a user: 127.0.0.1:11300 can be reached")
