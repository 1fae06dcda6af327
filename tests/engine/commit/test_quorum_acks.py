"""ACKs whose receipt means that no node will hand the message out again (`ack-level:quorum`), in a mesh of nodes."""

from typing import Any

import pytest
import trio

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.replication.protocol.frames import Ask, HeartbeatFrame, Terms
from qmq.wire.stomp import Frame
from tests.node.mesh_rig import MeshRig, isolate
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.node.stuck_rig import SECOND, SOON, marks, nothing_comes, receipt_of, three

pytestmark = pytest.mark.trio

JOBS = "/queue/jobs"
AFTER = 10.0
QUIET_SECONDS = 25.0
EDGE = {"ack-level": "edge"}


async def consumer(rig: MeshRig, name: str, ack: str = "client-individual", **headers: str) -> Client:
    client = await rig.connect(name, **headers)
    await client.send(subscribe(JOBS, ack=ack))
    await client.receipt()
    return client


async def publish(rig: MeshRig, name: str, *bodies: str) -> None:
    client = await rig.connect(name)
    for body in bodies:
        await client.send(send(JOBS, body, "r", receipt_level="replicas=2"))
        assert marks(await receipt_of(client, SOON)) == {}


def ack(message: Frame, level: str | None = "quorum", **headers: str) -> str:
    if level is not None:
        headers["ack_level"] = level
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"ACK\nid:{message.head.headers['ack']}\nreceipt:ack\n{lines}\n"


async def is_quiet(rig: MeshRig, name: str) -> None:
    """No consumer there is given anything."""
    client = await rig.connect(name)
    await client.send(subscribe(JOBS, ack="client-individual"))
    await client.receipt()
    await nothing_comes(client, QUIET_SECONDS)


def serves(rig: MeshRig, name: str) -> set[str]:
    return rig.nodes[name].broker.queues.owned.serves


async def test_the_receipt_waits_for_the_node_that_serves_the_message(autojump_clock: Any) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "c")
        await publish(rig, "a", "one", "two")
        one, two = await worker.next("MESSAGE"), await worker.next("MESSAGE")
        rig.stick("a")

        await worker.send(ack(one, "edge"))
        assert marks(await receipt_of(worker, SOON)) == {}
        await worker.send(ack(two))
        await nothing_comes(worker, SECOND / 2)
        rig.free.set()

        assert marks(await receipt_of(worker, SOON)) == {}


async def test_a_consumer_at_the_serving_node_waits_for_one_more(autojump_clock: Any) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "a")
        await publish(rig, "a", "one")
        message = await worker.next("MESSAGE")
        rig.stick("b", "c")

        await worker.send(ack(message, receipt_level="fsync"))
        await nothing_comes(worker, SECOND / 2)
        rig.free.set()

        assert marks(await receipt_of(worker, SOON)) == {}


async def test_what_was_receipted_is_not_handed_out_when_the_only_node_that_had_served_it_dies(
    autojump_clock: Any,
) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "a")
        await publish(rig, "a", "one")
        await worker.send(ack(await worker.next("MESSAGE")))
        assert marks(await receipt_of(worker, SOON)) == {}

        await rig.kill("a")
        await eventually(lambda: serves(rig, "b") == {"a", "b"})

        await is_quiet(rig, "c")


async def test_an_ack_of_what_another_consumer_has_settled_counts_only_with_a_record_of_its_own(
    autojump_clock: Any,
) -> None:
    async with MeshRig("a", "b", "c", "d", "e").run() as rig:
        first = await consumer(rig, "b")
        await publish(rig, "a", "one")
        one = await first.next("MESSAGE")
        a, b = rig.nodes["a"], rig.nodes["b"]
        await eventually(
            lambda: all(n.engine.path.durable_vector() == a.engine.path.durable_vector() for n in rig.nodes.values())
        )
        isolate(rig, "b")
        second = await consumer(rig, "a")
        await trio.sleep(rig.settings("a").mesh.redeliver_after_seconds)
        again = await second.next("MESSAGE")
        await first.send(ack(one, "edge"))
        await receipt_of(first, SECOND * 5)
        # Only its own server hears that settle.
        for other in "cde":
            rig.cut("a", other)
        rig.heal("a", "b")
        await eventually(
            lambda: a.engine.path.durable_vector().get(b.origin) == b.engine.path.durable_vector()[b.origin]
        )

        await second.send(ack(again))

        assert marks(await receipt_of(second, SECOND * 5))["ack-level"] == "edge"


