"""Priority, time and failure, for a consumer on another node than the publisher's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.node.protocols import Protocols
from qmq.replication.mesh import Mesh
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, send, subscribe
from tests.support.depths import depths

JOBS = "/queue/jobs"
DEAD = "/queue/dead-letters"


@asynccontextmanager
async def mesh(*names: str, **policy: Any) -> AsyncIterator[MeshRig]:
    """Nodes a and b, with this policy for JOBS."""
    policies = (DestinationPolicy(pattern=JOBS, **policy),) if policy else ()
    rig = MeshRig(*names, destinations=DestinationSettings(policies=policies))
    async with rig.run():
        yield rig


async def publish(rig: MeshRig, *bodies: str, **headers: str) -> Client:
    """By a client of a, receipted."""
    client = await rig.connect("a")
    await client.send(*(send(JOBS, body, **headers) for body in bodies[:-1]), send(JOBS, bodies[-1], "r", **headers))
    await client.receipt()
    return client


async def consumer(rig: MeshRig, destination: str = JOBS, name: str = "b", **headers: str) -> Client:
    client = await rig.connect(name)
    await client.send(subscribe(destination, ack="client-individual", **headers))
    await client.receipt()
    return client


async def settle(client: Client, verb: str = "ACK", **headers: str) -> str:
    """Take the next message and answer it; its body."""
    message = await client.next("MESSAGE")
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    await client.send(f"{verb}\nid:{message.head.headers['ack']}\nreceipt:s\n{lines}\n")
    await client.receipt()
    return message.body.decode()


async def silence(client: Client, seconds: float) -> None:
    """Nothing is delivered for so long."""
    with trio.move_on_after(seconds):
        message = await client.next("MESSAGE")
        raise AssertionError(f"{message.body!r} was delivered")


async def test_a_higher_priority_goes_first(autojump_clock: MockClock) -> None:
    async with mesh() as rig:
        await publish(rig, "low", priority="1")
        await publish(rig, "plain")
        await publish(rig, "high", priority="9")

        worker = await consumer(rig, prefetch="1")

        assert [await settle(worker) for _ in range(3)] == ["high", "plain", "low"]


async def test_a_delayed_message_comes_when_it_is_due(autojump_clock: MockClock) -> None:
    async with mesh() as rig:
        await publish(rig, "later", delay="20000")
        await publish(rig, "now")
        worker = await consumer(rig)

        assert await settle(worker) == "now"
        await silence(worker, 15)
        assert await settle(worker) == "later"


async def test_an_expired_message_is_not_delivered_and_leaves_nothing(autojump_clock: MockClock) -> None:
    async with mesh() as rig:
        await publish(rig, "short", ttl="1000")
        await publish(rig, "long", ttl="90000")
        await trio.sleep(5)

        worker = await consumer(rig)

        assert await settle(worker) == "long"
        await silence(worker, 5)
        assert not depths(rig.nodes["a"])


async def test_the_policy_decides_about_expiry_where_the_sender_does_not(autojump_clock: MockClock) -> None:
    async with mesh(ttl_seconds=2.0) as rig:
        await publish(rig, "short")
        await publish(rig, "long", ttl="90000")
        await trio.sleep(5)

        assert await settle(await consumer(rig)) == "long"


async def test_a_refused_message_waits_longer_each_time_and_says_how_often_it_came(autojump_clock: MockClock) -> None:
    async with mesh(redelivery_seconds_min=1.0, redelivery_seconds_max=60.0) as rig:
        await publish(rig, "x")
        worker = await consumer(rig)
        came = []
        for _ in range(4):
            message = await worker.next("MESSAGE")
            came.append((trio.current_time(), message.head.headers.get("delivery-count", "1")))
            await worker.send(f"NACK\nid:{message.head.headers['ack']}\n\n")

        assert [count for _, count in came] == ["1", "2", "3", "4"]
        waits = [round(later - sooner) for (sooner, _), (later, _) in zip(came, came[1:], strict=False)]
        assert waits == [1, 2, 4]


async def test_what_fails_too_often_becomes_a_dead_letter_with_the_reason(autojump_clock: MockClock) -> None:
    async with mesh(delivery_limit=2, redelivery_seconds_min=0.1) as rig:
        await publish(rig, "poison", colour="red")
        worker = await consumer(rig)
        await settle(worker, "NACK")
        await settle(worker, "NACK")
        undertaker = await consumer(rig, DEAD)

        letter = await undertaker.next("MESSAGE")

        assert letter.body == b"poison"
        headers = letter.head.headers
        assert headers["dead-letter-reason"] == "delivery-limit"
        assert headers["dead-letter-from"] == JOBS
        assert headers["dead-letter-deliveries"] == "2"
        assert headers["dead-letter-id"].startswith("a-")
        assert headers["colour"] == "red"
        await silence(worker, 5)


async def test_a_rejected_message_becomes_a_dead_letter_at_once(autojump_clock: MockClock) -> None:
    async with mesh() as rig:
        await publish(rig, "x")
        await settle(await consumer(rig), "NACK", requeue="false")

        letter = await (await consumer(rig, DEAD)).next("MESSAGE")

        assert letter.head.headers["dead-letter-reason"] == "rejected"


async def test_a_consumer_decides_for_itself_what_its_failures_mean(autojump_clock: MockClock) -> None:
    async with mesh() as rig:
        await publish(rig, "x")
        asks = {"delivery_limit": "1", "dead_letter": "/queue/mine"}
        await settle(await consumer(rig, **asks), "NACK")

        letter = await (await consumer(rig, "/queue/mine")).next("MESSAGE")

        assert letter.head.headers["dead-letter-reason"] == "delivery-limit"


@pytest.mark.parametrize("where", ["message", "subscription", "policy"])
async def test_a_consumer_that_is_too_slow_loses_the_message_to_another_and_its_late_ack_means_nothing(
    autojump_clock: MockClock, where: str
) -> None:
    policy = {"ack_timeout_seconds": 3.0} if where == "policy" else {}
    async with mesh("a", "b", "c", **policy) as rig:
        slow = await consumer(rig, **({"ack_timeout": "3"} if where == "subscription" else {}))
        await publish(rig, "x", **({"ack-timeout": "3"} if where == "message" else {}))
        first = await slow.next("MESSAGE")
        other = await consumer(rig, name="c")

        second = await other.next("MESSAGE")
        await other.send(f"ACK\nid:{second.head.headers['ack']}\nreceipt:s\n\n")
        await other.receipt()
        await slow.send(f"ACK\nid:{first.head.headers['ack']}\nreceipt:late\n\n")

        assert int(second.head.headers["delivery-count"]) >= 2
        assert await slow.receipt() == "late"
        await trio.sleep(1)
        assert not depths(rig.nodes["a"])


async def test_a_full_queue_drops_the_oldest_and_keeps_it_among_the_dead_letters(autojump_clock: MockClock) -> None:
    async with mesh(max_messages=2, overflow="drop-oldest", dead_letter="/queue/dropped") as rig:
        await publish(rig, "1", "2", "3", "4")

        worker = await consumer(rig)
        letters = await consumer(rig, "/queue/dropped")

        assert [await settle(worker) for _ in range(2)] == ["3", "4"]
        assert [await settle(letters) for _ in range(2)] == ["1", "2"]


async def test_a_backlog_that_only_the_store_has_goes_to_a_consumer_of_another_node_in_order(
    autojump_clock: MockClock,
) -> None:
    rig = MeshRig(limits={"queue_messages_in_memory_max": 1000})
    async with rig.run():
        await publish(rig, *(str(number) for number in range(2500)))
        await rig.nodes["a"].engine.checkpoints.checkpoint()
        assert not rig.nodes["a"].broker.queues.owned.in_memory

        worker = await consumer(rig, prefetch="20")

        assert await worker.consume(2500) == [b"%d" % number for number in range(2500)]


@pytest.mark.parametrize(
    "header, code",
    [
        ("priority:10", "bad-priority"),
        ("priority:high", "bad-priority"),
        ("ttl:-1", "bad-header"),
        ("delay:soon", "bad-header"),
        ("ack-timeout:x", "bad-header"),
    ],
)
async def test_a_wish_that_means_nothing_is_answered_with_what_would(
    autojump_clock: MockClock, header: str, code: str
) -> None:
    async with mesh() as rig:
        client = await rig.connect("a")
        await client.send(f"SEND\ndestination:{JOBS}\nreceipt:r\n{header}\n\nx")

        (error,) = await client.until_closed()

        assert error.head.command == "ERROR"
        assert error.head.headers["error-code"] == code
        assert error.head.headers["receipt-id"] == "r"
        assert header.split(":")[0] in error.head.headers["message"]


async def test_a_client_that_does_not_read_what_it_should_acknowledge_is_let_go(autojump_clock: MockClock) -> None:
    rig = Rig(limits={"outbox_bytes_max": 1 << 18, "body_bytes_max": 1 << 16})
    async with rig.run():
        deaf = await rig.connect()
        await deaf.send(
            subscribe(JOBS, ack="client-individual", ack_timeout="2", delivery_limit="0", prefetch_count="1000")
        )
        sender = await rig.connect("10.0.0.2")
        await sender.send(*(send(JOBS, "x" * 20_000) for _ in range(300)), send(JOBS, "last", "r"))
        await sender.receipt()
        await trio.sleep(30)

        assert not any(session.deferred for session in rig.alive.sessions.values())
        assert len(rig.alive.sessions) == 1
        assert depths(rig.alive)[JOBS] == 301


async def test_a_node_loads_its_protocols_before_peers_can_ask_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a load takes, every SEND of a peer with a dedup id would wait for."""
    steps: list[str] = []
    of, run = Protocols.of, Mesh.run
    monkeypatch.setattr(Protocols, "of", lambda self, name: steps.append(name) or of(self, name))
    monkeypatch.setattr(Mesh, "run", lambda self, **given: steps.append("links") or run(self, **given))

    async with mesh("a"):
        assert "stomp" in steps[: steps.index("links")]
