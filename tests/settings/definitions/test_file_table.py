"""The table `[definitions]` of a node file: applied with a memory, so that what operators change later stays."""

import json
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from qmq.config import NodeSettings, load_node
from qmq.definitions.definition import Key
from qmq.errors import ConfigError
from qmq.node.node import Node
from qmq.node.reload import Reloader
from qmq.settings.definitions.sync import DefinitionSync
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig
from tests.settings.definitions.test_definitions_mesh import ask, until_alike
from tests.support.conditions import present

Q = "/queue/q"


def table(**most: int) -> dict[str, Any]:
    """Policies with these bounds, by the last word of their queues."""
    return {"policy": {f"/queue/{name}": {"max_messages": count} for name, count in most.items()}}


def bound(node: Node, queue: str = Q) -> int:
    return node.settings_parts.policies.queue_rules(queue).messages_max


async def set_bound(rig: Rig, messages: int | None) -> None:
    verb, body = ("delete", "") if messages is None else ("put", json.dumps({"max_messages": messages}))
    client = await rig.connect()
    await client.send(f"SEND\ndestination:/control/definitions/{verb}/policy{Q}\nreceipt:r\n\n{body}\0")
    assert await client.receipt() == "r"


def reading(rig: Rig, entries: dict[str, Any]) -> Reloader:
    return Reloader(rig.alive, rig.settings, None, lambda: (rig.settings.replace({"definitions": entries}), None))


async def test_entries_count_before_a_client_is_served(autojump_clock: MockClock) -> None:
    async with Rig(definitions=table(q=5)).run() as rig:
        assert bound(rig.alive) == 5
        assert rig.alive.settings_parts.definitions.values("policy") == table(q=5)["policy"]


@pytest.mark.parametrize("changed", [7, None])
async def test_a_change_and_a_deletion_by_an_operator_survive_restarts(
    autojump_clock: MockClock, changed: int | None
) -> None:
    rig = Rig(definitions=table(q=5))
    async with rig.run():
        await set_bound(rig, changed)

    for _ in range(2):
        async with rig.run():
            assert bound(rig.alive) == (changed or 0)


async def test_only_entries_that_changed_in_the_file_are_applied(autojump_clock: MockClock) -> None:
    rig = Rig(definitions=table(q=5, r=5))
    async with rig.run():
        await set_bound(rig, 7)

    rig.settings = rig.settings.replace({"definitions": table(q=5, r=6)})
    async with rig.run():
        assert (bound(rig.alive), bound(rig.alive, "/queue/r")) == (7, 6)

    rig.settings = rig.settings.replace({"definitions": table(q=8, r=6)})
    async with rig.run():
        assert (bound(rig.alive), bound(rig.alive, "/queue/r")) == (8, 6)


