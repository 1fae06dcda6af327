"""Purge, move and redrive by control request: one node, the whole mesh, part of it, and after a restart."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.admin import bulk_jobs
from qmq.broker.messages.message import Message
from qmq.node.node import Node
from tests.node.mesh_rig import MeshRig, isolate
from tests.node.rig import Client, Rig, eventually, send, subscribe

Q = "/queue/q"
OTHER = "/queue/other"
DEAD = "/queue/dead-letters"


async def fill(client: Client, *bodies: str, queue: str = Q, **headers: str) -> None:
    await client.send(*(send(queue, body, f"fill-{body}", **headers) for body in bodies))
    for _ in bodies:
        await client.receipt()


async def ask(client: Client, destination: str, **headers: str) -> dict[str, str]:
    """A verb's response, without the receipt id and the destination."""
    await client.send(send(f"/control/{destination}", "", "verb", **headers))
    found = dict((await client.next("RECEIPT")).head.headers)
    del found["receipt-id"], found["destination"]
    return found


async def refusal(client: Client, destination: str, **headers: str) -> str:
    await client.send(send(f"/control/{destination}", "", "verb", **headers))
    return (await client.any()).head.headers["error-code"]


async def contents(client: Client, queue: str = Q) -> list[str]:
    """What a browser of this node sees."""
    await client.send(subscribe(queue, "browser", browser="true"))
    found: list[str] = []
    while True:
        message = await client.next("MESSAGE")
        if message.head.headers.get("browser") == "end":
            break
        found.append(message.body.decode())
    await client.send("UNSUBSCRIBE\nid:browser\nreceipt:over\n\n")
    while await client.receipt() != "over":
        pass
    return found


async def message_ids(client: Client, queue: str = Q) -> list[str]:
    """Of the messages of a queue, in the order of `contents`."""
    await client.send(send(f"/control/peek{queue}", "", reply_to="/temp-queue/ids"))
    return [row["message_id"] for row in json.loads((await client.next("MESSAGE")).body)["rows"]]


async def until_alike(mesh: MeshRig) -> None:
    nodes = mesh.nodes.values()
    await eventually(
        lambda: all(
            one.engine.path.durable_vector() == two.engine.path.durable_vector() for one in nodes for two in nodes
        )
    )


def depth(node: Node, queue: str = Q) -> int:
    known = node.broker.queues.by_name.get(queue)
    return 0 if known is None else known.depth