async def test_without_a_majority_the_receipt_says_edge_and_the_message_may_come_again(autojump_clock: Any) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "a")
        await publish(rig, "a", "one")
        message = await worker.next("MESSAGE")
        isolate(rig, "a")

        await worker.send(ack(message, receipt_level="fsync"))
        assert marks(await receipt_of(worker, SECOND + SOON)) == {**EDGE, "copies": "1"}
        await eventually(lambda: serves(rig, "b") == {"a", "b"})

        assert (await (await consumer(rig, "c")).next("MESSAGE")).body == b"one"


async def test_without_the_serving_node_the_receipt_says_edge_until_another_serves(autojump_clock: Any) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "c")
        await publish(rig, "a", "one", "two")
        one, two = await worker.next("MESSAGE"), await worker.next("MESSAGE")
        await rig.kill("a")

        await worker.send(ack(one))
        assert marks(await receipt_of(worker, SECOND + SOON)) == {**EDGE, "copies": "2"}
        await eventually(lambda: serves(rig, "b") == {"a", "b"})
        await worker.send(ack(two))

        assert marks(await receipt_of(worker, SOON)) == {}
        await is_quiet(rig, "b")


async def test_a_mesh_that_refuses_says_that_the_message_may_come_again(autojump_clock: Any) -> None:
    async with three(mesh={"receipt_short": "refuse"}).run() as rig:
        worker = await consumer(rig, "a", on_error="keep-open")
        await publish(rig, "a", "one")
        message = await worker.next("MESSAGE")
        isolate(rig, "a")
        await worker.send(ack(message))

        with trio.fail_after(SECOND + SOON):
            error = await worker.next("ERROR")

        assert error.head.headers["error-code"] == "too-few-copies"
        assert error.head.headers["receipt-id"] == "ack"
        assert "may be delivered again" in error.head.headers["message"]


async def test_an_ack_in_client_mode_waits_for_the_servers_of_all_that_it_covers(autojump_clock: Any) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "c", ack="client")
        await publish(rig, "a", "of a")
        first = await worker.next("MESSAGE")
        await publish(rig, "b", "of b")
        last = await worker.next("MESSAGE")
        assert (first.body, last.body) == (b"of a", b"of b")
        rig.stick("a")

        await worker.send(ack(last))
        await nothing_comes(worker, SECOND / 2)
        rig.free.set()

        assert marks(await receipt_of(worker, SOON)) == {}


@pytest.mark.parametrize(("of_ack", "of_commit"), [("quorum", None), ("edge", "quorum")])
async def test_a_transaction_waits_for_the_servers_of_what_it_settles(
    autojump_clock: Any, of_ack: str, of_commit: str | None
) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "c")
        await publish(rig, "a", "one")
        message = await worker.next("MESSAGE")
        rig.stick("a")
        asked = "" if of_commit is None else f"ack-level:{of_commit}\n"

        await worker.send(
            "BEGIN\ntransaction:t\n\n",
            send("/queue/results", "x", "sent", transaction="t"),
            ack(message, of_ack, transaction="t"),
            f"COMMIT\ntransaction:t\nreceipt:commit\n{asked}\n",
        )
        await nothing_comes(worker, SECOND / 2)
        rig.free.set()

        assert [await worker.receipt() for _ in range(3)] == ["sent", "ack", "commit"]


async def test_commit_may_ask_for_less_than_its_acks(autojump_clock: Any) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "c")
        await publish(rig, "a", "one")
        message = await worker.next("MESSAGE")
        rig.stick("a")

        await worker.send(
            "BEGIN\ntransaction:t\n\n",
            ack(message, transaction="t"),
            "COMMIT\ntransaction:t\nreceipt:commit\nack-level:edge\n\n",
        )

        with trio.fail_after(SOON):
            assert [await worker.receipt() for _ in range(2)] == ["ack", "commit"]


