"""Queues that a user declares, and bytes that they hold, against the limits of that user."""

import json
from typing import Any

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.config import PermissionSettings, User, UserLimitSettings
from qmq.definitions.definition import Key
from qmq.settings.limits.holdings import COUNT_SECONDS_MIN
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.settings.definitions.test_declared_queues import request
from tests.settings.definitions.test_definitions_mesh import until_alike

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
USERS = tuple(User(name=name, password_hash=HASH, groups=("client",)) for name in ("ann", "bob"))
TWO_QUEUES = UserLimitSettings(user="ann", queues_max=2)
BYTES = UserLimitSettings(user="ann", held_bytes_max=1000)


def rig_of(*rows: UserLimitSettings, **settings: Any) -> Rig:
    return Rig(users=USERS, user_limits=rows, **settings)


async def log_in(rig: Rig, user: str = "ann") -> Client:
    return await rig.connect(login=user, passcode="secret", on_error="keep-open")


async def said(client: Client, frame: str) -> str:
    """`done`, or the error-code."""
    await client.send(frame)
    while (found := await client.any()).head.command not in ("RECEIPT", "ERROR"):
        pass
    return found.head.headers.get("error-code", "done")


# Queues


async def test_a_user_declares_no_more_queues_than_it_may_and_one_again_is_no_more(autojump_clock: MockClock) -> None:
    async with rig_of(TWO_QUEUES).run() as rig:
        ann, bob = await log_in(rig), await log_in(rig, "bob")
        assert (await request(bob, "declare/queue/0"))["changed"] == "1"
        for name in ("1", "2", "2", "0"):
            assert "changed" in await request(ann, f"declare/queue/{name}")

        for headers in ({}, {"dry_run": "true"}):
            refused = await request(ann, "declare/queue/3", **headers)
            assert (refused["error-code"], refused["message"]) == (
                "too-many-queues",
                "The user ann has declared its maximum of 2 queues.",
            )
        assert "changed" in await request(bob, "declare/queue/3")


async def test_a_deleted_queue_makes_room_for_another_one(autojump_clock: MockClock) -> None:
    async with rig_of(TWO_QUEUES).run() as rig:
        ann = await log_in(rig)
        for name in ("1", "2"):
            await request(ann, f"declare/queue/{name}")

        await rig.alive.settings_parts.definitions.change({Key("queue", "/queue/1"): None})

        assert (await request(ann, "declare/queue/3"))["changed"] == "1"


async def test_the_queue_of_a_durable_topic_subscription_counts_too(autojump_clock: MockClock) -> None:
    async with rig_of(TWO_QUEUES).run() as rig:
        ann = await log_in(rig)
        frames = [subscribe("/topic/t", f"s{number}", durable="true", auto_delete="false") for number in range(3)]

        assert [await said(ann, frame) for frame in frames] == ["done", "done", "too-many-queues"]


async def test_two_declarations_at_once_do_not_both_take_the_last_place(autojump_clock: MockClock) -> None:
    async with rig_of(TWO_QUEUES).run() as rig:
        clients = [await log_in(rig) for _ in range(6)]
        answers: list[dict[str, str]] = []

        async def declare(client: Client, number: int) -> None:
            answers.append(await request(client, f"declare/queue/{number}"))

        async with trio.open_nursery() as nursery:
            for number, client in enumerate(clients):
                nursery.start_soon(declare, client, number)

        assert sorted(one.get("error-code", "") for one in answers) == ["", "", *["too-many-queues"] * 4]


