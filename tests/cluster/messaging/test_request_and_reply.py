"""A request on one node, its answer from another: with the stock client, with ours, and with each to the other."""

import json
from functools import partial

import pytest
import trio

import qmq.client
from tests.support.cluster_client import Client, Message
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

SECONDS_MAX = 100.0
ANSWERS = "/temp-queue/answers"


def answer(client: Client, request: Message) -> None:
    """What a worker does, in the words of every broker: reply-to and correlation-id of the request."""
    headers = request.headers
    client.send(headers["reply-to"], request.body * 2, correlation_id=headers["correlation-id"])
    client.acknowledge(request)


def test_a_request_is_answered_from_another_node_without_a_subscription(mesh: Cluster) -> None:
    asker = mesh.client("a")
    mesh.client("c").subscribe("/queue/rpc", ack="client-individual", on_message=answer)

    for number in range(100):
        asker.send("/queue/rpc", f"{number}.", reply_to=ANSWERS, correlation_id=str(number))
    answers = asker.messages.setdefault(ANSWERS, [])
    eventually(lambda: len(answers) >= 100, lambda: f"a has {len(answers)} of 100 answers")

    assert sorted((int(m.headers["correlation-id"]), m.body) for m in answers) == [
        (number, f"{number}.{number}.".encode()) for number in range(100)
    ]
    assert {message.headers["destination"] for message in answers} == {ANSWERS}


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_a_request_is_answered_to_an_explicit_subscription(mesh: Cluster, version: str) -> None:
    asker = mesh.client("a", version)
    answers = asker.subscribe(ANSWERS, "mine")
    queue = f"/queue/rpc.{version}"
    mesh.client("c", version).subscribe(queue, on_message=answer_unsettled)

    asker.send(queue, b"ab", reply_to=ANSWERS, correlation_id="1")

    eventually(lambda: len(answers) == 1, "a got no answer")
    assert answers[0].body == b"abab"


def answer_unsettled(client: Client, request: Message) -> None:
    client.send(request.headers["reply-to"], request.body * 2, correlation_id=request.headers["correlation-id"])


def test_an_answer_is_for_one_asker_alone(mesh: Cluster) -> None:
    one, two = mesh.client("a"), mesh.client("a")
    first, second = one.subscribe(ANSWERS), two.subscribe(ANSWERS)
    mesh.client("b").subscribe("/queue/rpc.two", ack="client-individual", on_message=answer)

    two.send("/queue/rpc.two", b"x", reply_to=ANSWERS, correlation_id="2")
    eventually(lambda: len(second) == 1, "the asker got no answer")

    assert first == []


def test_counts_and_lists_of_the_mesh_name_a_node_that_is_down(mesh: Cluster) -> None:
    for name in mesh.names:
        mesh.client(name).publish("/queue/counted", b"12345", b"12345")
    asker = mesh.client("a")
    pages = asker.subscribe(ANSWERS)

    asked = 0

    def ask(destination: str) -> dict[str, str]:
        nonlocal asked
        asked += 1
        receipt = asker.send(destination, b"", receipt=True, scope="mesh", reply_to=ANSWERS)
        asker.wait_receipts([receipt])
        return dict(asker.receipts[receipt])

    def ask_without(missing: str, destination: str) -> dict[str, str]:
        """Ask until just these nodes are missing; another one may be too busy once."""
        said: dict[str, str] = {}

        def is_said() -> bool:
            said.update({"nodes-missing": ""} | ask(destination))
            return said["nodes-missing"] == missing

        eventually(is_said, lambda: f"not just {missing or 'no node'} is missing: {said}")
        return said

    whole = ask_without("", "/control/count-msgs/queue/counted")
    ask_without("", "/control/list/queue/counted*")
    eventually(lambda: len(pages) == asked, "the answers did not come as messages")
    listed = json.loads(pages[-1].body)
    mesh.kill("c")
    partial_count = ask_without("c", "/control/count-msgs/queue/counted")

    assert (whole["num-messages"], whole["nodes-asked"], whole["nodes-answered"]) == ("6", "3", "3")
    assert listed["destinations"][0]["messages"] == 6
    assert partial_count["num-messages"] == "4"


async def test_our_client_asks_and_answers_across_nodes_and_with_the_stock_client(mesh: Cluster) -> None:
    stock = mesh.client("b")
    stock.subscribe("/queue/rpc.stock", ack="client-individual", on_message=answer)

    async def work(worker: qmq.client.Client, *, task_status: trio.TaskStatus[None]) -> None:
        async with worker.subscribe("/queue/rpc.ours") as requests:
            task_status.started()
            async for request in requests:
                async with request:
                    await request.reply(request.body * 2)

    with trio.fail_after(SECONDS_MAX):
        async with (
            qmq.client.connect(mesh.at("a")) as client,
            qmq.client.connect(mesh.at("c")) as worker,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(work, worker)
            answers: dict[bytes, bytes] = {}

            async def ask(queue: str, body: bytes) -> None:
                answers[body] = (await client.request(queue, body)).body

            async with trio.open_nursery() as peer_rpc:
                for number in range(200):
                    peer_rpc.start_soon(ask, "/queue/rpc.ours", b"o%d" % number)
                    peer_rpc.start_soon(ask, "/queue/rpc.stock", b"s%d" % number)

            assert len(answers) == 400
            assert all(said == asked * 2 for asked, said in answers.items())
            nursery.cancel_scope.cancel()


async def test_our_client_goes_on_asking_when_its_node_is_killed(mesh: Cluster) -> None:
    nodes = [mesh.at(name) for name in mesh.names]
    answered = 0
    mesh.client("c").subscribe("/queue/rpc.kill", ack="client-individual", on_message=answer)
    with trio.fail_after(SECONDS_MAX):
        async with qmq.client.connect(nodes) as client, trio.open_nursery() as peer_rpc:

            async def ask(number: int) -> None:
                nonlocal answered
                said = await client.request("/queue/rpc.kill", b"%d." % number, retry=True)
                assert said.body == b"%d.%d." % (number, number)
                answered += 1

            for number in range(300):
                peer_rpc.start_soon(ask, number)
            await trio.to_thread.run_sync(partial(mesh.kill, "a"))

    assert answered == 300
