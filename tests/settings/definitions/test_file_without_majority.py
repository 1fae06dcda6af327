"""A node that starts without a majority: its file counts there, and loses to what operators have changed meanwhile."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import NodeSettings, load_node
from qmq.definitions.definition import Key
from qmq.errors import ConfigError
from qmq.node.node import Node
from qmq.settings.definitions.file_entries import source_of
from qmq.settings.definitions.sync import DefinitionSync
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually
from tests.settings.definitions.test_definitions_mesh import until_alike

HASH = "$argon2id$v=19$m=8,t=1,p=1$v8umVTv/w1PdCilmZO4cww$ekPflGkocKjlthYotI73oOy3diUSJKwUKqr0bCyE9/o"
NEW = HASH.replace("ekPf", "ekPg")
ANN, BOB = Key("user", "ann"), Key("user", "bob")
OLD_SECTIONS = "".join(f'[[users]]\nname = "{name}"\npassword_hash = "{HASH}"\n' for name in ("ann", "bob"))
TABLE = f"""
[definitions.user.ann]
password_hash = "{HASH}"
groups = ["administrator"]
[definitions.user.bob]
password_hash = "{HASH}"
"""
ADMINISTRATOR = {"password_hash": NEW, "groups": ["administrator"]}


@pytest.fixture
def node_file(tmp_path: Path) -> Any:
    def read(text: str) -> NodeSettings:
        path = tmp_path / "node.toml"
        path.write_text(text, "utf-8")
        path.chmod(0o600)
        return load_node(path)

    return read


def users(node: Node) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {user.name: (user.password_hash or "", user.groups) for user in node.settings_parts.users.users}


def conditions(node: Node) -> list[str]:
    return [one.code for one in node.conditions.present()]


async def start_alone(mesh: MeshRig, name: str) -> Node:
    for other in mesh.names:
        if other != name and other in mesh.nodes:
            await mesh.kill(other)
    return await mesh.start(name)


async def until_together(mesh: MeshRig, *returning: str) -> None:
    for name in returning:
        await mesh.start(name)
    await mesh.until_linked()
    await eventually(lambda: not any(node.settings_parts.sync.is_behind for node in mesh.nodes.values()))
    # Nothing waits any more, and nothing follows.
    await until_alike(mesh)
    await trio.testing.wait_all_tasks_blocked()
    await until_alike(mesh)


async def test_a_user_that_was_deleted_does_not_return_with_old_sections(
    autojump_clock: MockClock, node_file: Any
) -> None:
    mesh = MeshRig("a", "b", "c")
    async with mesh.run():
        await mesh.kill("b")
        await mesh.kill("a")
        mesh.files["a"] = mesh.files["b"] = node_file(OLD_SECTIONS)
        await mesh.start("a")
        await mesh.nodes["a"].settings_parts.definitions.change({BOB: None}, quorum=True)

        b = await start_alone(mesh, "b")
        assert list(users(b)) == ["ann", "bob"]
        await until_together(mesh, "a", "c")

        for node in mesh.nodes.values():
            assert list(users(node)) == ["ann"]


async def test_what_operators_had_defined_wins_over_old_sections(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a", "b", "c")
    async with mesh.run():
        await mesh.kill("b")
        await mesh.nodes["a"].settings_parts.definitions.change({ANN: ADMINISTRATOR}, quorum=True)
        mesh.files["b"] = node_file(OLD_SECTIONS)

        await start_alone(mesh, "b")
        await until_together(mesh, "a", "c")

        for node in mesh.nodes.values():
            assert users(node) == {"ann": (NEW, ("administrator",))}


async def test_a_new_disk_brings_back_no_passcode_and_no_user(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a", "b", "c")
    mesh.files = dict.fromkeys("abc", node_file(TABLE))
    async with mesh.run():
        await until_alike(mesh)
        await mesh.nodes["a"].settings_parts.definitions.change({ANN: ADMINISTRATOR, BOB: None}, quorum=True)
        await until_alike(mesh)
        await mesh.stop("b", wipe=True)

        b = await start_alone(mesh, "b")
        assert list(users(b)) == ["ann", "bob"]
        assert conditions(b).count("definitions-behind") == 1
        assert not b.settings_parts.definitions.table.by_key, "nothing is written"
        await until_together(mesh, "a", "c")

        for node in mesh.nodes.values():
            assert users(node) == {"ann": (NEW, ("administrator",))}


async def test_a_whole_new_mesh_applies_its_file(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a", "b", "c")
    async with mesh.run():
        for name in mesh.names:
            await mesh.stop(name, wipe=True)
        mesh.files = dict.fromkeys("abc", node_file(TABLE))
        async with trio.open_nursery() as starting:
            for name in mesh.names:
                starting.start_soon(mesh.start, name)
        await until_together(mesh)

        for node in mesh.nodes.values():
            assert list(users(node)) == ["ann", "bob"]
            assert node.settings_parts.definitions.table.get(BOB) is not None


@pytest.mark.parametrize("text", [TABLE, OLD_SECTIONS + TABLE.partition("[definitions.user.bob]")[0]])
async def test_what_is_changed_on_the_node_meanwhile_wins_over_its_file(
    autojump_clock: MockClock, node_file: Any, text: str
) -> None:
    mesh = MeshRig("a", "b", "c")
    async with mesh.run():
        mesh.files["b"] = node_file(
            text + '[definitions.user.cat]\ngroups = ["client"]\npassword_hash = "' + HASH + '"\n'
        )
        await mesh.stop("b", wipe=True)
        b = await start_alone(mesh, "b")
        await b.settings_parts.definitions.change({ANN: ADMINISTRATOR, BOB: None})
        assert list(users(b)) == ["ann", "cat"]
        assert await mesh.reload("b", mesh.peers)
        assert list(users(b)) == ["ann", "cat"]
        assert (
            source_of(b.settings_parts.definitions.table, b.settings_parts.definitions.table.by_key[ANN])
            == "a change on b"
        )
        await mesh.kill("b")
        b = await mesh.start("b")
        assert list(users(b)) == ["ann", "cat"]
        await until_together(mesh, "a", "c")

        for node in mesh.nodes.values():
            assert list(users(node)) == ["ann", "cat"]
            assert users(node)["ann"] == (NEW, ("administrator",))


async def test_an_old_entry_counts_although_another_of_its_kind_is_changed_before_it_is_applied(
    autojump_clock: MockClock, node_file: Any
) -> None:
    mesh = MeshRig("a", "b", "c")
    async with mesh.run():
        mesh.files["b"] = node_file(OLD_SECTIONS)
        await mesh.stop("b", wipe=True)
        b = await start_alone(mesh, "b")
        await b.settings_parts.definitions.change({ANN: ADMINISTRATOR})
        await until_together(mesh, "a", "c")

        for node in mesh.nodes.values():
            assert list(users(node)) == ["ann", "bob"]
            assert users(node)["ann"] == (NEW, ("administrator",))


async def test_what_cannot_be_applied_then_has_a_condition_and_still_counts_there(
    autojump_clock: MockClock, node_file: Any
) -> None:
    mesh = MeshRig("a", "b", "c")
    async with mesh.run():
        await mesh.stop("b", wipe=True)
        route = '[definitions.binding."/exchange/e /queue/q"]\nsource = "/exchange/e"\nqueue = "/queue/q"\n'
        mesh.files["b"] = node_file(TABLE + route)
        b = await start_alone(mesh, "b")
        await mesh.start("a")
        await eventually(lambda: "reload" in conditions(b))
        assert "definitions-behind" not in conditions(b)
        assert list(users(b)) == ["ann", "bob"] and not users(mesh.nodes["a"])

        mesh.files["b"] = node_file(TABLE)
        assert await mesh.reload("b", mesh.peers)

        assert "reload" not in conditions(b)
        await until_together(mesh, "c")
        for node in mesh.nodes.values():
            assert list(users(node)) == ["ann", "bob"]


async def test_what_is_changed_while_the_file_is_being_applied_wins(
    autojump_clock: MockClock, node_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = MeshRig("a")
    async with mesh.run():
        a = mesh.nodes["a"]
        present = {"password_hash": HASH}
        await a.settings_parts.definitions.change({ANN: ADMINISTRATOR, BOB: present})

        async def ask(sync: DefinitionSync, keys: object) -> bool:
            monkeypatch.undo()
            await a.settings_parts.definitions.change({BOB: {"password_hash": NEW}})
            return True

        # Asked before a change to what is so already is decided.
        monkeypatch.setattr(DefinitionSync, "knows_latest", ask)
        mesh.files["a"] = node_file(TABLE)
        assert await mesh.reload("a", mesh.peers)

        assert users(a)["bob"] == (NEW, ())
        assert users(a)["ann"] == (HASH, ("administrator",))


async def test_a_definition_that_no_mesh_accepts_ends_the_start(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a", "b", "c")
    mesh.files["a"] = node_file('[definitions.exchange.e]\ntype = "nope"\n')

    with pytest.raises(BaseExceptionGroup) as ended:
        async with mesh.run():
            pass

    assert ended.value.split(ConfigError)[0] is not None
