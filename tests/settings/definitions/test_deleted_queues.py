"""Deleting a declared queue: what goes with it, nodes that were away or killed, and a queue that is declared again."""

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.routing.binding import Binding
from qmq.definitions.definition import Key
from qmq.mesh.membership.adopt_queues import QueueAdoption
from qmq.model.members import Retirement
from qmq.settings.definitions.deleted_queues import DeletedQueues
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Rig, eventually, send
from tests.settings.definitions.test_declared_queues import Q, declare, request
from tests.settings.definitions.test_definitions_mesh import until_alike


async def fill(mesh: MeshRig, name: str, *bodies: str, **headers: str) -> None:
    client = await mesh.connect(name)
    for body in bodies:
        await client.send(send(Q, body, body, **headers))
        await client.receipt()
    client.pipe.close()


async def delete(mesh: MeshRig, name: str, **headers: str) -> dict[str, str]:
    client = await mesh.connect(name)
    answer = await request(client, f"delete{Q}", **headers)
    client.pipe.close()
    return answer


async def depth(mesh: MeshRig, name: str) -> int:
    return await mesh.nodes[name].admin.catalog.depth(Q)


async def until_depth(mesh: MeshRig, name: str, expected: int) -> None:
    with trio.fail_after(60):
        while await depth(mesh, name) != expected:  # noqa: ASYNC110 (the depth is asked of a store)
            await trio.sleep(0.1)


async def passed() -> None:
    """So much time that a node would have dropped what it must drop."""
    await trio.sleep(20)


async def apart(mesh: MeshRig, name: str) -> None:
    isolate(mesh, name)
    await eventually(lambda: not mesh.nodes[name].mesh.followers())


async def together(mesh: MeshRig, name: str) -> None:
    rejoin(mesh, name)
    await mesh.until_linked()
    await until_alike(mesh)


