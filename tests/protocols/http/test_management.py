"""What Flower and probes read of RabbitMQ's management API: queues of all nodes, nodes that are away, and rights."""

import pytest
from trio.testing import MockClock

from qmq.definitions.definition import Key
from qmq.protocols.http import management_pages as pages
from qmq.protocols.http.gateway import management
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually
from tests.protocols.http.rig import batch, dial, dial_node, web_rig


async def test_queues_have_the_fields_that_flower_reads(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        here, there = await dial_node(mesh, "a"), await dial_node(mesh, "b")
        await here.post("/v1/queues/jobs/messages", batch("1", "2"))
        await there.post("/v1/queues/jobs/messages", batch("3"))
        await there.receive("jobs", 1)

        (row,) = (await here.get("/api/queues/%2F")).facts

        assert (row["name"], row["vhost"], row["messages"]) == ("jobs", "/", 3)
        assert (row["messages_ready"], row["messages_unacknowledged"]) == (2, 1)
        assert row["message_stats"]["publish"] == 3
        assert (await here.get("/api/queues/%2F/jobs")).facts == row
        for path in ("/api/queues", "/api/queues/", "/api/queues//"):  # the last two are Flower's
            assert (await here.get(path)).facts == [row]


async def test_queues_of_virtual_hosts_are_apart(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        await rig.alive.settings_parts.definitions.change({Key("vhost", name): {} for name in ("shop", "bank")})
        client = await dial(rig)
        for name in ("jobs", "shop~jobs", "shop~more", "shop", "other~jobs"):
            await client.post(f"/v1/queues/{name}/messages", batch("x"))

        async def names(path: str) -> list[tuple[str, str]]:
            return [(row["vhost"], row["name"]) for row in (await client.get(path)).facts]

        of_shop = [("shop", "jobs"), ("shop", "more")]
        of_default = [("/", "jobs"), ("/", "other~jobs"), ("/", "shop")]
        assert sorted(await names("/api/queues")) == [*of_default, *of_shop]
        assert await names("/api/queues/%2F") == of_default
        assert await names("/api/queues/shop") == await names("/api/queues/%2Fshop") == of_shop
        assert await names("/api/queues/bank") == []
        row = (await client.get("/api/queues/shop/jobs")).facts
        assert (row["vhost"], row["name"], row["messages"]) == ("shop", "jobs", 1)
        assert (await client.get("/api/queues/shop/none")).status == 404
        assert [row["name"] for row in (await client.get("/api/vhosts")).facts] == ["/", "bank", "shop"]
        assert (await client.get("/api/vhosts/shop")).facts == {"name": "shop"}


async def test_all_queues_come_however_many_pages_they_are(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "PAGE_ROWS", 2)
    async with web_rig().run() as rig:
        client = await dial(rig)
        for number in range(5):
            await client.post(f"/v1/queues/{number}/messages", batch("x"))

        assert [row["name"] for row in (await client.get("/api/queues")).facts] == ["0", "1", "2", "3", "4"]


async def test_queues_of_other_virtual_hosts_do_not_count_towards_the_rows_of_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "PAGE_ROWS", 2)
    monkeypatch.setattr(pages, "QUEUES_MAX", 2)
    monkeypatch.setattr(management, "QUEUES_MAX", 2)
    async with web_rig().run() as rig:
        await rig.alive.settings_parts.definitions.change({Key("vhost", "a"): {}})
        client = await dial(rig)
        for name in ("a~1", "a~2", "a~3", "b", "c", "d"):
            await client.post(f"/v1/queues/{name}/messages", batch("x"))

        assert [row["name"] for row in (await client.get("/api/queues/%2F")).facts] == ["b", "c"]


async def test_a_node_that_is_away_is_not_running(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await dial_node(mesh, "a")
        await mesh.kill("c")
        await eventually(lambda: len(mesh.nodes["a"].mesh.followers()) == 1)

        rows = {row["name"]: row["running"] for row in (await client.get("/api/nodes")).facts}

        assert rows == {"a": True, "b": True, "c": False}


async def test_overview_and_health_of_a_node(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await client.post("/v1/queues/jobs/messages", batch("1"))

        overview = (await client.get("/api/overview")).facts
        assert (overview["object_totals"]["queues"], overview["message_stats"]["publish"]) == (1, 1)
        assert (await client.get("/api/vhosts")).facts == [{"name": "/"}]
        assert (await client.get("/api/vhosts/%2F")).facts == {"name": "/"}
        for path in ("/api/healthchecks/node", "/api/health/checks/alarms"):
            assert (await client.get(path)).facts == {"status": "ok"}

        rig.alive.broker.send_limits.disk_full = True
        node = await client.get("/api/healthchecks/node")
        alarms = await client.get("/api/health/checks/alarms")
        assert node.facts == alarms.facts == {"status": "failed", "reason": "the disk is full"}
        assert (node.status, alarms.status) == (200, 503)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/queues/%2F/absent", 404, "unknown-destination"),
        ("/api/queues/other", 404, "unknown-destination"),
        ("/api/queues/other/absent", 404, "unknown-destination"),
        ("/api/vhosts/other", 404, "unknown-destination"),
        ("/api/users", 404, "unknown-path"),
        ("/api", 404, "unknown-path"),
    ],
)
async def test_what_is_not_there_is_404(autojump_clock: MockClock, path: str, status: int, code: str) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)
        await client.post("/v1/queues/absent-not/messages", batch("x"))

        response = await client.get(path)

        assert (response.status, response.code) == (status, code)


async def test_nothing_can_be_changed(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)

        assert (await client.ask("DELETE", "/api/queues/%2F/jobs")).status == 405


async def test_without_users_any_login_is_served_as_flower_sends_one(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig, user="guest")

        assert (await client.get("/api/overview")).status == 200
