"""A node that starts with a wrong clock: what may be dropped by age, and when the clock is believed."""

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.engine.runtime import listed_parts
from qmq.mesh.membership import clock_check
from qmq.mesh.membership.clock_check import APART_SECONDS_MAX, BELIEVED_AFTER_SECONDS, NOTE_SECONDS
from qmq.node.node import Node
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.support.conditions import present

HOUR = 3600.0
DAY_US = 86_400 * 1_000_000
JOBS = "/queue/jobs"
NEWS = "/fanout/news"
KEPT_AN_HOUR = DestinationSettings(policies=(DestinationPolicy(pattern="/fanout/*", retention_seconds=HOUR),))


async def fill(client: Client) -> None:
    """A fanout message, and a queue message that lives for a day."""
    await client.send(send(NEWS, "news", "r1"), send(JOBS, "job", "r2", ttl="86400000"))
    await client.receipt()
    await client.receipt()


async def news(client: Client) -> list[bytes]:
    """What of `fill` a subscriber that begins now gets before a message that is sent after it."""
    end = f"end at {trio.current_time()}"
    await client.send(subscribe(NEWS, "n"), send(NEWS, end))
    found: list[bytes] = []
    while end.encode() not in found:
        found += await client.messages(1)
    await client.send("UNSUBSCRIBE\nid:n\n\n")
    return [body for body in found if not body.startswith(b"end")]


async def job(client: Client) -> bytes:
    await client.send(subscribe(JOBS, "j", ack="client-individual"))
    return (await client.next("MESSAGE")).body


async def old_things_go(node: Node) -> None:
    """Nothing is left of `fill` once age counts: the fanout's log is empty, the message has expired."""
    await eventually(lambda: not node.store.fanout_info(NEWS).records)


def conditions(node: Node) -> list[str]:
    return [one["message"] for one in present(node) if one["code"] == "clock"]


@pytest.mark.parametrize("days", [8, -8])
async def test_a_node_alone_that_starts_with_a_wrong_clock_keeps_everything_and_says_so(
    autojump_clock: MockClock, days: int
) -> None:
    rig = Rig(destinations=KEPT_AN_HOUR)
    async with rig.run():
        await fill(await rig.connect())
    rig.skew_us = days * DAY_US
    async with rig.run():
        client = await rig.connect()
        await trio.sleep(HOUR / 2)

        assert await news(client) == [b"news"]
        assert await job(client) == b"job"
        assert len(conditions(rig.alive)) == 1
        assert f"8 days {'ahead of' if days > 0 else 'behind'} what its disk had noted" in conditions(rig.alive)[0]
        client.pipe.close()
    rig.skew_us = 0
    async with rig.run():
        client = await rig.connect()

        assert await news(client) == [b"news"]
        assert await job(client) == b"job"
        assert not conditions(rig.alive)