@pytest.mark.parametrize("setting", ["mesh", "policy"])
async def test_the_policy_or_the_mesh_says_what_an_ack_means_that_does_not_say(
    autojump_clock: Any, setting: str
) -> None:
    policies = (DestinationPolicy(pattern=JOBS, ack_level="quorum"),)
    said: dict[str, Any] = {"mesh": {"ack_level": "quorum"}}
    if setting == "policy":
        said = {"destinations": DestinationSettings(policies=policies)}
    async with three(**said).run() as rig:
        worker = await consumer(rig, "c")
        await publish(rig, "a", "one", "two")
        one, two = await worker.next("MESSAGE"), await worker.next("MESSAGE")
        rig.stick("a")

        await worker.send(ack(one, "edge"))
        assert marks(await receipt_of(worker, SOON)) == {}
        await worker.send(ack(two, None))

        assert marks(await receipt_of(worker, SECOND + SOON)) == {**EDGE, "copies": "2"}


async def test_a_candidate_sends_its_promise_when_it_makes_it(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three().run() as rig:
        mesh = rig.nodes["b"].mesh
        told: list[tuple[float, Terms]] = []
        tell = mesh.send_terms
        monkeypatch.setattr(
            mesh, "send_terms", lambda *said: (told.append((trio.current_time(), said[1])), tell(*said))
        )
        isolate(rig, "a")

        await eventually(lambda: serves(rig, "b") == {"a", "b"})

        asked_at, bid = next((at, frame.bid) for at, frame in told if isinstance(frame, Ask))
        beats = [frame.beat for at, frame in told if isinstance(frame, HeartbeatFrame) and at == asked_at]
        assert any(beat.promises.get("a") == bid.term for beat in beats)


async def test_one_node_alone_is_its_own_majority(autojump_clock: Any) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe(JOBS, ack="client-individual"), send(JOBS, "one"))
        message = await client.next("MESSAGE")

        await client.send(ack(message))

        assert [await client.receipt(), await client.receipt()] == ["sub-0", "ack"]


async def test_messages_in_memory_only_wait_for_no_peer(autojump_clock: Any) -> None:
    async with three().run() as rig:
        worker = await consumer(rig, "a")
        client = await rig.connect("a")
        await client.send(send(JOBS, "one", persistent="false"))
        message = await worker.next("MESSAGE")
        isolate(rig, "a")

        await worker.send(ack(message))

        assert marks(await receipt_of(worker, SOON)) == {}


async def test_a_level_that_there_is_not_is_refused(autojump_clock: Any) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe(JOBS, ack="client-individual"), send(JOBS, "one"))
        message = await client.next("MESSAGE")

        await client.send(ack(message, "majority"))

        error = await client.next("ERROR")
        assert error.head.headers["error-code"] == "bad-ack-level"
        assert "edge, quorum" in error.head.headers["message"]


async def test_what_was_settled_for_good_stays_so_when_less_than_a_majority_loses_its_disks(
    autojump_clock: Any,
) -> None:
    async with MeshRig("a", "b", "c", "d", "e").run() as rig:
        worker = await consumer(rig, "b")
        await publish(rig, "a", "one")
        one = await worker.next("MESSAGE")
        a = rig.nodes["a"]
        await eventually(
            lambda: all(n.engine.path.durable_vector() == a.engine.path.durable_vector() for n in rig.nodes.values())
        )
        for here in "abc":
            for there in "de":
                rig.cut(here, there)
        await eventually(lambda: not a.mesh.linked() & {"d", "e"})  # type: ignore[union-attr]
        await worker.send(ack(one))
        assert marks(await receipt_of(worker, SECOND * 5)).get("ack-level") is None
        await rig.kill("a")
        del rig.nodes["a"]
        for name in "bc":
            await rig.kill(name)
            del rig.nodes[name]
            rig.disks[name].wipe()
        for here in "abc":
            for there in "de":
                rig.heal(here, there)
        for name in "bc":
            await rig.start(name)
        pairs = [(one, other) for one in "bcde" for other in "bcde" if one != other]
        await eventually(lambda: all(rig.link(one, other) == "caught-up" for one, other in pairs))

        again = await consumer(rig, "d")
        await nothing_comes(again, QUIET_SECONDS)
        # With its disk the third one brings what two of them have forgotten.
        await rig.start("a")
        await eventually(lambda: not any(node.membership.is_learner for node in rig.nodes.values()))
        await nothing_comes(again, QUIET_SECONDS)
