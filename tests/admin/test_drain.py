"""`qmq drain`: clients finish and go elsewhere, operators stay, consumers at other nodes go on; `undrain` ends it."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.admin.test_bulk_jobs import refusal
from tests.admin.test_connections import ask
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, eventually
from tests.protocols.http.rig import WebClient, dial, web_rig
from tests.sessions.clients.test_draining import acknowledge, commands, consumer, publish
from tests.support.conditions import present


async def drained(client: WebClient, **options: str) -> dict[str, Any]:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    response = await client.post(f"/v1/control/drain?{query}", {})
    assert response.status == 200, response.body
    return dict(response.facts)


async def readiness(rig: Rig) -> tuple[int, dict[str, Any]]:
    response = await (await dial(rig)).get("/readyz")
    return response.status, response.facts


async def test_the_client_that_asks_is_answered_when_all_others_have_left(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        idle, operator = await rig.connect(), await rig.connect()

        facts = await ask(operator, "drain", reason="a new version")

        assert facts == {"drained_node": "a", "state": "drained", "connections": 0, "changed": 1, "dry_run": False}
        (error,) = await idle.until_closed()
        assert error.head.headers["error-code"] == "stopping"
        assert "(a new version)" in error.head.headers["message"]


async def test_a_consumer_finishes_what_it_has_and_gets_nothing_more(autojump_clock: MockClock) -> None:
    async with web_rig(limits={"drain_seconds": 20.0}).run() as rig:
        busy = await consumer(await rig.connect(), prefetch_count="1")
        await publish(await rig.connect(), "one", "two")
        message = await busy.next("MESSAGE")
        web = await dial(rig)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drained, web)
            await eventually(lambda: rig.alive.session_parts.draining.reason is not None)
            assert (await readiness(rig))[1]["draining"] is True

            await busy.send(acknowledge(message))

            assert commands(await busy.until_closed()) == ["RECEIPT", "stopping"]
        assert (await ask_undrain(rig))["state"] == "serving"
        following = await (await consumer(await rig.connect())).next("MESSAGE")
        assert (following.body, following.head.headers.get("redelivered")) == (b"two", None)


async def ask_undrain(rig: Rig) -> dict[str, Any]:
    return dict((await (await dial(rig)).post("/v1/control/undrain", {})).facts)


async def test_a_drained_node_refuses_clients_and_answers_operators(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        assert (await drained(await dial(rig), reason="disk"))["state"] == "drained"

        refused = await (await rig.dial()).until_closed()
        assert [frame.head.headers["error-code"] for frame in refused] == ["stopping"]
        web = await dial(rig)
        sent = await web.send("/v1/queues/jobs", b"x")
        assert (sent.status, sent.code) == (503, "stopping")
        assert (await (await dial(rig)).post("/v1/queues/jobs/receive", b"{}")).code == "stopping"
        status, facts = await readiness(rig)
        assert (status, facts["draining"], facts["reason"]) == (503, True, "disk")
        assert (await (await dial(rig)).get("/metrics")).status == 200
        assert [one["code"] for one in present(rig.alive)] == ["draining"]
        overview = (await (await dial(rig)).get("/v1/control/overview")).facts
        assert overview["nodes"]["a"]["draining"] is True


async def test_undrain_lets_clients_in_again(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        await drained(await dial(rig))

        assert (await ask_undrain(rig))["state"] == "serving"

        client = await consumer(await rig.connect())
        await publish(await rig.connect(), "one")
        assert (await client.next("MESSAGE")).body == b"one"
        assert (await readiness(rig))[0] == 200
        assert not present(rig.alive)


async def test_undrain_ends_a_drain_that_waits_for_a_client_which_connects_again(autojump_clock: MockClock) -> None:
    async with web_rig(limits={"drain_seconds": 1000.0}).run() as rig:
        busy = await consumer(await rig.connect(), prefetch_count="1")
        await publish(await rig.connect(), "one", "two")
        message = await busy.next("MESSAGE")
        web = await dial(rig)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drained, web)
            await eventually(lambda: rig.alive.session_parts.draining.reason is not None)

            assert (await ask_undrain(rig))["state"] == "serving"

        # Its subscription has ended, so it must not be left waiting for messages.
        await busy.send(acknowledge(message))
        assert commands(await busy.until_closed()) == ["RECEIPT", "stopping"]
        again = await consumer(await rig.connect())
        assert (await again.next("MESSAGE")).body == b"two"
        await publish(await rig.connect(), "three")
        assert (await again.next("MESSAGE")).body == b"three"


async def test_a_dry_run_changes_nothing(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()

        assert (await ask(client, "drain", dry_run="true", stop="true"))["state"] == "serving"

        assert (await ask(await rig.connect(), "drain", dry_run="true"))["connections"] == 2


@pytest.mark.parametrize("asked", ["a", "b"])
async def test_a_drain_may_stop_the_node_after_its_answer(autojump_clock: MockClock, asked: str) -> None:
    async with MeshRig("a", "b").run() as rig:
        operator = await rig.connect(asked)

        facts = await ask(operator, "drain/b", stop="true")

        assert (facts["drained_node"], facts["state"]) == ("b", "drained")
        await rig.nodes["b"].ended.wait()
        assert not rig.nodes["a"].is_stopping


async def test_another_node_is_asked_to_let_clients_in_again(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        here, there = await rig.connect("a"), await rig.connect("b")

        assert (await ask(here, "drain/b"))["state"] == "drained"
        (error,) = await there.until_closed()
        assert "a at 127.0.1.1:61613" in error.head.headers["message"]
        assert (await ask(here, "undrain/b"))["state"] == "serving"

        await rig.connect("b")


async def test_a_node_that_is_not_there_is_refused(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        assert await refusal(await rig.connect("a"), "drain/x") == "not-reachable"


async def test_consumers_at_other_nodes_get_what_waits_on_a_drained_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        await publish(await rig.connect("b"), "one", "two")
        operator = await rig.connect("a")
        await ask(operator, "drain/b")

        elsewhere = await consumer(await rig.connect("a"), prefetch_count="1")

        message = await elsewhere.next("MESSAGE")
        await elsewhere.send(acknowledge(message))
        assert [message.body, (await elsewhere.next("MESSAGE")).body] == [b"one", b"two"]


async def test_consumers_of_a_node_that_serves_again_get_messages_of_the_others(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        await consumer(await rig.connect("b"))
        operator = await rig.connect("a")
        await ask(operator, "drain/b")
        await ask(operator, "undrain/b")
        again = await consumer(await rig.connect("b"))

        await publish(await rig.connect("a"), "one")

        message = await again.next("MESSAGE")
        assert (message.body, message.head.headers.get("redelivered")) == (b"one", None)