async def test_a_deletion_takes_the_declaration_the_bindings_and_the_pause(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        live = mesh.nodes["a"].settings_parts.definitions
        await declare(mesh, "a", max_messages="5")
        await request(await mesh.connect("a"), f"pause{Q}", part="acceptance")
        bindings = [Binding("/topic/orders", queue, "", {}) for queue in (Q, "/queue/other")]
        other = Key("binding", bindings[1].name)
        await live.change({Key("binding", one.name): one.value for one in bindings})
        await until_alike(mesh)

        dry = await delete(mesh, "b", **{"dry-run": "true"})
        answer = await delete(mesh, "b")
        await until_alike(mesh)

        for facts in (dry, answer):
            assert (facts["declared"], facts["bindings"]) == ("true", "1")
        for node in mesh.nodes.values():
            present = {one.key for one in node.settings_parts.definitions.table.present()} - {
                Key("seeded", one) for one in live.kinds
            }
            assert present == {other}
            assert node.settings_parts.policies.queue_rules(Q).messages_max != 5


async def test_a_queue_with_messages_is_not_deleted_if_empty(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a")
        await fill(mesh, "b", "1")

        answer = await delete(mesh, "a", **{"if-empty": "true"})
        assert (answer["error-code"], "has 1 messages" in answer["message"]) == ("not-empty", True)

        await request(await mesh.connect("a"), f"purge{Q}", scope="mesh")
        assert (await delete(mesh, "a", **{"if-empty": "true"}))["declared"] == "true"


@pytest.mark.parametrize("persistent", ["true", "false"])
async def test_a_node_that_was_away_drops_its_messages(autojump_clock: MockClock, persistent: str) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a", durable=persistent)
        await until_alike(mesh)
        await fill(mesh, "c", "1", "2")
        await apart(mesh, "c")
        await fill(mesh, "c", "3")

        answer = await delete(mesh, "a")
        assert (answer["nodes-missing"], answer["declared"]) == ("c", "true")

        await together(mesh, "c")
        await until_depth(mesh, "c", 0)


@pytest.mark.parametrize(("skewed", "skew_us"), [("c", -1_800_000_000), ("b", 1_800_000_000)])
async def test_what_is_sent_after_the_deletion_stays(autojump_clock: MockClock, skewed: str, skew_us: int) -> None:
    mesh = MeshRig("a", "b", "c")
    # c is behind: its clock shows an earlier time than that of the deletion when it accepts what is sent later. b is
    # ahead: the deletion has a later time than the clock of its node shows.
    mesh.skews_us[skewed] = skew_us
    async with mesh.run():
        await declare(mesh, "b")
        await until_alike(mesh)
        await fill(mesh, "c", "before")
        await apart(mesh, "c")
        await delete(mesh, "a")
        await trio.sleep(1)
        await fill(mesh, "c", "after")

        await together(mesh, "c")
        await until_depth(mesh, "c", 1)
        await passed()

        assert await depth(mesh, "c") == 1
        await mesh.kill("c")
        await mesh.start("c")
        await mesh.until_linked()
        await passed()
        assert await depth(mesh, "c") == 1


async def test_messages_that_a_node_takes_over_or_gets_back_are_dropped(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "c", "1")
        await apart(mesh, "c")
        await delete(mesh, "a")
        await passed()

        assert [await depth(mesh, name) for name in "ab"] == [0, 0]
        assert any("c" in mesh.nodes[name].broker.queues.owned.serves for name in "ab")
        await together(mesh, "c")
        await eventually(lambda: "c" in mesh.nodes["c"].broker.queues.owned.serves)
        await until_depth(mesh, "c", 0)
        await passed()
        assert [await depth(mesh, name) for name in "abc"] == [0, 0, 0]


async def test_a_queue_that_is_declared_again_keeps_the_messages_of_a_node_that_was_away(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a")
        await until_alike(mesh)
        await apart(mesh, "c")
        await fill(mesh, "c", "1")
        await delete(mesh, "a")
        await declare(mesh, "a")

        await together(mesh, "c")
        await passed()

        assert await depth(mesh, "c") == 1


async def test_a_queue_that_is_declared_again_at_once_keeps_its_messages(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "b", "1")
        await request(await mesh.connect("a"), f"definitions/delete/queue{Q}")
        await eventually(lambda: not mesh.nodes["b"].settings_parts.declared_queues.texts)
        await declare(mesh, "a")

        await passed()

        assert await depth(mesh, "b") == 1


async def test_a_node_that_is_killed_before_it_drops_them_completes_that_at_its_start(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "b", "1")
        with monkeypatch.context() as patch:
            patch.setattr(DeletedQueues, "drop", lambda self, queues: list(queues))
            await request(await mesh.connect("a"), f"definitions/delete/queue{Q}")
            await until_alike(mesh)
            await mesh.kill("b")

        await mesh.start("b")
        await mesh.until_linked()

        await until_depth(mesh, "b", 0)


async def test_a_node_drops_nothing_before_it_has_heard_the_node_that_deleted(autojump_clock: MockClock) -> None:
    mesh = MeshRig("a", "b", "c")
    # What is sent to c after the deletion is older by its clock.
    mesh.skews_us["c"] = -1_800_000_000
    async with mesh.run():
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "c", "before")
        await request(await mesh.connect("a"), f"definitions/delete/queue{Q}")
        await until_alike(mesh)
        await fill(mesh, "c", "after")
        await mesh.kill("a")
        await mesh.kill("c")

        await mesh.start("c")
        await passed()
        assert await depth(mesh, "c") == 2

        await mesh.start("a")
        await until_depth(mesh, "c", 1)
        await passed()
        assert await depth(mesh, "c") == 1


async def test_messages_of_a_node_whose_clock_is_not_known_wait_for_it(autojump_clock: MockClock) -> None:
    mesh = MeshRig("a", "b", "c")
    # What is sent to c after the deletion is older by its clock.
    mesh.skews_us["c"] = -1_800_000_000
    async with mesh.run():
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "c", "before")
        await request(await mesh.connect("a"), f"definitions/delete/queue{Q}")
        await until_depth(mesh, "c", 0)
        await fill(mesh, "c", "after", receipt_level="replicas=2")
        for name in "cab":
            await mesh.kill(name)

        # Both have not heard c since their start, and one of them takes its messages over.
        for name in "ab":
            await mesh.start(name)
        await eventually(lambda: any("c" in mesh.nodes[name].broker.queues.owned.serves for name in "ab"))
        await passed()
        assert sorted([await depth(mesh, name) for name in "ab"]) == [0, 1]

        await mesh.start("c")
        await mesh.until_linked()
        await passed()
        assert await depth(mesh, "c") == 1


async def restart(mesh: MeshRig, name: str, *, clock_us: int = 0) -> None:
    """Kill a node, set the clock of its machine, and start it again."""
    await mesh.kill(name)
    mesh.step_clock(name, clock_us)
    await mesh.start(name)
    await mesh.until_linked()


@pytest.mark.parametrize("restarts", [1, 2])
async def test_a_clock_that_is_set_back_keeps_no_message_of_a_deleted_queue(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "a", "before")
        # By its clock, the node deletes the queue before it has accepted the message.
        await restart(mesh, "a", clock_us=-1_200_000_000)
        with monkeypatch.context() as patch:
            patch.setattr(DeletedQueues, "drop", lambda self, queues: list(queues))
            await request(await mesh.connect("a"), f"definitions/delete/queue{Q}")
            await until_alike(mesh)
            for _ in range(restarts - 1):
                await restart(mesh, "a")

        mesh.nodes["a"].settings_parts.deleted_queues.begin()

        await until_depth(mesh, "a", 0)


@pytest.mark.parametrize("restarts", [1, 2])
async def test_a_clock_that_is_set_back_drops_nothing_that_is_sent_after_the_deletion(
    autojump_clock: MockClock, restarts: int
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a")
        await delete(mesh, "a")
        await until_alike(mesh)
        # By its clock, the node has accepted the message before it deleted the queue.
        await restart(mesh, "a", clock_us=-1_200_000_000)
        await fill(mesh, "a", "after")

        for _ in range(restarts - 1):
            await restart(mesh, "a")
        mesh.nodes["a"].settings_parts.deleted_queues.begin()
        await passed()

        assert await depth(mesh, "a") == 1


# With the second, the clock is in doubt, and the node sends its peers no time.
@pytest.mark.parametrize("clock_us", [-1_200_000_000, -7_200_000_000])
async def test_a_node_that_serves_another_keeps_what_a_later_run_of_it_accepted(
    autojump_clock: MockClock, clock_us: int
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a")
        await delete(mesh, "a")
        await until_alike(mesh)
        await restart(mesh, "a", clock_us=clock_us)
        await fill(mesh, "a", "after", receipt_level="replicas=2")
        await mesh.kill("a")
        await eventually(lambda: any("a" in mesh.nodes[name].broker.queues.owned.serves for name in "bc"))
        await passed()

        assert sorted([await depth(mesh, name) for name in "bc"]) == [0, 1]


async def test_a_node_drops_no_message_of_a_later_run_that_it_has_never_heard_itself(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a")
        await delete(mesh, "a")
        await until_alike(mesh)
        await mesh.kill("a")
        mesh.cut("a", "b")
        await mesh.start("a")
        await eventually(lambda: not mesh.nodes["a"].broker.queues.held)
        await fill(mesh, "a", "after", receipt_level="replicas=1")
        await eventually(lambda: mesh.nodes["b"].engine.path.received_vector().get(mesh.nodes["a"].origin, 0) > 1)
        await mesh.kill("a")
        await eventually(lambda: any("a" in mesh.nodes[name].broker.queues.owned.serves for name in "bc"))
        await passed()

        assert sorted([await depth(mesh, name) for name in "bc"]) == [0, 1]


async def test_a_node_forgets_no_deletion_while_its_clock_is_in_doubt(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "c", "before")
        await mesh.kill("c")
        await request(await mesh.connect("a"), f"definitions/delete/queue{Q}")
        mesh.step_clock("c", 8 * 86_400_000_000)
        await mesh.start("c")
        await mesh.until_linked()
        await until_alike(mesh)
        c = mesh.nodes["c"]
        assert c.mesh_parts.clock_check.in_doubt
        for _ in range(3):
            await trio.sleep(2)
            await c.engine.checkpoints.checkpoint()

        await restart(mesh, "c", clock_us=-8 * 86_400_000_000)

        await until_depth(mesh, "c", 0)


async def test_messages_of_a_retired_node_are_dropped_by_the_node_that_adopts_them(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c", "d").run() as mesh:
        await declare(mesh, "b")
        await until_alike(mesh)
        await fill(mesh, "d", "before", receipt_level="replicas=3")
        await mesh.kill("d")
        a = mesh.nodes["a"]
        await request(await mesh.connect("b"), f"definitions/delete/queue{Q}")
        await eventually(lambda: a.settings_parts.deleted_queues.is_running)
        await eventually(lambda: not a.settings_parts.deleted_queues.is_running)

        await request(await mesh.connect("a"), "retire/d")
        await eventually(lambda: a.mesh_parts.adoption.adopted == 1)

        await until_depth(mesh, "a", 0)


@pytest.mark.parametrize("corrected", ["a", "c"])
async def test_a_clock_that_is_corrected_later_drops_nothing_that_was_sent_after_the_deletion(
    autojump_clock: MockClock, corrected: str
) -> None:
    mesh = MeshRig("a", "b", "c")
    # By the clocks as they are later, c accepts the message before a deletes the queue.
    mesh.skews_us[corrected] = wrong_us = 1_200_000_000 if corrected == "a" else -1_200_000_000
    async with mesh.run():
        await declare(mesh, "a")
        await fill(mesh, "c", "before")
        await until_alike(mesh)
        await request(await mesh.connect("a"), f"definitions/delete/queue{Q}")
        await until_depth(mesh, "c", 0)
        await fill(mesh, "c", "after")

        await restart(mesh, corrected, clock_us=-wrong_us)
        mesh.nodes["c"].settings_parts.deleted_queues.begin()
        await passed()

        assert await depth(mesh, "c") == 1


async def test_an_adopter_takes_no_message_of_a_queue_that_it_deleted_in_an_earlier_run(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "c", "before", receipt_level="replicas=2")
        await mesh.stop("c")
        await request(await mesh.connect("a"), f"definitions/delete/queue{Q}")
        await mesh.kill("a")
        await mesh.start("a")
        await eventually(lambda: set(mesh.nodes["a"].mesh.followers()) == {"b"})

        await request(await mesh.connect("a"), "retire/c")
        await eventually(lambda: mesh.nodes["a"].store.queues.is_empty("c"))
        await passed()

        assert await depth(mesh, "a") == 0


@pytest.mark.parametrize("is_deleted_first", [True, False])
async def test_messages_of_a_retired_node_are_older_than_a_later_deletion_whatever_its_clock_showed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, is_deleted_first: bool
) -> None:
    mesh = MeshRig("a", "b", "c")
    mesh.skews_us["c"] = 1_800_000_000
    async with mesh.run():
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "c", "before", receipt_level="replicas=2")
        await mesh.stop("c")
        # From now on a knows nothing of the clock of c.
        await mesh.kill("a")
        await mesh.start("a")
        await eventually(lambda: set(mesh.nodes["a"].mesh.followers()) == {"b"})
        a = mesh.nodes["a"]

        with monkeypatch.context() as patch:
            if is_deleted_first:
                patch.setattr(QueueAdoption, "_held", _too_many)
            await request(await mesh.connect("a"), "retire/c")
            if not is_deleted_first:
                await eventually(lambda: a.mesh_parts.adoption.adopted == 1)
            await request(await mesh.connect("b"), f"definitions/delete/queue{Q}")
            await eventually(lambda: not a.settings_parts.declared_queues.texts)

        await eventually(lambda: a.mesh_parts.adoption.adopted == 1)
        await passed()
        assert await depth(mesh, "a") == 0


async def test_what_no_reachable_node_had_of_a_retired_one_is_older_than_a_deletion_only_by_its_clock(
    autojump_clock: MockClock,
) -> None:
    mesh = MeshRig("a", "b", "c")
    mesh.skews_us["c"] = 1_800_000_000
    async with mesh.run():
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "c", "before", receipt_level="replicas=2")
        await mesh.stop("c")
        # From now on a knows nothing of the clock of c.
        await mesh.kill("a")
        await mesh.start("a")
        await eventually(lambda: set(mesh.nodes["a"].mesh.followers()) == {"b"})
        a = mesh.nodes["a"]

        for name in "ab":
            mesh.nodes[name].mesh_parts.members.retired(Retirement(node="c", adopter="a"))
        await eventually(lambda: a.mesh_parts.adoption.adopted == 1)
        await request(await mesh.connect("b"), f"definitions/delete/queue{Q}")
        await until_alike(mesh)
        await passed()

        assert await depth(mesh, "a") == 1


async def _too_many(adoption: QueueAdoption, owner: str, is_patient: bool) -> None:  # noqa: FBT001 (as it is called)
    """Nothing may be adopted yet."""


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.02, 0.05, 0.2])
async def test_a_deletion_that_a_kill_interrupts_can_be_made_again(autojump_clock: MockClock, seconds: float) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a")
        await fill(mesh, "b", "1", "2")
        await until_alike(mesh)
        client = await mesh.connect("a")
        await client.send(send(f"/control/delete{Q}", "", "r"))
        await trio.sleep(seconds)
        await mesh.kill("a")
        await mesh.start("a")
        await mesh.until_linked()

        assert (await delete(mesh, "b"))["reason"] == ""
        await until_alike(mesh)
        assert [await depth(mesh, name) for name in "ab"] == [0, 0]
        assert not any(node.settings_parts.declared_queues.texts for node in mesh.nodes.values())


async def test_a_deletion_does_not_wait_for_an_earlier_one_that_is_tried_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        asked: list[tuple[float, list[str]]] = []

        async def drop(names: list[str]) -> list[str]:
            asked.append((round(trio.current_time() - began), names))
            return [name for name in names if name == Q and trio.current_time() - began < 5]

        monkeypatch.setattr(rig.alive.settings_parts.deleted_queues, "_drop", drop)
        began = trio.current_time()
        rig.alive.settings_parts.deleted_queues.drop([Q])
        await trio.sleep(1.5)
        rig.alive.settings_parts.deleted_queues.drop(["/queue/later"])
        await passed()

        assert asked == [(1, [Q]), (2, ["/queue/later"]), (6, [Q])]


async def test_a_node_without_deleted_queues_waits_for_nothing(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        assert not rig.alive.settings_parts.deleted_queues.is_running
