"""What differs between two configurations, in words, and what of it a running node can take up."""

from pathlib import Path

import pytest

from qmq.config import (
    DestinationPolicy,
    DestinationSettings,
    LimitSettings,
    MeshSettings,
    NodeSettings,
    TlsSettings,
    User,
    load_peers,
)
from qmq.config.difference import CHANGES_LIVE, difference, peers_difference
from tests.support.defined import defined

HASH = "$argon2id$v=19$m=65536,t=3,p=4$rIZkf2r0BOgSJIHMhh1F6w$BqqNGrp1o7YEvQMCcvmzZjzpeuGHXTctXHU5i2Ada/8"
PLAIN = NodeSettings()


def policies(*written: DestinationPolicy) -> NodeSettings:
    return NodeSettings(**defined(destinations=DestinationSettings(policies=written)))


def words(old: NodeSettings, new: NodeSettings) -> list[str]:
    return [str(change) for change in difference(old, new)]


def test_equal_settings_have_no_difference() -> None:
    assert difference(PLAIN, NodeSettings()) == []


def test_a_change_names_its_key_and_both_values() -> None:
    new = NodeSettings(name="b", limits=LimitSettings(prefetch_max=500), data=Path("/d"))

    assert words(PLAIN, new) == [
        'name: "qmq" → "b"',
        'data: "qmq-data" → "/d"',
        "limits.prefetch_max: 1000 → 500",
    ]


def test_a_definition_is_known_by_its_name_and_not_by_its_place() -> None:
    first, second = DestinationPolicy(pattern="/queue/a"), DestinationPolicy(pattern="/queue/b", priority=7)

    assert words(policies(first, second), policies(second, first)) == []
    assert words(policies(first, second), policies(DestinationPolicy(pattern="/queue/b", priority=8))) == [
        "definitions[policy /queue/a]: {} → (absent)",
        "definitions[policy /queue/b]: { priority = 7 } → { priority = 8 }",
    ]


def test_secrets_are_never_shown() -> None:
    old = NodeSettings(**defined(users=(User(name="ann", password_hash=HASH), User(name="bob", password_hash=HASH))))
    new = NodeSettings(**defined(users=(User(name="ann", password_hash=HASH + "x"), User(name="cy"))))

    found = words(old, new)

    assert found == [
        "definitions[user ann]: changed",
        'definitions[user bob]: { password_hash = "(hidden)" } → (absent)',
        "definitions[user cy]: (absent) → {}",
    ]
    assert "argon2" not in "".join(f"{change.old}{change.new}" for change in difference(old, new))


def test_a_section_that_comes_or_goes_is_shown_whole() -> None:
    tls = TlsSettings(certificate=Path("c"), key=Path("k"), ca=Path("ca"))

    assert words(PLAIN, NodeSettings(mesh=MeshSettings(tls=tls))) == [
        'mesh.tls: (not set) → { certificate = "c", key = "k", ca = "ca" }'
    ]


def test_destinations_and_definitions_can_change_while_running_and_what_is_built_at_start_cannot() -> None:
    new = NodeSettings(
        name="b",
        mesh=MeshSettings(beat_seconds=1.0),
        limits=LimitSettings(queue_messages_max=5, commit_pending_bytes_max=5),
        destinations=DestinationSettings(create_on_use=False),
        definitions={"policy": {"/queue/a": {}}},
    )

    assert {change.key: change.needs_restart for change in difference(PLAIN, new)} == {
        "name": True,
        "definitions[policy /queue/a]": False,
        "limits.queue_messages_max": False,
        "limits.commit_pending_bytes_max": True,
        "destinations.create_on_use": False,
        "mesh.beat_seconds": True,
    }


def test_every_key_that_changes_live_exists() -> None:
    for key in CHANGES_LIVE:
        section, _, name = key.partition(".")
        assert section in NodeSettings.keys()
        assert not name or name in LimitSettings.keys()


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("a long enough secret", "another long secret", "secret"),
        ('mesh = "m"', 'mesh = "other"', "mesh"),
        ("127.0.0.1:2", "127.0.0.1:3", "nodes[a].mesh"),
    ],
)
def test_what_every_node_must_have_the_same_from_its_start_needs_a_restart(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    path = tmp_path / "peers.toml"
    text = (
        'mesh = "m"\nversion = 1\nsecret = "a long enough secret"\n'
        '[[nodes]]\nname = "a"\nclient = "127.0.0.1:1"\nmesh = "127.0.0.1:2"\n'
    )
    path.write_text(text, "utf-8")
    before = load_peers(path)
    path.write_text(text.replace(old, new), "utf-8")

    (change,) = peers_difference(before, load_peers(path), "a")

    assert change.key == f"peers file, {key}" and change.needs_restart
    assert "secret" not in change.old + change.new
    assert peers_difference(None, before)[0].needs_restart
    assert peers_difference(None, None) == []


def test_other_nodes_and_their_addresses_need_no_restart(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    text = 'mesh = "m"\nversion = 1\nsecret = "a long enough secret"\n'
    node = '[[nodes]]\nname = "{0}"\nclient = "127.0.0.1:{1}"\nmesh = "127.0.0.1:1{1}"\n'
    path.write_text(text + node.format("a", 1) + node.format("b", 2), "utf-8")
    before = load_peers(path)
    path.write_text(
        text.replace("1", "2", 1) + node.format("a", 1) + node.format("b", 4) + node.format("c", 3), "utf-8"
    )

    changes = peers_difference(before, load_peers(path), "a")

    assert [change.key.removeprefix("peers file, ") for change in changes] == [
        "version",
        "nodes[b].client",
        "nodes[b].mesh",
        "nodes[c]",
    ]
    assert not any(change.needs_restart for change in changes)