async def test_an_entry_that_was_left_out_deletes_nothing_and_is_applied_when_it_comes_back(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(definitions=table(q=5))
    async with rig.run():
        assert await reading(rig, {}).reload()
        assert bound(rig.alive) == 5
        await set_bound(rig, 7)
        assert await reading(rig, table(q=5)).reload()
        assert bound(rig.alive) == 5


async def test_a_start_by_force_applies_all_entries(autojump_clock: MockClock) -> None:
    rig = Rig(definitions=table(q=5))
    async with rig.run():
        await set_bound(rig, 7)

    rig.forces_definitions = True
    async with rig.run():
        assert bound(rig.alive) == 5
        await set_bound(rig, 8)

    rig.forces_definitions = False
    async with rig.run():
        assert bound(rig.alive) == 8


async def test_a_reload_applies_what_has_changed_or_nothing(autojump_clock: MockClock) -> None:
    async with Rig(definitions=table(q=5)).run() as rig:
        assert await reading(rig, table(q=6)).reload()
        assert bound(rig.alive) == 6

        assert not await reading(rig, {**table(q=9), "queue": {"/topic/t": {}}}).reload()

        assert bound(rig.alive) == 6
        (condition,) = present(rig.alive)
        assert "definitions: queue /topic/t: the name must be" in condition["message"]


async def test_a_bad_entry_ends_the_start_and_is_named(autojump_clock: MockClock) -> None:
    with pytest.raises(BaseExceptionGroup) as ended:
        async with Rig(definitions={"policy": {Q: {"max_messages": -1}}}).run():
            pass

    (error,) = ended.value.split(ConfigError)[0].exceptions  # type: ignore[union-attr]
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    text = "the settings of a: definitions: policy /queue/q: max_messages = -1: must be at least 0"
    assert error.diagnostics == [text]  # type: ignore[attr-defined]


async def test_nodes_with_the_same_file_apply_an_entry_once(autojump_clock: MockClock) -> None:
    mesh = MeshRig("a", "b")
    mesh.files["a"] = mesh.files["b"] = NodeSettings(definitions=table(q=5))
    async with mesh.run():
        await until_alike(mesh)
        await ask(mesh, "a", f"put/policy{Q}", {"max_messages": 7})
        await until_alike(mesh)
        for name in ("a", "b"):
            await mesh.kill(name)
            await mesh.start(name)
            await mesh.until_linked()
            await until_alike(mesh)

        assert [bound(node) for node in mesh.nodes.values()] == [7, 7]


async def test_an_entry_that_another_node_has_applied_since_is_not_applied_again(autojump_clock: MockClock) -> None:
    mesh = MeshRig("a", "b")
    mesh.files["a"] = mesh.files["b"] = NodeSettings(definitions=table(q=5))
    async with mesh.run():
        await until_alike(mesh)
        mesh.files["a"] = mesh.files["b"] = NodeSettings(definitions=table(q=6))
        await mesh.kill("a")
        await mesh.start("a")
        await mesh.until_linked()
        await ask(mesh, "a", f"put/policy{Q}", {"max_messages": 7})
        await until_alike(mesh)

        await mesh.kill("b")
        await mesh.start("b")
        await mesh.until_linked()
        await until_alike(mesh)

        assert [bound(node) for node in mesh.nodes.values()] == [7, 7]


# Reading the table

INLINE = '[definitions.policy."/queue/q"]\nmax_messages = 5\n'


@pytest.fixture
def node_file(tmp_path: Path) -> Path:
    return tmp_path / "node.toml"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("more.toml", INLINE.replace("definitions.", "")),
        ("more.json", json.dumps({"qmq_definitions": 1, "definitions": table(q=5)})),
    ],
)
def test_the_table_is_inline_or_in_a_file(node_file: Path, name: str, text: str) -> None:
    node_file.write_text(INLINE, "utf-8")
    inline = load_node(node_file).definitions
    (node_file.parent / name).write_text(text, "utf-8")
    node_file.write_text(f'[definitions]\nfile = "{name}"\n', "utf-8")

    assert load_node(node_file).definitions == inline == table(q=5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[definitions]\npolicy = 5\n", "node.toml:2: definitions.policy = 5: must be a section of names"),
        ("[definitions.policy]\nx = 5\n", "node.toml:2: definitions.policy.x = 5: must be a section of keys"),
        ('[definitions]\nfile = "none.json"\n', "none.json: cannot be read: No such file"),
        ('[definitions]\nfile = "none.toml"\n', "none.toml: cannot be read: No such file"),
        ('[definitions]\nfile = "node.toml"\npolicy = {}\n', "definitions: file: must be alone"),
        ('[definitions]\nfile = "bad.json"\n', "bad.json: must be TOML, or JSON that `qmq definitions export` prints"),
    ],
)
def test_a_bad_table_is_named(node_file: Path, text: str, why: str) -> None:
    (node_file.parent / "bad.json").write_text("[]", "utf-8")
    node_file.write_text(text, "utf-8")

    with pytest.raises(ConfigError) as refused:
        load_node(node_file)

    assert len(refused.value.diagnostics) == 1
    assert why in refused.value.diagnostics[0]


async def test_a_change_while_the_file_is_being_applied_can_refuse_the_reload_and_not_end_the_node(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(definitions=table(q=5)).run() as rig:
        live = rig.alive.settings_parts.definitions
        await live.change({Key("exchange", "e"): {"type": "fanout"}, Key("queue", "/queue/r"): {}})
        before = rig.alive.settings

        async def ask(sync: DefinitionSync, keys: object) -> bool:
            monkeypatch.undo()
            await live.change({Key("exchange", "e"): None})
            return True

        # Asked before a change to what is so already is decided.
        monkeypatch.setattr(DefinitionSync, "knows_latest", ask)
        route = {"/exchange/e /queue/q": {"source": "/exchange/e", "queue": "/queue/q"}}
        assert not await reading(rig, {**table(q=6), "queue": {"/queue/r": {}}, "binding": route}).reload()

        assert bound(rig.alive) == 5
        assert rig.alive.settings is before
        (condition,) = present(rig.alive)
        assert "there is no exchange e" in condition["message"]