async def test_queues_that_were_declared_on_other_nodes_count(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", users=USERS, user_limits=(TWO_QUEUES,)).run() as mesh:
        for number, name in enumerate("ab"):
            client = await mesh.connect(name, login="ann", passcode="secret")
            assert (await request(client, f"declare/queue/{number}"))["changed"] == "1"
        await until_alike(mesh)

        client = await mesh.connect("a", login="ann", passcode="secret")
        assert (await request(client, "declare/queue/2"))["error-code"] == "too-many-queues"


async def test_a_queue_that_users_declare_on_both_sides_of_a_cut_counts_for_the_same_one_everywhere(
    autojump_clock: MockClock,
) -> None:
    one_queue = UserLimitSettings(user="bob", queues_max=1)
    async with MeshRig("a", "b", users=USERS, user_limits=(one_queue,)).run() as mesh:
        mesh.cut("a", "b")
        await eventually(lambda: not mesh.nodes["a"].mesh.followers() and not mesh.nodes["b"].mesh.followers())
        for name, user in (("a", "ann"), ("b", "bob")):
            client = await mesh.connect(name, login=user, passcode="secret")
            await client.send(subscribe("/queue/q"))
            await client.receipt()
            assert (await request(client, "declare/queue/q"))["changed"] == "1"

        mesh.heal("a", "b")
        await until_alike(mesh)

        for name in "ab":
            client = await mesh.connect(name, login="bob", passcode="secret")
            assert (await request(client, "declare/queue/2"))["error-code"] == "too-many-queues"


async def test_the_user_that_declared_a_queue_first_keeps_it_and_an_administrator_may_replace_the_rest(
    autojump_clock: MockClock,
) -> None:
    async with rig_of().run() as rig:
        ann, bob = await log_in(rig), await log_in(rig, "bob")
        await request(ann, "declare/queue/q", {"max_messages": 5})

        answer = await request(bob, "declare/queue/q", {"max_messages": 5})
        assert (answer["changed"], json.loads(answer["value"])["declared_by"]) == ("0", "ann")
        rows = (PermissionSettings(user="bob", allow=("administer",), destinations=("/queue/q",)),)
        rig.alive.session_parts.login_path.access.change(USERS, [row.permission for row in rows])
        answer = await request(bob, "declare/queue/q", {"max_messages": 6}, replace="true")
        assert json.loads(answer["value"]) == {"max_messages": 6, "declared_by": "ann"}

        refused = await request(bob, "declare/queue/x", {"declared_by": "ann"})
        assert "declared_by: must be left out" in refused["message"]


# Bytes


async def test_queues_that_a_user_declared_take_no_more_bytes_than_it_may_hold_from_any_sender(
    autojump_clock: MockClock,
) -> None:
    async with rig_of(BYTES).run() as rig:
        ann, bob = await log_in(rig), await log_in(rig, "bob")
        for name in ("1", "2"):
            await request(ann, f"declare/queue/{name}")
        await request(bob, "declare/queue/3")

        assert await said(ann, send("/queue/1", "x" * 600, "r")) == "done"
        assert await said(bob, send("/queue/2", "x" * 300, "r")) == "done"
        assert await said(bob, send("/queue/2", "x" * 300, "r")) == "user-full"
        assert await said(ann, send("/queue/1", "x" * 100, "r")) == "done"
        assert await said(ann, send("/queue/1", "x", "r")) == "user-full"
        # Queues of others, and those of no user.
        for name in ("3", "4"):
            assert await said(ann, send(f"/queue/{name}", "x" * 2000, "r")) == "done"


async def test_a_run_of_sends_is_cut_at_the_limit(autojump_clock: MockClock) -> None:
    async with rig_of(BYTES).run() as rig:
        ann = await log_in(rig)
        await request(ann, "declare/queue/q")
        await said(ann, send("/queue/q", "", "r"))

        await ann.send(*[send("/queue/q", "x" * 100) for _ in range(25)])
        codes = [(await ann.any()).head.headers["error-code"] for _ in range(15)]

        assert rig.alive.broker.queues.by_name["/queue/q"].body_bytes == 1000
        assert codes == ["user-full"] * 15


@pytest.mark.parametrize("is_stored", [False, True])
async def test_what_is_consumed_makes_room_within_a_second(autojump_clock: MockClock, is_stored: bool) -> None:
    async with rig_of(BYTES).run() as rig:
        ann = await log_in(rig)
        await request(ann, "declare/queue/q")
        for _ in range(2):
            assert await said(ann, send("/queue/q", "x" * 500, "r")) == "done"
        if is_stored:
            await rig.alive.engine.bring_up_stores()
        assert await said(ann, send("/queue/q", "x", "r")) == "user-full"
        await trio.sleep(COUNT_SECONDS_MIN)
        assert await said(ann, send("/queue/q", "x", "r")) == "user-full"

        await ann.send(subscribe("/queue/q"))
        await ann.messages(2)
        await ann.receipt()
        await trio.sleep(COUNT_SECONDS_MIN + 0.1)
        assert await said(ann, send("/queue/q", "x", "r")) == "user-full"  # it causes the count
        await trio.sleep(0.1)

        assert await said(ann, send("/queue/q", "x" * 900, "r")) == "done"


async def test_what_a_node_holds_from_an_earlier_life_counts(autojump_clock: MockClock) -> None:
    rig = rig_of(BYTES)
    async with rig.run():
        ann = await log_in(rig)
        await request(ann, "declare/queue/q")
        assert await said(ann, send("/queue/q", "x" * 900, "r")) == "done"
    async with rig.run():
        ann = await log_in(rig)
        await said(ann, send("/queue/q", "x", "r"))
        await trio.sleep(0.1)

        assert await said(ann, send("/queue/q", "x" * 100, "r")) == "user-full"


async def test_a_transaction_that_does_not_fit_has_no_effect(autojump_clock: MockClock) -> None:
    async with rig_of(BYTES).run() as rig:
        ann = await log_in(rig)
        await request(ann, "declare/queue/q")
        await ann.send("BEGIN\ntransaction:t\n\n", *[send("/queue/q", "x" * 400, transaction="t") for _ in range(3)])

        assert await said(ann, "COMMIT\ntransaction:t\nreceipt:c\n\n") == "user-full"
        assert "/queue/q" not in rig.alive.broker.queues.by_name


async def test_a_limit_counts_and_ends_while_the_node_runs(autojump_clock: MockClock) -> None:
    async with rig_of().run() as rig:
        ann = await log_in(rig)
        await request(ann, "declare/queue/q")
        assert await said(ann, send("/queue/q", "x" * 5000, "r")) == "done"
        assert rig.alive.broker.queues.by_name["/queue/q"].rules.check_owner is None  # a run costs nothing
        change = rig.alive.settings_parts.definitions.change

        await change({Key("limit", "user:ann"): {"held_bytes_max": 1000}})
        await eventually(lambda: rig.alive.broker.queues.by_name["/queue/q"].rules.check_owner is not None)
        await said(ann, send("/queue/q", "x", "r"))
        await trio.sleep(0.1)
        assert await said(ann, send("/queue/q", "x", "r")) == "user-full"

        await change({Key("limit", "user:ann"): None})
        await eventually(lambda: rig.alive.broker.queues.by_name["/queue/q"].rules.check_owner is None)
        assert await said(ann, send("/queue/q", "x", "r")) == "done"
