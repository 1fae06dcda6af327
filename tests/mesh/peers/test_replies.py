"""Request and reply on whole nodes: on one node, between two, and when a client leaves."""

from trio.testing import MockClock

from tests.client.rig import PORT, Mesh, running
from tests.node.rig import Client, Rig, eventually, send, subscribe


async def at(mesh: Mesh, name: str, **headers: str) -> Client:
    """A client of that node that speaks raw STOMP."""
    client = Client(await mesh.fabric.dial("10.0.0.9", mesh.hosts[name], PORT))
    await client.log_in(**headers)
    return client


async def serve_one(worker: Client) -> str:
    """Answer the next request; returns the address."""
    request = (await worker.next("MESSAGE")).head.headers
    await worker.send(send(request["reply-to"], "42", correlation_id=request["correlation-id"]))
    return request["reply-to"]


async def test_an_answer_finds_its_way_on_one_node(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        asker, worker = await rig.connect(), await rig.connect()
        await worker.send(subscribe("/queue/work"))
        await asker.send(send("/queue/work", "6*7", reply_to="/temp-queue/r", correlation_id="c1"))
        await serve_one(worker)

        answer = await asker.next("MESSAGE")
        asker.pipe.close()
        await eventually(lambda: len(rig.alive.sessions) == 1)

        assert answer.body == b"42"
        assert answer.head.headers["subscription"] == answer.head.headers["destination"] == "/temp-queue/r"
        assert answer.head.headers["correlation-id"] == "c1"
        assert len(rig.alive.broker.replies) == 0


async def test_an_answer_finds_its_way_from_any_node_for_every_kind_of_request(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        asker, worker = await at(mesh, "a"), await at(mesh, "b")
        for number, destination in enumerate(("/queue/work", "/fanout/work", "/topic/work")):
            await worker.send(subscribe(destination, id=str(number)))
            await worker.receipt()
        await eventually(lambda: bool(mesh.nodes["a"].broker.interest.match("/topic/work")))

        answers = []
        for number, destination in enumerate(("/queue/work", "/fanout/work", "/topic/work")):
            await asker.send(send(destination, "6*7", reply_to="/temp-queue/r", correlation_id=str(number)))
            await serve_one(worker)
            answer = await asker.next("MESSAGE")
            answers.append((answer.head.headers["correlation-id"], answer.body))

        assert answers == [("0", b"42"), ("1", b"42"), ("2", b"42")]


async def test_each_of_two_askers_with_the_same_name_gets_its_own_answers(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        one, two, worker = await at(mesh, "a"), await at(mesh, "a"), await at(mesh, "b")
        await worker.send(subscribe("/queue/work"))
        for asker, mark in ((one, "1"), (two, "2")):
            await asker.send(send("/queue/work", "?", reply_to="/temp-queue/r", correlation_id=mark))
        await serve_one(worker)
        await serve_one(worker)

        first, second = await one.next("MESSAGE"), await two.next("MESSAGE")

        assert (first.head.headers["correlation-id"], second.head.headers["correlation-id"]) == ("1", "2")
        assert not (one.frames or two.frames)


async def test_an_answer_to_an_asker_on_another_node_that_has_left_is_dropped_there(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        asker, worker = await at(mesh, "a"), await at(mesh, "b")
        await worker.send(subscribe("/queue/work"))
        await asker.send(send("/queue/work", "?", reply_to="/temp-queue/r", correlation_id="1"))
        request = (await worker.next("MESSAGE")).head.headers
        asker.pipe.close()
        await eventually(lambda: not mesh.nodes["a"].sessions)

        await worker.send(send(request["reply-to"], "42", "r"))
        await worker.next("RECEIPT")
        await worker.receipt()
        await eventually(lambda: mesh.nodes["a"].broker.replies.dropped == 1)


async def test_an_answer_to_a_node_that_is_down_is_refused(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        asker, worker = await at(mesh, "a"), await at(mesh, "b", on_error="keep-open")
        await worker.send(subscribe("/queue/work"))
        await asker.send(send("/queue/work", "?", reply_to="/temp-queue/r", correlation_id="1"))
        request = (await worker.next("MESSAGE")).head.headers
        mesh.kill("a")
        await eventually(lambda: not mesh.nodes["b"].broker.replies.peers)

        await worker.send(send(request["reply-to"], "42", "r"))
        refused = await worker.next("ERROR")
        await mesh.start("a")
        await eventually(lambda: bool(mesh.nodes["b"].broker.replies.peers))
        await worker.send(send(request["reply-to"], "42", "r"))
        of_an_earlier_life = await worker.next("ERROR")

        assert refused.head.headers["error-code"] == "unknown-destination"
        assert of_an_earlier_life.head.headers["error-code"] == "unknown-destination"


async def test_an_asker_that_does_not_read_pays_for_itself(autojump_clock: MockClock) -> None:
    limits = {"outbox_bytes_max": 400_000, "body_bytes_max": 20_000}
    async with Rig(limits=limits).run() as rig:
        asker, worker = await rig.connect("10.0.0.2"), await rig.connect()
        await worker.send(subscribe("/queue/work"))
        await asker.send(send("/queue/work", "?", reply_to="/temp-queue/r", correlation_id="1"))
        request = (await worker.next("MESSAGE")).head.headers

        for _ in range(200):
            await worker.send(send(request["reply-to"], "x" * 10_000))
        frames = await asker.until_closed()
        await worker.send(send("/topic/t", "", "r"))
        await worker.receipt()
        await worker.receipt()
        await eventually(lambda: len(rig.alive.sessions) == 1)

        assert frames[-1].head.headers["error-code"] == "slow-consumer"