async def test_a_purge_empties_a_queue_and_a_restart_brings_nothing_back(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1", "2", "3")

        assert await ask(client, "purge/queue/q") == {"messages": "3", "reason": "", "changed": "3", "dry-run": "false"}

        assert await contents(client) == []
    async with rig.run():
        client = await rig.connect()
        assert await contents(client) == []
        assert await ask(client, "purge/queue/q") == {
            "messages": "0",
            "reason": "",
            "known": "false",
            "changed": "0",
            "dry-run": "false",
        }


async def test_a_dry_run_counts_and_changes_nothing(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1", "2", "3")

        assert (await ask(client, "purge/queue/q", dry_run="true", count="2"))["messages"] == "2"
        assert (await ask(client, "move/queue/q", to=OTHER, dry_run="true"))["messages"] == "3"

        assert await contents(client) == ["1", "2", "3"]


async def test_a_selector_and_a_count_purge_the_first_that_match(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1", "2", "3", colour="red")
        await fill(client, "4", colour="blue")

        answer = await ask(client, "purge/queue/q", selector="colour = 'red'", count="2")

        assert answer["messages"] == "2"
        assert await contents(client) == ["3", "4"]


async def test_a_job_about_named_messages_leaves_all_others(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1", "2", "3", "4")
        ids = await message_ids(client)

        assert (await ask(client, "purge/queue/q", ids=f"{ids[1]},{ids[3]}", dry_run="true"))["messages"] == "2"
        moved = await ask(client, "move/queue/q", to=OTHER, ids=f"{ids[3]}, {ids[3]}")
        purged = await ask(client, "purge/queue/q", ids=f"{ids[1]},{ids[0]}", count="1")

        assert (moved["messages"], purged["messages"]) == ("1", "1")
        assert await contents(client, OTHER) == ["4"]
        assert await contents(client) == ["2", "3"]


async def test_named_messages_are_found_behind_those_that_only_memory_has(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "stays", "memory", persistent="false")
        await fill(client, "disk")
        ids = await message_ids(client)

        assert (await ask(client, "purge/queue/q", ids=f"{ids[1]},{ids[2]}"))["messages"] == "2"

        assert await contents(client) == ["stays"]


async def test_messages_with_a_consumer_stay_with_it(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, worker = await rig.connect(), await rig.connect()
        await worker.send(subscribe(Q, ack="client-individual", prefetch_count="1"))
        await worker.receipt()
        await fill(client, "1", "2", "3")
        message = await worker.next("MESSAGE")

        assert (await ask(client, "purge/queue/q"))["messages"] == "2"

        await worker.send(f"NACK\nid:{message.head.headers['ack']}\nreceipt:n\n\n")
        await worker.receipt()
        assert (await worker.messages(1)) == [b"1"]
        assert depth(rig.alive) == 1


async def test_memory_only_messages_are_purged_too(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "memory", persistent="false")
        await fill(client, "disk")

        assert (await ask(client, "purge/queue/q"))["messages"] == "2"
        assert await contents(client) == []


async def test_what_is_only_in_the_queue_store_is_purged_by_pages(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "page_limit", lambda messages, body_bytes: 7)
    monkeypatch.setattr(bulk_jobs, "CHECKPOINT_MESSAGES", 20)
    rig = Rig()
    async with rig.run():
        await fill(await rig.connect(), *(str(number) for number in range(100)))
    async with rig.run():
        client = await rig.connect()
        assert not rig.alive.broker.queues.by_name

        assert (await ask(client, "purge/queue/q", count="90"))["messages"] == "90"

        assert await contents(client) == [str(number) for number in range(90, 100)]
        await client.send(subscribe(Q))
        assert [int(body) for body in await client.messages(10)] == list(range(90, 100))


async def test_other_clients_are_served_between_two_pages(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "page_limit", lambda messages, body_bytes: 1)
    rig = Rig()
    async with rig.run():
        client, other = await rig.connect(), await rig.connect()
        await fill(client, *(str(number) for number in range(50)))

        await client.send(send("/control/purge/queue/q", "", "verb"))
        await fill(other, "during", queue=OTHER)

        assert client.frames == []
        assert (await client.next("RECEIPT")).head.headers["messages"] == "50"


async def test_what_is_sent_while_a_purge_runs_stays(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "page_limit", lambda messages, body_bytes: 1)
    monkeypatch.setattr(bulk_jobs, "CHECKPOINT_MESSAGES", 1)
    rig = Rig()
    async with rig.run():
        client, other = await rig.connect(), await rig.connect()
        await fill(client, *(str(number) for number in range(20)))

        await client.send(send("/control/purge/queue/q", "", "verb"))
        await eventually(lambda: depth(rig.alive) < 20)
        await fill(other, "during")
        assert client.frames == []

        assert (await client.next("RECEIPT")).head.headers["messages"] == "20"
        assert await contents(client) == ["during"]


async def test_what_is_sent_and_consumed_between_two_pages_of_memory_is_not_part_of_a_deletion(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slowly(run: bulk_jobs._Run, messages: list[Message]) -> list[Message]:
        await trio.sleep(0.1)
        return messages

    monkeypatch.setattr(bulk_jobs, "PAGE_MESSAGES", 1)
    monkeypatch.setattr(bulk_jobs._Run, "_selected", slowly)
    rig = Rig()
    async with rig.run():
        client, other = await rig.connect(), await rig.connect()
        await fill(client, *(str(number) for number in range(20)), persistent="false")

        await client.send(send("/control/delete/queue/q", "", "verb", force="true"))
        await eventually(lambda: depth(rig.alive) < 20)
        await other.send(subscribe(Q, ack="client-individual", prefetch_count="1"))
        await fill(other, "during", persistent="false")
        assert client.frames == []

        assert (await client.next("RECEIPT")).head.headers["messages"] == "19"
        assert [body.decode() for body in await other.messages(1)] + ["during"] == await contents(client)


async def test_a_move_keeps_order_and_headers_and_a_restart_neither_loses_nor_doubles(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1", "2", "3", colour="red")

        answer = await ask(client, "move/queue/q", to=OTHER, count="2")

        assert answer == {"to": OTHER, "messages": "2", "reason": "", "changed": "2", "dry-run": "false"}
    async with rig.run():
        client = await rig.connect()
        assert (await contents(client), await contents(client, OTHER)) == (["3"], ["1", "2"])
        await client.send(subscribe(OTHER))
        message = await client.next("MESSAGE")
        assert message.head.headers["colour"] == "red"
        assert "redelivered" not in message.head.headers


async def test_dead_letters_are_redriven_to_where_they_came_from(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        for queue in (Q, OTHER):
            await fill(client, f"of {queue}", queue=queue)
            await client.send(subscribe(queue, queue, ack="client-individual"))
            message = await client.next("MESSAGE")
            await client.send(f"NACK\nid:{message.head.headers['ack']}\nrequeue:false\nreceipt:n\n\n")
            await client.send(f"UNSUBSCRIBE\nid:{queue}\nreceipt:over\n\n")
            while await client.receipt() != "over":
                pass
        await fill(client, "no dead letter", queue=DEAD)

        answer = await ask(client, "redrive/queue/dead-letters")

        assert answer["messages"] == "2"
        assert answer["reason"].startswith("no-source: ")
        assert await contents(client) == [f"of {Q}"]
        assert await contents(client, OTHER) == [f"of {OTHER}"]
        assert await contents(client, DEAD) == ["no dead letter"]


@pytest.mark.parametrize(
    ("destination", "headers", "code"),
    [
        ("purge/topic/t", {}, "bad-destination"),
        ("purge/queue/", {}, "bad-destination"),
        ("purge/queue/a.*", {}, "bad-destination"),
        ("purge/queue/q", {"count": "0"}, "bad-count"),
        ("purge/queue/q", {"count": "many"}, "bad-count"),
        ("purge/queue/q", {"selector": "colour ="}, "bad-selector"),
        ("purge/queue/q", {"ids": ","}, "bad-ids"),
        ("purge/queue/q", {"ids": ""}, "bad-ids"),
        ("purge/queue/q", {"ids": "a-0123456789abcdef-1,second"}, "bad-ids"),
        ("purge/queue/q", {"ids": "x" * 8001}, "bad-ids"),
        ("purge/queue/q", {"scope": "galaxy"}, "bad-scope"),
        ("move/queue/q", {}, "bad-destination"),
        ("move/queue/q", {"to": "/topic/t"}, "bad-destination"),
        ("move/queue/q", {"to": Q}, "bad-destination"),
        ("empty/queue/q", {}, "bad-destination"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(
    autojump_clock: MockClock, destination: str, headers: dict[str, str], code: str
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1")

        assert await refusal(client, destination, **headers) == code

        assert depth(rig.alive) == 1


async def test_options_in_the_body_are_refused_and_not_passed_over(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1", "2")

        await client.send(send("/control/purge/queue/q", '{"count": 1}', "verb"))
        assert (await client.any()).head.headers["error-code"] == "bad-body"

        assert depth(rig.alive) == 2


async def test_every_verb_is_an_event_of_the_audit(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, watcher = await rig.connect(), await rig.connect()
        await watcher.send(subscribe("/system/audit"))
        await watcher.receipt()
        await fill(client, "1", "2")

        await ask(client, "move/queue/q", to=OTHER, count="1", dry_run="true")
        await ask(client, "purge/queue/q")

        found: list[dict[str, Any]] = [json.loads(body) for body in await watcher.messages(2)]
        for event in found:
            del event["at_us"]
            assert event.pop("address").startswith("10.0.0.1")
        assert found == [
            {
                "event": "move",
                "node": "a",
                "user": None,
                "destination": Q,
                "count": 1,
                "dry_run": True,
                "to": OTHER,
            },
            {"event": "purge", "node": "a", "user": None, "destination": Q, "count": 2, "dry_run": False},
        ]


async def test_a_purge_of_the_mesh_settles_what_each_node_owns(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        for name in "abc":
            await fill(await mesh.connect(name), f"{name}1", f"{name}2")

        answer = await ask(await mesh.connect("a"), "purge/queue/q", scope="mesh")

        assert answer == {
            "messages": "6",
            "reason": "",
            "nodes-asked": "3",
            "nodes-answered": "3",
            "nodes-missing": "",
            "changed": "6",
            "dry-run": "false",
        }
        await until_alike(mesh)
        for name in "abc":
            assert await contents(await mesh.connect(name)) == []


async def test_without_the_scope_only_one_node_is_asked(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await fill(await mesh.connect("a"), "a1")
        await fill(await mesh.connect("b"), "b1")

        assert (await ask(await mesh.connect("b"), "purge/queue/q"))["messages"] == "1"

        await until_alike(mesh)
        assert await contents(await mesh.connect("a")) == ["a1"]


async def test_a_count_bounds_the_sum_of_all_nodes(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        for name in "abc":
            await fill(await mesh.connect(name), f"{name}1", f"{name}2")

        answer = await ask(await mesh.connect("b"), "move/queue/q", to=OTHER, count="3", scope="mesh")

        assert (answer["messages"], answer["nodes-asked"]) == ("3", "2")
        await until_alike(mesh)
        assert await contents(await mesh.connect("c"), OTHER) == ["a1", "b1", "b2"]


async def test_a_node_that_does_not_answer_is_named(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        for name in "abc":
            await fill(await mesh.connect(name), f"{name}1")
        client = await mesh.connect("a")
        isolate(mesh, "c")

        answer = await ask(client, "purge/queue/q", scope="mesh")

        assert (answer["messages"], answer["nodes-answered"], answer["nodes-missing"]) == ("2", "2", "c")


async def test_a_job_that_takes_longer_than_a_peer_request_is_waited_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "page_limit", lambda messages, body_bytes: 1)
    async with MeshRig("a", "b").run() as mesh:
        await fill(await mesh.connect("b"), *(str(number) for number in range(20)))
        mesh.slow_disk("b", 0.5, exactly=True)

        answer = await ask(await mesh.connect("a"), "purge/queue/q", scope="mesh")

        assert (answer["messages"], answer["nodes-missing"]) == ("20", "")


async def test_a_node_that_may_not_deliver_settles_nothing(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("a")
        await fill(client, "1")
        isolate(mesh, "a")
        await eventually(lambda: mesh.nodes["a"].broker.queues.held)

        answer = await ask(client, "move/queue/q", to=OTHER, scope="mesh")

        assert (answer["messages"], answer["nodes-missing"]) == ("0", "a,b,c")
        assert await refusal(client, "purge/queue/q") == "not-serving"


async def test_a_takeover_does_not_bring_purged_messages_back(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await fill(await mesh.connect("a"), "1", "2", "3")
        await ask(await mesh.connect("b"), "purge/queue/q", count="2", scope="mesh")
        await until_alike(mesh)

        await mesh.kill("a")
        client = await mesh.connect("b")
        await client.send(subscribe(Q, ack="client-individual"))

        assert await client.messages(1) == [b"3"]
        await mesh.start("a")
        await mesh.until_linked()
        for name in "abc":
            assert await contents(await mesh.connect(name)) == ["3"]


@pytest.mark.parametrize("verb", ["purge", "move", "redrive", "delete"])
async def test_after_a_takeover_a_job_is_complete_without_the_dead_node(autojump_clock: MockClock, verb: str) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await fill(await mesh.connect("a"), "1", "2", "3")
        await until_alike(mesh)
        await mesh.kill("a")
        client = await mesh.connect("b")
        if verb != "redrive":
            assert (await ask(client, "purge/queue/q", scope="mesh", **{"dry-run": "true"}))["nodes-missing"] == "a"
        await eventually(lambda: any("a" in mesh.nodes[name].broker.queues.owned.serves for name in "bc"))
        server = next(name for name in "bc" if "a" in mesh.nodes[name].broker.queues.owned.serves)

        headers = {"to": OTHER} if verb == "move" else {}
        answer = await ask(client, f"{verb}/queue/q", scope="mesh", **headers)

        assert (answer["messages"], answer["nodes-missing"]) == ("0" if verb == "redrive" else "3", "")
        assert json.loads(answer["taken-over"]) == {"a": server}
        assert answer["nodes-answered"] == "2"


async def audited(rig: MeshRig, node: str) -> Client:
    """A client that is sent the events of the audit."""
    client = await rig.connect(node)
    await client.send(subscribe("/system/audit", "audit"))
    await client.receipt()
    return client


async def test_a_job_whose_client_leaves_stops_at_the_next_page_on_all_nodes_and_the_audit_says_so(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "page_limit", lambda messages, body_bytes: 1)
    async with MeshRig("a", "b", "c").run() as mesh:
        b = mesh.nodes["b"]
        await fill(await mesh.connect("b"), *(str(number) for number in range(50)))
        await fill(await mesh.connect("c"), "c")
        await until_alike(mesh)
        audit = await audited(mesh, "a")
        mesh.slow_disk("b", 0.5, exactly=True)

        client = await mesh.connect("a")
        await client.send(send("/control/purge/queue/q", "", "verb", scope="mesh"))
        await eventually(lambda: depth(b) < 50)
        client.pipe.close()

        event = json.loads((await audit.next("MESSAGE")).body)
        assert (event["reason"], event["nodes_missing"]) == (
            "client-left: The client that asked for it has left.",
            ["c"],
        )
        assert event["count"] == 50 - depth(b) < 50
        await trio.sleep(60)
        assert event["count"] == 50 - depth(b)
        assert depth(mesh.nodes["c"]) == 1


async def test_a_job_stops_when_no_node_asks_for_its_result(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "page_limit", lambda messages, body_bytes: 1)
    async with MeshRig("a", "b").run() as mesh:
        b = mesh.nodes["b"]
        await fill(await mesh.connect("b"), *(str(number) for number in range(200)))
        mesh.slow_disk("b", 0.5, exactly=True)

        client = await mesh.connect("a")
        await client.send(send("/control/purge/queue/q", "", "verb", scope="mesh"))
        await eventually(lambda: depth(b) < 200)
        await mesh.kill("a")
        await trio.sleep(60)

        left = depth(b)
        await trio.sleep(60)
        assert depth(b) == left > 0


async def test_a_client_that_sends_more_while_its_job_runs_is_answered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_jobs, "page_limit", lambda messages, body_bytes: 1)
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, *(str(number) for number in range(20)))

        await client.send(send("/control/purge/queue/q", "", "verb"))
        await eventually(lambda: depth(rig.alive) < 20)
        await client.send(send(OTHER, "", "more"))

        assert (await client.next("RECEIPT")).head.headers["messages"] == "20"
        assert await client.receipt() == "more"


@pytest.mark.parametrize("verb", ["purge", "redrive", "delete", "peek"])
async def test_a_queue_that_no_node_has_is_said_to_be_unknown(autojump_clock: MockClock, verb: str) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")
        await fill(await mesh.connect("b"), "1", queue=DEAD)
        await until_alike(mesh)
        scope = {} if verb == "peek" else {"scope": "mesh"}

        unknown = await ask(client, f"{verb}/queue/typo", **scope, dry_run="true")
        known = await ask(client, f"{verb}{DEAD}", **scope, dry_run="true")
        await ask(client, "pause/queue/typo")
        paused = await ask(client, f"{verb}/queue/typo", **scope, dry_run="true")

        assert [one.get("known") for one in (unknown, known, paused)] == ["false", None, None]
