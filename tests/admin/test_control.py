"""Questions to a node over STOMP: ocamlmq's counts, and the status."""

import json
from collections.abc import Callable
from typing import Any

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.admin.facts import queue_catalog
from qmq.broker.queues.paging.pager import Pager
from qmq.config import User
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, send, subscribe


async def ask(client: Client, question: str) -> dict[str, str]:
    await client.send(send(question, "", "asked"))
    return (await client.next("RECEIPT")).head.headers


async def test_messages_of_a_queue_are_counted_until_they_are_settled(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(*[send("/queue/q", str(n), str(n)) for n in range(3)])
        for _ in range(3):
            await client.receipt()
        before = await ask(client, "/control/count-msgs/queue/q")
        await client.send(subscribe("/queue/q", ack="client-individual"))
        await client.receipt()
        message = await client.next("MESSAGE")
        in_flight = await ask(client, "/control/count-msgs/queue/q")
        await client.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:a\n\n")
        await client.receipt()
        after = await ask(client, "/control/count-msgs/queue/q")

        assert before == {"receipt-id": "asked", "num-messages": "3"}
        assert (in_flight["num-messages"], after["num-messages"]) == ("3", "2")
        assert (await ask(client, "/control/count-msgs/queue/never-used"))["num-messages"] == "0"
        assert "/queue/never-used" not in rig.alive.broker.queues.by_name


async def test_subscribers_are_counted_with_those_of_patterns(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        one, two = await rig.connect(), await rig.connect()
        await one.send(subscribe("/topic/a.b", id="1"), subscribe("/queue/q", id="2"), subscribe("/fanout/f", id="3"))
        await two.send(subscribe("/topic/a.*", id="1"), subscribe("/queue/q", id="2"))
        for _ in range(3):
            await one.receipt()
        await two.receipt()
        await two.receipt()

        counts = [
            (await ask(one, f"/control/count-subscribers/{name}"))["num-subscribers"]
            for name in ("topic/a.b", "queue/q", "fanout/f", "topic/other")
        ]
        two.pipe.close()
        await eventually(lambda: len(rig.alive.sessions) == 1)

        assert counts == ["2", "2", "1", "0"]
        assert (await ask(one, "/control/count-subscribers/queue/q"))["num-subscribers"] == "1"


async def test_status_counts_what_the_fanouts_hold(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(*[send("/fanout/f", str(n), str(n)) for n in range(5)], subscribe("/fanout/f"))
        for _ in range(6):
            await client.receipt()

        status = json.loads((await ask(client, "/control/status"))["status"])

        (row,) = status["fanouts"]
        assert row.pop("bytes") > 0
        assert row == {"destination": "/fanout/f", "messages": 5, "subscribers": 1}


async def test_a_fanout_is_listed_with_its_bytes_before_the_first_checkpoint(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")
        await client.send(*[send("/fanout/f", "x" * 100, str(n)) for n in range(5)], send("/queue/q", "", "q"))
        for _ in range(6):
            await client.receipt()
        nodes = list(mesh.nodes.values())
        await eventually(lambda: nodes[0].engine.path.durable_vector() == nodes[1].engine.path.durable_vector())

        for name in "ab":
            client = await mesh.connect(name)
            (listed,) = json.loads((await ask(client, "/control/list/fanout"))["destinations"])
            (row,) = json.loads((await ask(client, "/control/status"))["status"])["fanouts"]

            assert (listed["messages"], row["messages"]) == (5, 5)
            assert 500 < listed["bytes"] == row["bytes"] < 5_000
            assert not mesh.nodes[name].store.fanouts()


@pytest.mark.parametrize("question", ["/control/reboot", "/control/count-msgs/topic/t", "/control/count-msgs/q"])
async def test_an_unknown_request_is_refused_with_the_known_ones(autojump_clock: MockClock, question: str) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send(question, "", "asked"))

        error = await client.next("ERROR")

        assert error.head.headers["error-code"] == "bad-destination"
        assert error.head.headers["receipt-id"] == "asked"


async def test_a_user_without_the_right_learns_only_the_names_of_node_and_software(autojump_clock: MockClock) -> None:
    password_hash = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
    users = (
        User(name="ann", password_hash=password_hash, groups=("observer", "client")),
        User(name="bob", password_hash=password_hash, groups=("client",)),
    )
    async with Rig(users=users).run() as rig:
        ann = await rig.connect(login="ann", passcode="secret")
        bob = await rig.connect(login="bob", passcode="secret")

        assert "connections" in json.loads((await ask(ann, "/control/status"))["status"])
        assert set(json.loads((await ask(bob, "/control/status"))["status"])) == {"node", "software"}


async def test_list_of_what_is_in_memory_needs_no_thread(autojump_clock: MockClock) -> None:
    rig = Rig()
    threads: list[object] = []

    def watch() -> None:
        environment: Any = rig.alive.environment
        run_blocking = environment.run_blocking

        async def noted(call: Callable[..., Any], *arguments: Any) -> Any:
            threads.append(call)
            return await run_blocking(call, *arguments)

        environment.run_blocking = noted

    async def rows(kind: str, prefix: str = "") -> list[tuple[str, int]]:
        headers = {"destination": f"/control/list/{kind}{prefix}", "limit": "1"}
        found = json.loads((await rig.alive.admin.verbs.respond(0, None, "", headers)).body)
        return [(row["destination"], row["messages"]) for row in found["destinations"]]

    async with rig.run():
        client = await rig.connect()
        await client.send(*[send(name, "x", name, persistent="true") for name in ("/queue/jobs", "/fanout/log")])
        await client.receipt()
        await client.receipt()
        # The first list of fanouts reads what was written before it.
        assert await rows("fanout") == [("/fanout/log", 1)]
        watch()
        for _ in range(2):
            assert await rows("queue", "/jobs") == [("/queue/jobs", 1)]
            assert await rows("fanout") == [("/fanout/log", 1)]
        assert threads == []

        await client.send(send("/fanout/log", "x", "more", persistent="true"))
        await client.receipt()
        threads.clear()
        assert await rows("fanout") == [("/fanout/log", 2)]
        assert len(threads) == 1


async def test_list_of_fanouts_reads_in_a_thread_only_what_is_not_in_memory(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(*[send(f"/fanout/{name}", "x", name) for name in "abc"])
        for _ in range(3):
            await client.receipt()
        store, read = rig.alive.store, []
        store.fanout_info("/fanout/a")
        info, at_once = store.fanout_info, store.fanout_info_at_once
        monkeypatch.setattr(store, "fanout_info", lambda name: (read.append(name), info(name))[1])
        monkeypatch.setattr(store, "fanout_info_at_once", lambda name: None if name == "/fanout/b" else at_once(name))

        found = json.loads(
            (await rig.alive.admin.verbs.respond(0, None, "", {"destination": "/control/list/fanout"})).body
        )

        assert [row["messages"] for row in found["destinations"]] == [1, 1, 1]
        assert read == ["/fanout/b", "/fanout/c"]


async def test_status_looks_at_many_queues_in_turns(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        queues = rig.alive.broker.queues
        for number in range(10_000):
            queues.get(f"/queue/{number}").held = number
        looked_at = 0
        depth = Pager.depth

        def counted(*args: Any) -> Any:
            nonlocal looked_at
            looked_at += 1
            return depth(*args)

        monkeypatch.setattr(Pager, "depth", counted)

        facts = json.loads((await ask(client, "/control/status"))["status"])

        assert facts["queues"][0] == {"destination": "/queue/9999", "messages": 9999, "ready": 0, "consumers": 0}
        assert looked_at < 1000


async def test_list_counts_many_messages_in_flight_in_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_catalog, "TURN_DELIVERIES", 2)
    async with Rig().run() as rig, trio.open_nursery() as nursery:
        client = await rig.connect()
        await client.send(*[send("/queue/q", "x") for _ in range(9)], subscribe("/queue/q", ack="client-individual"))
        await client.messages(9)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(count)
        (row,) = await rig.alive.admin.catalog.rows(["/queue/q"])
        nursery.cancel_scope.cancel()

    assert row["in_flight"] == 9
    assert turns >= 3
