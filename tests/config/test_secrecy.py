"""Files with secrets: other users of the machine must not be able to read them."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from qmq.cli import main
from qmq.config import load
from qmq.config.secrecy import is_open_to_others, readable_hashes
from qmq.errors import ConfigError

PEERS = """\
mesh = "two"
version = 1
{secret}
[[nodes]]
name = "a"
client = "127.0.0.1:1"
mesh = "127.0.0.1:2"
[[nodes]]
name = "b"
client = "127.0.0.1:3"
mesh = "127.0.0.1:4"
"""

SECRET = 'secret = "sixteen characters"'

NODE = """\
name = "a"
[[stomp]]
address = "127.0.0.1:1"
tls = {{ certificate = "client.pem", key = "{0}" }}
[mesh.tls]
certificate = "mesh.pem"
key = "{1}"
ca = "ca.pem"
"""


def put(path: Path, text: str, mode: int) -> Path:
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return path


def diagnostics(node_file: Path | None, peers_file: Path | None) -> list[str]:
    try:
        load(node_file, peers_file, "a")
    except ConfigError as error:
        return error.diagnostics
    return []


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o646])
def test_a_peers_file_whose_secret_others_can_read_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    path = put(tmp_path / "peers.toml", PEERS.format(secret=SECRET), mode)

    assert diagnostics(None, path) == [
        f"{path}: contains the secret of the mesh, and other users can read or write it: chmod 600 {path}"
    ]
    path.chmod(0o600)
    assert diagnostics(None, path) == []


def test_a_peers_file_without_a_secret_may_be_read_by_all(tmp_path: Path) -> None:
    node = put(tmp_path / "node.toml", NODE.format("none.key", "none.key"), 0o644)
    path = put(tmp_path / "peers.toml", PEERS.format(secret=""), 0o644)

    assert diagnostics(node, path) == []


def test_every_private_key_that_others_can_read_is_named_once(tmp_path: Path) -> None:
    node = put(tmp_path / "node.toml", NODE.format("one.key", "two.key"), 0o644)
    one, two = (put(tmp_path / f"{name}.key", "", 0o644) for name in ("one", "two"))

    assert diagnostics(node, None) == [
        f"{key}: contains the private key, and other users can read or write it: chmod 600 {key}" for key in (one, two)
    ]
    put(tmp_path / "node.toml", NODE.format("one.key", "one.key"), 0o644)
    assert len(diagnostics(node, None)) == 1


def test_certificates_may_be_readable_and_a_missing_key_is_another_error(tmp_path: Path) -> None:
    node = put(tmp_path / "node.toml", NODE.format("none.key", "none.key"), 0o644)
    for name in ("client.pem", "mesh.pem", "ca.pem"):
        put(tmp_path / name, "", 0o644)

    assert diagnostics(node, None) == []


@pytest.mark.parametrize(
    ("owner", "mode", "is_open"),
    [(0, 0o640, False), (0, 0o660, True), (0, 0o644, True), (1000, 0o640, True), (1000, 0o600, False)],
)
def test_the_group_may_read_only_what_root_owns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, is_open: bool
) -> None:
    path = put(tmp_path / "key", "", 0o600)
    monkeypatch.setattr(Path, "stat", lambda self: os.stat_result((0o100000 | mode, 1, 1, 1, owner, 0, 0, 0, 0, 0)))

    assert is_open_to_others(path) == is_open


HASH = "$argon2id$v=19$m=65536,t=3,p=4$rIZkf2r0BOgSJIHMhh1F6w$BqqNGrp1o7YEvQMCcvmzZjzpeuGHXTctXHU5i2Ada/8"


@pytest.mark.parametrize(("mode", "is_noted"), [(0o644, True), (0o604, True), (0o600, False)])
def test_a_node_file_whose_hashes_others_can_read_is_noted(tmp_path: Path, mode: int, is_noted: bool) -> None:
    users = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'
    path = put(tmp_path / "node.toml", f'name = "a"\n{users}', mode)
    note = f"{path}: contains hashes of passcodes, and other users can read or write it: chmod 600 {path}"

    settings, _ = load(path, None)

    assert readable_hashes(settings) == (note if is_noted else None)
    checked = CliRunner().invoke(main, ["config", "check", "--config", str(path)])
    assert (f"note: {note}" in checked.output) == is_noted and checked.exit_code == 0


def test_a_node_file_without_hashes_may_be_read(tmp_path: Path) -> None:
    settings, _ = load(put(tmp_path / "node.toml", 'name = "a"\n', 0o644), None)

    assert readable_hashes(settings) is None
