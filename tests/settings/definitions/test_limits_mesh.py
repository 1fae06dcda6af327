"""Limits of users as definitions: of a file, changes on any node, and bad values."""

from typing import Any

import argon2
import pytest
from trio.testing import MockClock

from qmq.config import User, UserLimitSettings
from qmq.definitions.definition import Key
from qmq.errors import Refused
from qmq.node.reload import Reloader
from tests.node.mesh_rig import MeshRig
from tests.settings.definitions.test_definitions_mesh import until_alike
from tests.settings.definitions.test_users_mesh import ask
from tests.settings.limits.test_usage import seconds_for
from tests.support.defined import changed

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
ROOT = User(name="root", password_hash=HASH, groups=("administrator",))
BOB = User(name="bob", password_hash=HASH, groups=("client",))


def mesh_of(*names: str, **settings: Any) -> MeshRig:
    return MeshRig(*names, **{"users": (ROOT, BOB), **settings})


async def seconds_of_bob(mesh: MeshRig, name: str) -> float:
    return await seconds_for(await mesh.connect(name, login="bob", passcode="secret"), 30)


async def test_a_limit_that_one_node_sets_counts_on_another_and_after_a_restart(autojump_clock: MockClock) -> None:
    async with mesh_of("a", "b").run() as mesh:
        answer = await ask(mesh, "a", "put/limit/group:client", {"messages_per_second_max": 10})
        assert answer["changed"] == "1"
        await until_alike(mesh)

        assert await seconds_of_bob(mesh, "b") == pytest.approx(2.0, abs=0.3)

        await mesh.kill("b")
        await mesh.start("b")
        await mesh.until_linked()
        assert await seconds_of_bob(mesh, "b") == pytest.approx(2.0, abs=0.3)

        assert (await ask(mesh, "b", "delete/limit/group:client"))["changed"] == "1"
        await until_alike(mesh)
        assert await seconds_of_bob(mesh, "a") < 0.5


async def test_limits_of_the_file_can_be_deleted(autojump_clock: MockClock) -> None:
    rows = (UserLimitSettings(user="bob", messages_per_second_max=10),)
    async with mesh_of("a", "b", user_limits=rows).run() as mesh:
        await ask(mesh, "a", "put/limit/user:*", {"queues_max": 5})
        await until_alike(mesh)
        assert [sorted(node.settings_parts.definitions.values("limit")) for node in mesh.nodes.values()] == [
            ["user:*", "user:bob"]
        ] * 2

        await ask(mesh, "a", "delete/limit/user:bob")
        await until_alike(mesh)
        assert await seconds_of_bob(mesh, "b") < 0.5


async def test_a_reload_changes_limits_of_users_and_addresses_at_once(autojump_clock: MockClock) -> None:
    async with mesh_of("a").run() as mesh:
        node = mesh.nodes["a"]
        bob = await mesh.connect("a", login="bob", passcode="secret")
        before = mesh.settings("a")
        few = changed(before, user_limits=(UserLimitSettings(user="bob", messages_per_second_max=10),))
        many = changed(before, user_limits=(UserLimitSettings(user="bob", messages_per_second_max=0),))
        by_address = before.limits.replace({"messages_per_second_per_address_max": 10})
        for slow, fast in ((few, many), (many.replace({"limits": by_address}), many)):
            assert await Reloader(node, before, None, lambda read=slow: (read, None)).reload()
            assert await seconds_for(bob, 30) == pytest.approx(2.0, abs=0.4)
            assert await Reloader(node, slow, None, lambda read=fast: (read, None)).reload()
            assert await seconds_for(bob, 30) < 0.5
            before = fast


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("user:bob", {}, "must have at least one of connections_max, subscriptions_max"),
        ("user:bob", {"queue_max": 5}, "queue_max: unknown key; did you mean queues_max?"),
        ("user:bob", {"queues_max": -1}, "queues_max = -1: must be at least 0"),
        ("user:bob", {"bytes_per_second_max": 100}, "must be 0 for no limit, or at least 1024"),
        ("user:bob", {"user": "bob", "queues_max": 1}, "must be left out: the name of the definition says it"),
        ("bob", {"queues_max": 1}, "must be named user:NAME or group:NAME"),
        ("user:", {"queues_max": 1}, "must be 1 to"),
        ("user:local-administrator", {"queues_max": 1}, "clients at the Unix socket have no limits"),
        ("user:anonymous", {"connections_max": 1}, "must be without connections_max: for anonymous there are"),
    ],
)
async def test_a_bad_limit_names_the_key_and_what_is_allowed(
    autojump_clock: MockClock, name: str, value: dict[str, object], words: str
) -> None:
    async with mesh_of("a").run() as mesh:
        with pytest.raises(Refused, match="bad-definition") as refused:
            await mesh.nodes["a"].settings_parts.definitions.change({Key("limit", name): value})

        assert words in refused.value.message
        assert refused.value.message.startswith(f"limit {name}: ")


async def test_sizes_may_be_text_and_are_kept_as_numbers(autojump_clock: MockClock) -> None:
    async with mesh_of("a").run() as mesh:
        live = mesh.nodes["a"].settings_parts.definitions
        await live.change({Key("limit", "user:*"): {"held_bytes_max": "1MiB", "bytes_per_second_max": "64KiB"}})

        assert live.values("limit") == {"user:*": {"held_bytes_max": 1 << 20, "bytes_per_second_max": 1 << 16}}
