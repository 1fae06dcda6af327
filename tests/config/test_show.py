"""The effective settings as TOML."""

import tomllib
from pathlib import Path

from qmq.config import load_node
from qmq.config.show import effective

HASH = "$argon2id$v=19$m=65536,t=3,p=4$rIZkf2r0BOgSJIHMhh1F6w$BqqNGrp1o7YEvQMCcvmzZjzpeuGHXTctXHU5i2Ada/8"

EVERYTHING = """
name = "x1"
data = "/tmp/with \\"quotes\\" and \\\\"
[[stomp]]
address = "[::1]:5"
[[stomp]]
address = "127.0.0.1:6"
anonymous = true
tls = { certificate = "/c", key = "/k" }
[storage]
sync = "50ms"
[limits]
heartbeat_grace = 1.5
queue_messages_max = 7
[destinations]
create_on_use = false
[[destinations.policies]]
pattern = "/queue/a"
max_bytes = 5
[[destinations.policies]]
pattern = "/topic/*"
retain = true
[[destinations.policies]]
pattern = "/fanout/*"
children = ["/queue/a", "/queue/dead-letters"]
[[destinations.policies]]
pattern = "/queue/dead-letters"
[mesh]
beat_seconds = 0.5
[mesh.tls]
certificate = "/c"
key = "/k"
ca = "/ca"
"""


def test_effective_settings_load_again_and_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    for text in ("", EVERYTHING):
        path.write_text(text, "utf-8")
        settings = load_node(path if text else None, {} if text else {"data": Path("/d")})

        path.write_text(effective(settings), "utf-8")
        settings.read_from(path)

        assert load_node(path) == settings


def test_every_key_is_shown() -> None:
    settings = load_node(None)

    shown = tomllib.loads(effective(settings))

    for section in ("storage", "limits"):
        assert list(shown[section]) == list(type(getattr(settings, section)).keys())


def test_hashes_are_hidden(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n', "utf-8")

    text = effective(load_node(path))

    assert HASH not in text
    assert 'password_hash = "(hidden)"' in text


def test_names_with_control_characters_stay_toml() -> None:
    settings = load_node(None, {"data": "a\tb\x7f\n\x01é"})

    assert tomllib.loads(effective(settings))["data"] == "a\tb\x7f\n\x01é"
