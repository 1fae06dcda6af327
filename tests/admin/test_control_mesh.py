"""Questions that every node of a mesh answers, and lists in pages."""

import json
from typing import Any

import trio
from trio.testing import MockClock

from qmq.admin.list_verbs import ROWS_DEFAULT
from qmq.mesh.peers.rpc import ANSWER_SECONDS
from qmq.replication.links.outbox import LinkOutbox, encode_send
from qmq.replication.protocol.frames import PeerRequest
from tests.client.rig import running
from tests.mesh.peers.test_replies import at
from tests.node.rig import Client, Rig, eventually, send, subscribe


async def ask(client: Client, question: str, **headers: str) -> dict[str, str]:
    """The headers of the answer, without `receipt-id`."""
    await client.send(send(question, "", "asked", **headers))
    while True:
        found = (await client.next("RECEIPT")).head.headers
        if found["receipt-id"] == "asked":
            return {name: value for name, value in found.items() if name != "receipt-id"}


async def ask_at_length(client: Client, question: str, **headers: str) -> Any:
    """The JSON of the answer."""
    await client.send(send(question, "", reply_to="/temp-queue/answers", correlation_id="7", **headers))
    answer = await client.next("MESSAGE")
    assert answer.head.headers["correlation-id"] == "7"
    assert answer.head.headers["content-type"] == "application/json"
    return json.loads(answer.body)


async def fill(client: Client, *destinations: str) -> None:
    await client.send(*[send(destination, "12345", destination) for destination in destinations])
    for _ in destinations:
        await client.receipt()


async def test_counts_of_all_nodes_are_summed(autojump_clock: MockClock) -> None:
    async with running("abc") as mesh:
        clients = [await at(mesh, name) for name in "abc"]
        for client in clients:
            await fill(client, "/queue/q", "/queue/q")
            await client.send(subscribe("/topic/t", id="1"), subscribe("/fanout/f", id="2"))
            await client.receipt()
            await client.receipt()

        asker = clients[0]

        assert await ask(asker, "/control/count-msgs/queue/q") == {"num-messages": "2"}
        everywhere = {"nodes-asked": "3", "nodes-answered": "3"}
        assert await ask(asker, "/control/count-msgs/queue/q", scope="mesh") == {"num-messages": "6", **everywhere}
        for name in ("topic/t", "fanout/f"):
            found = await ask(asker, f"/control/count-subscribers/{name}", scope="mesh")
            assert found == {"num-subscribers": "3", **everywhere}


