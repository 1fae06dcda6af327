"""Sections of earlier versions in a node file: they are definitions."""

from pathlib import Path

import pytest

from qmq.config import NodeSettings, load, load_node
from qmq.config.show import effective
from qmq.errors import ConfigError

HASH = "$argon2id$v=19$m=8,t=1,p=1$v8umVTv/w1PdCilmZO4cww$ekPflGkocKjlthYotI73oOy3diUSJKwUKqr0bCyE9/o"

ALL = f"""
data = "/d"
[[users]]
name = "ann"
password_hash = "{HASH}"
groups = ["billing"]
[[permissions]]
group = "billing"
allow = ["subscribe", "send"]
destinations = ["/queue/a", "/queue/b"]
[[user_limits]]
user = "*"
queues_max = 5
[[user_limits]]
group = "billing"
bytes_per_second_max = "1MiB"
[[queues]]
name = "/queue/a"
max_bytes = "1KiB"
expires_seconds = 5.0
[[exchanges]]
name = "orders"
type = "headers"
alternate = "amq.fanout"
locked = true
[[bindings]]
source = "/exchange/orders"
queue = "/queue/a"
key = "k"
arguments = {{ x-match = "any", n = 4, yes = true }}
[[bindings]]
source = "/topic/a.*.#"
queue = "/queue/a"
[[bindings]]
source = "/exchange/amq.topic"
exchange = "/exchange/orders"
[destinations]
create_on_use = false
[[destinations.policies]]
pattern = "/queue/*"
delivery_limit = 3
"""


@pytest.fixture
def node_file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.touch(0o600)
    return path


def read(path: Path, text: str) -> NodeSettings:
    path.write_text(text, "utf-8")
    return load_node(path)


def test_each_entry_is_a_definition_with_the_same_keys(node_file: Path) -> None:
    settings = read(node_file, ALL)

    arguments = {"x-match": "any", "n": 4, "yes": True}
    rights = {"group": "billing", "allow": ["subscribe", "send"]}
    assert settings.definitions == {
        "user": {"ann": {"password_hash": HASH, "groups": ["billing"]}},
        "permission": {
            "group:billing allow send,subscribe /queue/a": {**rights, "destinations": ["/queue/a"]},
            "group:billing allow send,subscribe /queue/b": {**rights, "destinations": ["/queue/b"]},
        },
        "limit": {"user:*": {"queues_max": 5}, "group:billing": {"bytes_per_second_max": "1MiB"}},
        "queue": {"/queue/a": {"max_bytes": "1KiB", "expires_seconds": 5.0}},
        "exchange": {"orders": {"type": "headers", "alternate": "amq.fanout"}},
        "binding": {
            '/exchange/orders /queue/a k {"n":"4","x-match":"any","yes":"true"}': {
                "source": "/exchange/orders",
                "queue": "/queue/a",
                "key": "k",
                "arguments": arguments,
            },
            "/topic/a.*.# /queue/a": {"source": "/topic/a.*.#", "queue": "/queue/a"},
            "/exchange/amq.topic /exchange/orders": {
                "source": "/exchange/amq.topic",
                "exchange": "/exchange/orders",
            },
        },
        "policy": {"/queue/*": {"delivery_limit": 3}},
    }
    assert set(settings.old_entries) == {
        (kind, name) for kind, of_kind in settings.definitions.items() for name in of_kind
    }
    assert (settings.destinations.create_on_use, settings.destinations.policies) == (False, ())
    assert read(node_file, effective(settings).replace('"(hidden)"', f'"{HASH}"')) == settings


def test_a_note_names_the_command_that_moves_them_and_another_what_was_locked(node_file: Path) -> None:
    sections = "[[users]], [[permissions]], [[user_limits]], [[queues]], [[exchanges]], [[bindings]]"

    assert read(node_file, ALL).notes == (
        f"{node_file}: the next version does not read {sections}, [[destinations.policies]]: "
        f"`qmq config migrate {node_file}` moves them to [definitions]",
        f"{node_file}: locked has no meaning any more: exchange orders",
    )
    assert read(node_file, "[definitions.policy]\n").notes == ()


def test_an_entry_that_is_a_definition_already_is_left_out(node_file: Path) -> None:
    text = '[[queues]]\nname = "/queue/a"\nmax_messages = 5\n[definitions.queue."/queue/a"]\nmax_messages = 6\n'

    settings = read(node_file, text)

    assert settings.definitions == {"queue": {"/queue/a": {"max_messages": 6}}}
    assert not settings.old_entries


BINDING = '[[bindings]]\nsource = "/topic/a"\nqueue = "/queue/a"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("users = 5", "1: users[0] = 5: must be a list of sections"),
        ('[definitions]\nuser = 5\n[[users]]\nname = "ann"', "definitions.user = 5: must be a section of names"),
        ("[[users]]\n", "1: users[0].name: is required"),
        ('[[queues]]\nnam = "/queue/a"', "1: queues[0]: name: is required, as text"),
        ("[[user_limits]]\nqueues_max = 5", "1: user_limits[0]: must have either user or group"),
        ('[[bindings]]\nqueue = "/queue/a"', "1: bindings[0]: source: is required, as text"),
        ('[[bindings]]\nsource = "/topic/a"', "1: bindings[0]: queue: is required, as text"),
        (BINDING + "arguments = 5", "1: bindings[0]: arguments: must be a section of names"),
        (BINDING + "arguments = { a = [] }", "1: bindings[0]: must be text, a number, true, false or null"),
        (BINDING * 2, "4: bindings[1]: must not have two entries for /topic/a /queue/a"),
        ('[[queues]]\nname = "/queue/a"\nmax_message = 5', "queue /queue/a: max_message: unknown key; did you mean"),
        ('[[queues]]\nname = "/queue/a"\nretain = true', "queue /queue/a: retain: unknown key"),
        (
            '[[destinations.policies]]\npattern = "/queue/a"\nmax_messages = -1',
            "3: destinations.policies[0].max_messages = -1: must be at least 0",
        ),
    ],
)
def test_what_is_wrong_is_named(node_file: Path, text: str, said: str) -> None:
    node_file.write_text(text, "utf-8")

    with pytest.raises(ConfigError) as refused:
        load(node_file, None)

    assert said in "; ".join(refused.value.diagnostics)


@pytest.mark.parametrize(
    ("kind", "name", "value", "said"),
    [
        ("policy", "/queue/a", "retain = true", "policy /queue/a: retain = true: must be left out under /queue/"),
        ("queue", "/queue/a", "oops = true", "queue /queue/a: oops: unknown key"),
        ("user", "ann", f'password_hash = "{HASH}"\ngroups = "x"', "user ann: groups = 'x': must be a list"),
        ("permission", "x", 'user = "ann"', "permission x"),
        ("limit", "x", "queues_max = 1", "limit x: must be named user:NAME or group:NAME"),
    ],
)
def test_definitions_of_a_file_are_checked_one_by_one(
    node_file: Path, kind: str, name: str, value: str, said: str
) -> None:
    node_file.write_text(f'[definitions.{kind}."{name}"]\n{value}\n', "utf-8")

    with pytest.raises(ConfigError) as refused:
        load_node(node_file)

    assert f"{node_file}: definitions: {said}" in "; ".join(refused.value.diagnostics)