async def test_what_is_there_ages_by_the_time_that_the_node_runs_while_its_clock_is_in_doubt(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(destinations=KEPT_AN_HOUR)
    async with rig.run():
        await fill(await rig.connect())
    rig.skew_us = 8 * DAY_US
    async with rig.run():
        client = await rig.connect()
        await client.send(send("/queue/short", "new", "r", ttl="60000"))
        await client.receipt()
        await trio.sleep(120)
        assert await news(client) == [b"news"]

        await trio.sleep(2 * HOUR)

        assert conditions(rig.alive)
        assert await news(client) == []
        assert not rig.alive.broker.queues.by_name.get("/queue/short")


async def test_a_wrong_clock_is_in_doubt_after_another_start_too(autojump_clock: MockClock) -> None:
    rig = Rig(destinations=KEPT_AN_HOUR)
    async with rig.run():
        await fill(await rig.connect())
    rig.skew_us = 8 * DAY_US
    for _ in range(3):
        async with rig.run():
            await trio.sleep(NOTE_SECONDS + 1)
            assert conditions(rig.alive)
            assert await news(await rig.connect()) == [b"news"]


async def test_a_node_alone_believes_its_clock_after_a_day_of_running_in_several_lives(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        await fill(await rig.connect())
    rig.skew_us = 8 * DAY_US
    for _ in range(2):
        async with rig.run():
            await trio.sleep(0.4 * BELIEVED_AFTER_SECONDS)
            assert conditions(rig.alive)
        rig.skew_us += DAY_US
    async with rig.run():
        await trio.sleep(0.3 * BELIEVED_AFTER_SECONDS)
        assert not conditions(rig.alive)
        await old_things_go(rig.alive)


async def test_what_came_while_the_clock_was_in_doubt_is_as_old_as_it_is_when_it_is_believed(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(destinations=DestinationSettings(policies=(DestinationPolicy(pattern="/fanout/*"),)))
    async with rig.run():
        await fill(await rig.connect())
    rig.skew_us = 8 * DAY_US
    async with rig.run():
        client = await rig.connect()
        two_days = str(2 * 86_400_000)
        await client.send(send("/fanout/later", "later", "r1"), send("/queue/later", "later", "r2", ttl=two_days))
        await client.receipt()
        await client.receipt()
        await rig.alive.engine.checkpoints.checkpoint()
        await trio.sleep(BELIEVED_AFTER_SECONDS + NOTE_SECONDS)
        await old_things_go(rig.alive)

        assert not conditions(rig.alive)
        assert rig.alive.store.fanout_info("/fanout/later").records == 1
        client = await rig.connect()
        await client.send(subscribe("/queue/later", "l", ack="client-individual"))
        assert (await client.next("MESSAGE")).body == b"later"


async def test_queues_are_looked_at_in_turns_when_the_clock_is_believed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed_parts, "TURN_ITEMS", 1)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        for number in range(20):
            await client.send(send(f"/queue/{number}", "m", "r", ttl="60000"))
            await client.receipt()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await rig.alive.mesh_parts.clock_check._believe()
            seen = turns
            nursery.cancel_scope.cancel()
    assert seen >= 20


async def test_the_operator_may_say_that_the_clock_is_right(autojump_clock: MockClock) -> None:
    rig = Rig(destinations=KEPT_AN_HOUR)
    async with rig.run():
        await fill(await rig.connect())
    rig.skew_us = 8 * DAY_US
    rig.trusts_clock = True
    async with rig.run():
        await rig.alive.engine.checkpoints.checkpoint()

        await old_things_go(rig.alive)
        assert not conditions(rig.alive)
    rig.trusts_clock = False
    async with rig.run():
        assert not conditions(rig.alive)


async def test_a_node_that_was_off_for_less_than_the_bound_believes_its_clock(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        await fill(await rig.connect())
    rig.skew_us = int((APART_SECONDS_MAX - 10) * 1e6)
    async with rig.run():
        assert not rig.alive.mesh_parts.clock_check.in_doubt


async def test_an_empty_disk_raises_no_doubt(autojump_clock: MockClock) -> None:
    rig = Rig()
    rig.skew_us = 8 * DAY_US
    async with rig.run():
        assert not rig.alive.mesh_parts.clock_check.in_doubt
    async with MeshRig("a", "b", "c").run() as mesh:
        await eventually(lambda: not any(node.mesh_parts.clock_check.in_doubt for node in mesh.nodes.values()))
        assert not any(conditions(node) for node in mesh.nodes.values())


async def filled() -> MeshRig:
    """Three nodes have run, hold what `fill` sends to a, and are stopped."""
    rig = MeshRig("a", "b", "c", destinations=KEPT_AN_HOUR)
    async with rig.run():
        await fill(await rig.connect("a"))
        await eventually(
            lambda: rig.nodes["c"].engine.path.durable_vector() == rig.nodes["a"].engine.path.durable_vector()
        )
    return rig


async def test_a_node_of_a_mesh_that_starts_ahead_of_its_peers_deletes_no_copy(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b", "c", destinations=KEPT_AN_HOUR)
    async with rig.run():
        await fill(await rig.connect("a"))
        await rig.stop("a")
        rig.skews_us["a"] = 8 * DAY_US
        await rig.start("a")
        await rig.until_linked()
        await rig.nodes["a"].engine.checkpoints.checkpoint()
        await trio.sleep(60)

        assert len(conditions(rig.nodes["a"])) == 1
        client = await rig.connect("a")
        assert await news(client) == [b"news"]
        assert await job(await rig.connect("b")) == b"job"


async def test_a_node_that_comes_back_with_its_clock_far_behind_lends_what_has_a_ttl(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await rig.kill("a")
        rig.step_clock("a", -2 * DAY_US)
        await rig.start("a")
        await rig.until_linked()
        assert rig.nodes["a"].mesh_parts.clock_check.in_doubt
        await fill(await rig.connect("a"))

        # By the clock that a had before, the message would be late.
        with trio.fail_after(60):
            assert await job(await rig.connect("b")) == b"job"


async def test_a_crash_makes_no_fanout_message_old_that_came_from_a_clock_that_is_behind(
    autojump_clock: MockClock,
) -> None:
    rig = MeshRig("a", "b", "c", destinations=KEPT_AN_HOUR)
    rig.skews_us["c"] = -2 * DAY_US
    async with rig.run():
        await eventually(lambda: not rig.nodes["a"].mesh_parts.clock_check.in_doubt)
        await fill(await rig.connect("c"))
        await eventually(
            lambda: rig.nodes["a"].engine.path.durable_vector() == rig.nodes["c"].engine.path.durable_vector()
        )
        await rig.kill("a")
        await rig.start("a")
        await rig.until_linked()

        await rig.nodes["a"].engine.checkpoints.checkpoint()

        assert await news(await rig.connect("a")) == [b"news"]


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_what_came_to_an_empty_disk_by_a_wrong_clock_is_not_old_when_the_clock_is_set(
    autojump_clock: MockClock, *, is_trusted: bool
) -> None:
    """Its peers were in doubt, too, so it had heard no clock."""
    kept_a_minute = DestinationPolicy(pattern="/fanout/*", retention_seconds=60.0)
    rig = MeshRig("a", "b", "c", destinations=DestinationSettings(policies=(kept_a_minute,)))
    async with rig.run():
        await eventually(lambda: not any(node.mesh_parts.clock_check.in_doubt for node in rig.nodes.values()))
        await fill(await rig.connect("a"))
        await eventually(
            lambda: rig.nodes["a"].engine.path.durable_vector() == rig.nodes["c"].engine.path.durable_vector()
        )
        await rig.stop("c", wipe=True)
        for name, days in (("a", 20), ("b", 40), ("c", -2)):
            if name != "c":
                await rig.stop(name)
            rig.skews_us[name] = days * DAY_US
        for name in "abc":
            await rig.start(name)
        await rig.until_linked()
        assert all(node.mesh_parts.clock_check.in_doubt for node in rig.nodes.values())
        await rig.nodes["c"].engine.checkpoints.checkpoint()
        assert rig.nodes["c"].store.fanout_info(NEWS).records == 1

        for name in "abc":
            await rig.stop(name)
        rig.skews_us.clear()
        if is_trusted:
            rig.trusts_clock.add("c")
        for name in "abc":
            await rig.start(name)
        c = rig.nodes["c"]
        await eventually(lambda: not c.mesh_parts.clock_check.in_doubt)
        await c.engine.checkpoints.checkpoint()
        assert c.store.fanout_info(NEWS).records == 1
        await rig.kill("c")
        c = await rig.start("c")
        await eventually(lambda: not c.mesh_parts.clock_check.in_doubt)
        await c.engine.checkpoints.checkpoint()
        assert c.store.fanout_info(NEWS).records == 1, "another start makes it no older"
        await trio.sleep(70)
        await c.engine.checkpoints.checkpoint()
        assert c.store.fanout_info(NEWS).records == 0, "it ages from then on"


async def test_a_node_that_was_off_for_a_month_believes_its_clock_when_peers_have_the_same_time(
    autojump_clock: MockClock,
) -> None:
    rig = await filled()
    rig.skews_us = dict.fromkeys(rig.names, 30 * DAY_US)
    rig.trusts_clock = {"b", "c"}  # as if they had been running all the time
    async with rig.run():
        await old_things_go(rig.nodes["a"])

        assert not conditions(rig.nodes["a"])


async def test_nodes_that_all_start_with_the_same_wrong_clock_do_not_confirm_each_other(
    autojump_clock: MockClock,
) -> None:
    rig = await filled()
    rig.skews_us = dict.fromkeys(rig.names, 8 * DAY_US)
    async with rig.run():
        await trio.sleep(120)

        for name in rig.names:
            assert len(conditions(rig.nodes[name])) == 1
            assert await news(await rig.connect(name)) == [b"news"]
        assert await job(await rig.connect("c")) == b"job"


async def test_one_node_with_a_trusted_clock_frees_a_mesh_of_three_that_was_switched_off(
    autojump_clock: MockClock,
) -> None:
    rig = await filled()
    rig.skews_us = dict.fromkeys(rig.names, 8 * DAY_US)
    rig.trusts_clock = {"b"}
    async with rig.run():
        for name in rig.names:
            await old_things_go(rig.nodes[name])
        await eventually(lambda: not any(conditions(node) for node in rig.nodes.values()))


async def test_the_doubt_of_a_node_that_hears_no_peer_ends_with_the_cut(autojump_clock: MockClock) -> None:
    rig = await filled()
    rig.skews_us = dict.fromkeys(rig.names, 30 * DAY_US)
    rig.trusts_clock = {"b", "c"}
    nodes = rig.nodes
    async with rig.run_apart("a"):
        await trio.sleep(60)
        assert len(conditions(nodes["a"])) == 1
        assert nodes["a"].store.fanout_info(NEWS).records

        rejoin(rig, "a")

        await old_things_go(nodes["a"])
        await eventually(lambda: not conditions(nodes["a"]))


async def test_a_clock_that_is_far_from_those_of_most_peers_is_reported(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b", "c")
    rig.skews_us = {"a": DAY_US}
    rig.trusts_clock = {"a"}
    async with rig.run():
        await trio.sleep(10)

        assert conditions(rig.nodes["a"]) == ["the clock of this node is 24 hours ahead of those of b, c"]
        assert conditions(rig.nodes["b"]) == []


async def test_the_clock_that_is_far_is_reported_at_its_own_node_only(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b", "c")
    async with rig.run():
        await rig.stop("a")
        rig.skews_us["a"] = -DAY_US
        await rig.start("a")
        await trio.sleep(10)

        assert ["behind" in message for message in conditions(rig.nodes["a"])] == [True]
        assert conditions(rig.nodes["b"]) == conditions(rig.nodes["c"]) == []


async def test_a_node_that_was_off_over_night_is_in_doubt_without_a_condition(autojump_clock: MockClock) -> None:
    rig = Rig(destinations=KEPT_AN_HOUR)
    async with rig.run():
        await fill(await rig.connect())
    rig.skew_us = 14 * DAY_US // 24
    async with rig.run():
        client = await rig.connect()
        await trio.sleep(HOUR / 2)

        assert await news(client) == [b"news"]
        assert rig.alive.mesh_parts.clock_check.in_doubt
        assert not conditions(rig.alive)


@pytest.fixture
def short_day(monkeypatch: pytest.MonkeyPatch) -> float:
    """Instead of the day after which a node believes its clock: a mesh takes minutes of real time for a day."""
    monkeypatch.setattr(clock_check, "BELIEVED_AFTER_SECONDS", 120.0)
    return 120.0


async def test_a_mesh_that_was_off_as_a_whole_believes_its_clocks_after_a_day_of_running(
    autojump_clock: MockClock, short_day: float
) -> None:
    mesh = MeshRig("a", "b", "c", destinations=KEPT_AN_HOUR)
    async with mesh.run():
        pass
    mesh.skews_us = dict.fromkeys("abc", 3 * DAY_US)
    async with mesh.run():
        nodes = list(mesh.nodes.values())
        await trio.sleep(60)
        assert all(node.mesh_parts.clock_check.in_doubt for node in nodes)
        assert all(len(conditions(node)) == 1 for node in nodes)
        await trio.sleep(short_day)

        assert not any(node.mesh_parts.clock_check.in_doubt for node in nodes)
        assert not any(conditions(node) for node in nodes)


async def test_a_node_that_is_cut_off_does_not_believe_its_clock_however_long_it_runs(
    autojump_clock: MockClock, short_day: float
) -> None:
    mesh = MeshRig("a", "b", "c", destinations=KEPT_AN_HOUR)
    async with mesh.run():
        isolate(mesh, "a")
        await mesh.stop("a")
        mesh.skews_us["a"] = 8 * DAY_US
        a = await mesh.start("a")
        await trio.sleep(3 * short_day)

        assert a.mesh_parts.clock_check.in_doubt