async def test_lent_messages_are_counted_once(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        a, b = await at(mesh, "a"), await at(mesh, "b")
        await fill(a, "/queue/q", "/queue/q", "/queue/q")
        await b.send(subscribe("/queue/q", ack="client-individual", prefetch="2"))
        await b.messages(2)

        found = await ask_at_length(b, "/control/list/queue", scope="mesh")

        row = {"destination": "/queue/q", "messages": 3, "bytes": 15, "in_flight": 2, "consumers": 1}
        assert found["destinations"][0].items() >= row.items()
        assert (len(found["destinations"]), found["nodes_asked"], found["nodes_answered"]) == (1, 2, 2)


async def test_a_node_that_is_down_is_named_and_costs_no_time(autojump_clock: MockClock) -> None:
    async with running("abc") as mesh:
        asker = await at(mesh, "a")
        await fill(asker, "/queue/q")
        mesh.kill("c")
        await eventually(lambda: len(mesh.nodes["a"].broker.replies.peers) == 1)
        began = trio.current_time()

        found = await ask(asker, "/control/count-msgs/queue/q", scope="mesh")

        assert found == {"num-messages": "1", "nodes-asked": "3", "nodes-answered": "2", "nodes-missing": "c"}
        assert trio.current_time() - began < ANSWER_SECONDS / 2  # on the virtual clock


async def test_a_node_that_does_not_answer_is_waited_for_so_long_and_no_longer(autojump_clock: MockClock) -> None:
    async with running("abc") as mesh:
        asker, other = await at(mesh, "a"), await at(mesh, "a")
        mesh.nodes["c"].peer_rpc._answering[mesh.nodes["a"].origin] = 1000
        await asker.send(
            send("/control/count-msgs/queue/q", "", "slow", scope="mesh"), send("/topic/t", "", "after it")
        )
        began = trio.current_time()
        await fill(other, "/queue/q")
        waited_other = trio.current_time() - began

        answer = (await asker.next("RECEIPT")).head.headers
        waited = trio.current_time() - began

        assert (answer["receipt-id"], answer["nodes-missing"]) == ("slow", "c")
        assert await asker.receipt() == "after it"
        assert waited_other < ANSWER_SECONDS / 2 < ANSWER_SECONDS <= waited < ANSWER_SECONDS + 0.5
        asked = mesh.nodes["a"].peer_rpc._asked.values()
        assert not [one for one in asked if one.request.kind == "control"]


async def test_an_answer_comes_in_order_and_counts_what_was_sent_before_the_question(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        client = await at(mesh, "a")
        await client.send(
            send("/queue/q", "x", "1"),
            send("/control/count-msgs/queue/q", "", "2", scope="mesh"),
            send("/queue/q", "x", "3"),
            send("/control/count-msgs/queue/q", "", "4"),
            "DISCONNECT\nreceipt:5\n\n",
        )

        frames = await client.until_closed()

        assert [(f.head.headers["receipt-id"], f.head.headers.get("num-messages")) for f in frames] == [
            ("1", None),
            ("2", "1"),
            ("3", None),
            ("4", "2"),
            ("5", None),
        ]


async def test_rows_of_one_destination_are_merged(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        a, b = await at(mesh, "a"), await at(mesh, "b")
        await fill(a, "/queue/both", "/queue/only.a", "/fanout/f")
        await fill(b, "/queue/both", "/queue/only.b", "/fanout/f")
        for client in (a, b):
            await client.send(subscribe("/fanout/f", id="1"), subscribe("/topic/x.*", id="2"))
            await client.messages(2)

        queues = await ask_at_length(a, "/control/list/queue", scope="mesh")
        fanouts = await ask_at_length(a, "/control/list/fanout", scope="mesh")
        topics = await ask_at_length(a, "/control/list/topic", scope="mesh")
        here = await ask_at_length(a, "/control/list/queue/only*")

        assert [(row["destination"], row["messages"], row["bytes"]) for row in queues["destinations"]] == [
            ("/queue/both", 2, 10),
            ("/queue/only.a", 1, 5),
            ("/queue/only.b", 1, 5),
        ]
        # Both nodes have both messages.
        assert [(row["messages"], row["consumers"]) for row in fanouts["destinations"]] == [(2, 2)]
        assert topics["destinations"] == [{"destination": "/topic/x.*", "consumers": 2}]
        assert [row["destination"] for row in here["destinations"]] == ["/queue/only.a"]


async def test_pages_of_a_mesh_give_every_destination_once(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        a, b = await at(mesh, "a"), await at(mesh, "b")
        await fill(a, *[f"/queue/{number:02}" for number in range(0, 20, 2)])
        await fill(b, *[f"/queue/{number:02}" for number in range(20) if number % 4])
        seen: list[str] = []
        sizes: list[int] = []
        after = ""
        while True:
            page = await ask_at_length(a, "/control/list/queue", scope="mesh", limit="3", after=after)
            seen += [row["destination"] for row in page["destinations"]]
            sizes.append(len(page["destinations"]))
            if "next" not in page:
                break
            after = page["next"]

        assert seen == sorted(f"/queue/{number:02}" for number in range(20))
        assert max(sizes) == 3


async def test_a_receipt_holds_as_many_rows_as_fit_and_says_where_to_go_on(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        names = [f"/queue/{'long' * 40}.{number:03}" for number in range(ROWS_DEFAULT)]
        await fill(client, *names)
        seen: list[str] = []
        answer: dict[str, str] = {"next": ""}
        while "next" in answer:
            answer = await ask(client, "/control/list/queue", after=answer["next"])
            seen += [row["destination"] for row in json.loads(answer["destinations"])]

        assert seen == names


async def test_subscribers_are_listed_with_user_and_address(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        a, b = await at(mesh, "a"), await at(mesh, "b")
        await a.send(
            subscribe("/queue/q", id="x", ack="client-individual", prefetch="7"), subscribe("/topic/t.*", id="y")
        )
        await b.send(subscribe("/queue/q", id="z"))
        for client in (a, a, b):
            await client.receipt()
        await fill(a, "/queue/q")
        await a.messages(1)

        queue = await ask_at_length(b, "/control/list-subscribers/queue/q", scope="mesh")
        topic = await ask_at_length(b, "/control/list-subscribers/topic/t.1", scope="mesh")
        first = await ask_at_length(b, "/control/list-subscribers/queue/q", scope="mesh", limit="1")
        second = await ask_at_length(b, "/control/list-subscribers/queue/q", scope="mesh", after=first["next"])

        one, two = queue["subscribers"]
        session_of_a = next(iter(mesh.nodes["a"].sessions))
        assert one == {
            "node": "a",
            "session": session_of_a,
            "id": "x",
            "user": "",
            "address": "10.0.0.9",
            "port": mesh.nodes["a"].sessions[session_of_a].peer_port,
            "product": "",
            "credit": 7,
            "in_flight": 1,
            "delivered": 1,
            "acknowledged": 0,
        }
        assert (two["node"], two["id"], two["in_flight"]) == ("b", "z", 0)
        assert [(row["node"], row["destination"]) for row in topic["subscribers"]] == [("a", "/topic/t.*")]
        assert first["subscribers"] + second["subscribers"] == [one, two]


async def test_an_answer_may_be_sent_only_to_a_temporary_queue(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send("/control/list/queue", "", "r", reply_to="/queue/q"))

        assert (await client.next("ERROR")).head.headers["error-code"] == "bad-destination"


async def test_words_that_mean_nothing_are_refused(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        for question, headers, code in (
            ("/control/list/queue", {"limit": "0"}, "bad-limit"),
            ("/control/list/queue", {"limit": "1001"}, "bad-limit"),
            ("/control/list/queue", {"limit": "many"}, "bad-limit"),
            ("/control/list/queue", {"scope": "world"}, "bad-scope"),
            ("/control/status", {"scope": "mesh"}, "bad-scope"),
            ("/control/list/control", {}, "bad-destination"),
            ("/control/list", {}, "bad-destination"),
            ("/control/list-subscribers/queue", {}, "bad-destination"),
        ):
            client = await rig.connect()
            await client.send(send(question, "", "r", **headers))
            assert (await client.next("ERROR")).head.headers["error-code"] == code, question


async def test_an_invalid_request_of_a_peer_is_not_answered_and_harms_no_other(
    autojump_clock: MockClock,
) -> None:
    async with running("ab") as mesh:
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        way = LinkOutbox(encode_send, lambda: None)
        for question in (b"", b"[]", b'{"what": 1}', b'{"what": "/control/list", "about": "x"}', b"\xff"):
            b.peer_rpc.request_received(a.origin, 1, PeerRequest("control", question), way)
        b.peer_rpc.request_received(a.origin, 1, PeerRequest("of a later version", b""), way)
        await eventually(lambda: not b.peer_rpc._answering)
        client = await at(mesh, "a")

        found = await ask(client, "/control/count-msgs/queue/q", scope="mesh")

        assert found["nodes-answered"] == "2"


async def test_an_answer_of_a_peer_that_makes_no_sense_counts_as_none(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:

        async def nonsense(question: bytes) -> bytes:
            await trio.lowlevel.checkpoint()
            return b'{"a later version": "says more"}'

        mesh.nodes["b"].peer_rpc._answer = nonsense
        client = await at(mesh, "a")

        found = await ask(client, "/control/count-msgs/queue/q", scope="mesh")

        assert (found["num-messages"], found["nodes-missing"]) == ("0", "b")


async def test_a_backlog_that_is_only_in_the_queue_store_is_counted_and_listed(autojump_clock: MockClock) -> None:
    rig = Rig()
    names = [f"/queue/{number:02}" for number in range(10)]
    async with rig.run():
        await fill(await rig.connect(), *names, *names)
    async with rig.run():
        client = await rig.connect()
        assert not rig.alive.broker.queues.by_name

        count = await ask(client, "/control/count-msgs/queue/07")
        first = await ask_at_length(client, "/control/list/queue", limit="4")
        rest = await ask_at_length(client, "/control/list/queue", after=first["next"])
        some = await ask_at_length(client, "/control/list/queue/07*")

        assert count == {"num-messages": "2"}
        assert [row["destination"] for row in first["destinations"] + rest["destinations"]] == names
        assert some["destinations"] == [
            {"destination": "/queue/07", "messages": 2, "bytes": 10, "in_flight": 0, "consumers": 0}
        ]
        assert not rig.alive.broker.queues.by_name, "a look loads nothing"


async def test_a_list_goes_on_behind_queues_that_are_empty_since_the_last_checkpoint(autojump_clock: MockClock) -> None:
    rig = Rig()
    names = [f"/queue/{number:02}" for number in range(10)]
    async with rig.run():
        await fill(await rig.connect(), *names)
    async with rig.run():
        client = await rig.connect()
        for number, name in enumerate(names[:6]):
            await client.send(subscribe(name, id=str(number)))
            await client.messages(1)
            await client.send(f"UNSUBSCRIBE\nid:{number}\n\n")
        await eventually(lambda: not rig.alive.broker.queues.by_name)
        seen: list[str] = []
        after = ""
        while True:
            page = await ask_at_length(client, "/control/list/queue", limit="2", after=after)
            seen += [row["destination"] for row in page["destinations"]]
            if "next" not in page:
                break
            after = page["next"]

        assert seen == names[6:]
