"""Sections of earlier versions are entries of `[definitions]`, and lose to what operators had changed."""

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from qmq.config import NodeSettings, load_node
from qmq.definitions.definition import Key
from qmq.node.node import Node
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig
from tests.settings.definitions.test_definitions_mesh import ask, put, until_alike

HASH = "$argon2id$v=19$m=8,t=1,p=1$v8umVTv/w1PdCilmZO4cww$ekPflGkocKjlthYotI73oOy3diUSJKwUKqr0bCyE9/o"
USERS = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\ngroups = ["client"]\n'
POLICY = '[[destinations.policies]]\npattern = "/queue/q"\ndelivery_limit = 5\n'
ROUTES = """
[[queues]]
name = "/queue/q"
max_messages = 5
[[exchanges]]
name = "e"
type = "topic"
locked = true
[[bindings]]
source = "/exchange/e"
queue = "/queue/q"
key = "a.#"
"""


@pytest.fixture
def node_file(tmp_path: Path) -> Any:
    def read(text: str) -> NodeSettings:
        path = tmp_path / "a.toml"
        path.write_text(text, "utf-8")
        path.chmod(0o600)
        return load_node(path)

    return read


def limits_of(node: Node, *queues: str) -> list[int]:
    return [node.settings_parts.policies.queue_rules(queue).delivery_limit for queue in queues]


async def test_they_are_definitions_of_all_nodes_and_nothing_else(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a", "b")
    mesh.files["a"] = node_file(POLICY + ROUTES)
    async with mesh.run():
        await until_alike(mesh)

        for node in mesh.nodes.values():
            assert limits_of(node, "/queue/q") == [5]
            assert node.settings_parts.policies.queue_rules("/queue/q").messages_max == 5
            assert node.settings_parts.routing.table.queues_of_exchange("e", "a.b", {}) == ("/queue/q",)

        await ask(mesh, "b", "delete/policy/queue/q")
        await ask(mesh, "b", "put/exchange/e", {"type": "topic", "internal": True})
        await until_alike(mesh)
        await mesh.kill("a")
        await mesh.start("a")

        assert limits_of(mesh.nodes["a"], "/queue/q") == [20]
        assert mesh.nodes["a"].settings_parts.routing.table.exchanges["e"].internal


async def test_they_count_while_a_node_starts_that_has_no_definitions_yet(
    autojump_clock: MockClock, node_file: Any
) -> None:
    mesh = MeshRig("a")
    mesh.files["a"] = node_file(POLICY + ROUTES + USERS)
    node = mesh._make("a", mesh.peers)

    assert not node.settings_parts.definitions.table.by_key
    assert limits_of(node, "/queue/q") == [5]
    assert [user.name for user in node.settings_parts.users.users] == ["ann"]
    assert node.settings_parts.routing.table.queues_of_exchange("e", "a.b", {}) == ("/queue/q",)
    node.store.close()


async def test_what_operators_had_changed_in_an_earlier_version_counts(
    autojump_clock: MockClock, node_file: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = MeshRig("a")
    async with mesh.run():
        # As an earlier version left it: with the mark of the kind, and without a memory of files.
        await put(mesh, "a", delivery_limit=7)
        await ask(mesh, "a", "put/policy/queue/deleted", {"delivery_limit": 8})
        await ask(mesh, "a", "delete/policy/queue/deleted")
        await mesh.kill("a")
        deleted = POLICY.replace("/queue/q", "/queue/deleted")
        mesh.files["a"] = node_file(POLICY + deleted + ROUTES)
        for _ in range(2):
            await mesh.start("a")
            assert limits_of(mesh.nodes["a"], "/queue/q", "/queue/deleted") == [7, 20]
            assert "e" in mesh.nodes["a"].settings_parts.routing.table.exchanges, "of which operators had changed none"
            await mesh.kill("a")
        text = "policy /queue/deleted of the node file is not applied: the mesh has its own"
        assert caplog.text.count(text) == 1

        mesh.files["a"] = node_file(POLICY.replace("5", "6") + deleted + ROUTES)
        await mesh.start("a")
        assert limits_of(mesh.nodes["a"], "/queue/q", "/queue/deleted") == [6, 20]


async def test_nodes_of_earlier_versions_read_their_own_files_until_an_operator_changes_one(
    autojump_clock: MockClock, node_file: Any
) -> None:
    mesh = MeshRig("a")
    mesh.files["a"] = node_file(POLICY + ROUTES)
    async with mesh.run():
        table = mesh.nodes["a"].settings_parts.definitions.table
        marked = [kind for kind in ("policy", "queue", "exchange", "binding") if Key("seeded", kind) in table.by_key]
        assert not marked

        await ask(mesh, "a", "delete/binding//exchange/e /queue/q a.#".replace("//", "/"))

        marked = [kind for kind in ("policy", "queue", "exchange", "binding") if Key("seeded", kind) in table.by_key]
        assert marked == ["exchange", "binding"]


async def test_the_warnings_of_the_file_are_logged_at_a_start_and_a_reload(
    autojump_clock: MockClock, node_file: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = MeshRig("a")
    mesh.files["a"] = node_file(POLICY + ROUTES)
    async with mesh.run():
        assert caplog.text.count("`qmq config migrate") == 1
        assert caplog.text.count("locked has no meaning any more: exchange e") == 1
        await mesh.reload("a", mesh.peers)
        assert caplog.text.count("`qmq config migrate") == 2


async def test_a_move_to_definitions_changes_nothing(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a")
    mesh.files["a"] = node_file(POLICY)
    async with mesh.run():
        await put(mesh, "a", delivery_limit=7)
        await mesh.kill("a")
        mesh.files["a"] = node_file('[definitions.policy."/queue/q"]\ndelivery_limit = 5\n')
        await mesh.start("a")

        assert limits_of(mesh.nodes["a"], "/queue/q") == [7]


async def test_an_entry_that_leaves_the_file_stays_and_is_named(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(definitions={"user": {"ann": {"password_hash": HASH}, "bob": {"password_hash": HASH}}})
    async with rig.run():
        pass
    rig.settings = rig.settings.replace({"definitions": {"user": {"ann": {"password_hash": HASH}}}})
    async with rig.run():
        assert sorted(user.name for user in rig.alive.settings_parts.users.users) == ["ann", "bob"]
        assert "user bob is not in the node file any more, and stays defined until it is deleted" in caplog.text


async def test_users_of_a_file_need_no_administrator(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a")
    async with mesh.run():
        mesh.files["a"] = node_file(USERS)
        assert await mesh.reload("a", mesh.peers)
        await mesh.connect("a", login="ann", passcode="secret")


async def test_an_entry_that_will_not_be_applied_counts_no_more(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a")
    mesh.files["a"] = node_file(USERS)
    node = mesh._make("a", mesh.peers)

    # As when a peer has applied it, and it was deleted since.
    node.settings_parts.definitions.expect({})
    node.settings_parts.definitions.publish()

    assert node.settings_parts.users.users == ()
    node.store.close()
