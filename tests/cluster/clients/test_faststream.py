"""FastStream's broker for RabbitMQ on real nodes: what its services may ask, and the program of docs/faststream.md."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest

from qmq.testing.local import QUICK, MeshUnderTest, NodeUnderTest, node, peers_of
from qmq.testing.ports import free_ports
from tests.support.cluster_mesh import QUICK_TAKEOVER, ROOT

faststream = pytest.importorskip("faststream")
rabbit = pytest.importorskip("faststream.rabbit")

from faststream import AckPolicy, Context  # noqa: E402
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue  # noqa: E402

PAGE = (ROOT / "docs" / "faststream.md").read_text("utf-8")
SERVICE, BY_NAME, REPEATED = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

PATIENCE_SECONDS = 60.0
NAME = "mesh.example"
"""Of all nodes, as the page has it."""

ALL_JOBS = set(range(1, 101))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    with node(folder=tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest.fixture
def broker(one: NodeUnderTest) -> RabbitBroker:
    host, port = one.served("amqp")
    return RabbitBroker(f"amqp://guest:guest@{host}:{port}/", logger=None)


@asynccontextmanager
async def started(broker: RabbitBroker) -> AsyncIterator[RabbitBroker]:
    async with asyncio.timeout(PATIENCE_SECONDS), broker:
        await broker.start()
        yield broker


async def taken(seen: "asyncio.Queue[Any]", count: int) -> list[Any]:
    return [await seen.get() for _ in range(count)]


@pytest.mark.parametrize(
    ("policy", "attempts"),
    [
        (AckPolicy.ACK, 1),
        (AckPolicy.ACK_FIRST, 1),
        (AckPolicy.REJECT_ON_ERROR, 1),
        (AckPolicy.NACK_ON_ERROR, 3),
        (AckPolicy.MANUAL, 2),
    ],
)
def test_each_ack_policy_settles_what_a_subscriber_fails_at(
    broker: RabbitBroker, policy: AckPolicy, attempts: int
) -> None:
    queue = RabbitQueue(f"policy.{policy.name}", durable=True)

    async def main() -> list[str]:
        seen: asyncio.Queue[str] = asyncio.Queue()
        failures = 0

        @broker.subscriber(queue, ack_policy=policy)
        async def fail_twice(body: str, message: RabbitMessage) -> None:
            nonlocal failures
            seen.put_nowait(body)
            if policy is AckPolicy.MANUAL:  # It settles by itself: once back to the queue, then done.
                await (message.ack() if message.raw_message.redelivered else message.nack())
            elif body == "fails" and failures < 2:
                failures += 1
                raise ZeroDivisionError

        async with started(broker):
            await broker.publish("fails", queue, persist=True)
            before = await taken(seen, attempts)
            await broker.publish("last", queue, persist=True)
            return before + await taken(seen, 1)

    assert asyncio.run(main()) == ["fails"] * attempts + ["last"]


def test_what_is_rejected_is_a_dead_letter_of_its_queue(broker: RabbitBroker) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
    queue = RabbitQueue("rejecting", durable=True, arguments=arguments)

    async def main() -> list[Any]:
        seen: asyncio.Queue[Any] = asyncio.Queue()

        @broker.subscriber(queue)
        async def reject(body: str) -> None:
            raise ZeroDivisionError

        @broker.subscriber(RabbitQueue("failed", durable=True))
        async def note(body: str, deaths: Annotated[list[dict[str, Any]], Context("message.headers.x-death")]) -> None:
            seen.put_nowait((body, deaths[0]["reason"], deaths[0]["queue"]))

        async with started(broker):
            await broker.publish("poison", queue, persist=True)
            return await taken(seen, 1)

    assert asyncio.run(main()) == [("poison", "rejected", "rejecting")]


def test_exchanges_route_and_publishers_pass_results_on(broker: RabbitBroker) -> None:
    orders = RabbitExchange("faststream.orders", type=ExchangeType.TOPIC)

    async def main() -> set[str]:
        seen: asyncio.Queue[str] = asyncio.Queue()

        @broker.subscriber(RabbitQueue("faststream.eu", routing_key="eu.*"), orders)
        @broker.publisher("faststream.invoices")
        async def bill(body: str) -> str:
            return f"invoice of {body}"

        @broker.subscriber("faststream.invoices")
        async def post(body: str) -> None:
            seen.put_nowait(body)

        async with started(broker):
            await broker.publish("one", exchange=orders, routing_key="us.new")
            await broker.publish("two", exchange=orders, routing_key="eu.new")
            await broker.publish("three", exchange=orders, routing_key="eu.old")
            return set(await taken(seen, 2))

    assert asyncio.run(main()) == {"invoice of two", "invoice of three"}


def test_a_request_is_answered_and_one_message_can_be_taken(broker: RabbitBroker) -> None:
    async def main() -> tuple[Any, Any, bool]:
        @broker.subscriber("squares")
        async def square(number: int) -> int:
            return number * number

        async with started(broker):
            answer = await broker.request(7, "squares", timeout=PATIENCE_SECONDS)
            lone = broker.subscriber("lone")
            await lone.start()
            await broker.publish("a message", "lone")
            message = await lone.get_one(timeout=PATIENCE_SECONDS)
            assert message is not None
            return await answer.decode(), await message.decode(), await broker.ping(PATIENCE_SECONDS)

    assert asyncio.run(main()) == (49, "a message", True)


def test_the_test_broker_and_the_schema_of_the_page_need_no_node() -> None:
    space: dict[str, Any] = {}
    exec(SERVICE, space)

    async def main() -> None:
        async with rabbit.TestRabbitBroker(space["broker"]) as broker:
            await broker.publish(7, space["jobs"])
            space["resize"].mock.assert_called_once_with(7)

    asyncio.run(main())
    schema = faststream.AsyncAPI(space["broker"]).to_specification().to_jsonable()
    assert [one["address"] for one in schema["channels"].values()] == ["resize"]


def test_the_service_of_the_page_does_all_its_jobs(one: NodeUnderTest, tmp_path: Path) -> None:
    host, port = one.served("amqp")
    (tmp_path / "resizes.py").write_text(SERVICE.replace("127.0.0.1:61672", f"{host}:{port}"))
    script = "import asyncio, resizes; asyncio.run(resizes.app.run())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as service:
        done: set[int] = set()
        assert service.stdout is not None
        for line in service.stdout:
            done.update(map(int, re.findall(r"done resize (\d+)", line)))
            if done == ALL_JOBS:
                break
        service.terminate()

    assert done == ALL_JOBS


def peers_of_one_port() -> tuple[str, int]:
    """A peers file whose nodes have 127.0.0.1, .2 and .3, with the same AMQP port, as on three hosts."""
    (port,) = free_ports(1)
    hosts = iter(("127.0.0.1", "127.0.0.2", "127.0.0.3"))
    return re.sub(r'^amqp = ".*"$', lambda _: f'amqp = "{next(hosts)}:{port}"', peers_of(3), flags=re.MULTILINE), port


def test_a_service_goes_on_with_the_next_address_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers, port = peers_of_one_port()
    resolve = socket.getaddrinfo

    def resolve_mesh(host: Any, *args: Any, **options: Any) -> Any:
        hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3") if host == NAME else (host,)
        return [found for one in hosts for found in resolve(one, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_mesh)
    space: dict[str, Any] = {"asyncio": asyncio}
    exec(SERVICE, space)
    exec(BY_NAME.replace(":5672/", f":{port}/"), space)
    exec(REPEATED, space)
    done: set[int] = set()

    async def main() -> None:
        all_done = asyncio.Event()
        broker = space["broker"]

        @broker.subscriber(space["jobs"], ack_policy=AckPolicy.NACK_ON_ERROR)
        async def resize(number: int) -> None:
            done.add(number)
            if done == ALL_JOBS:
                all_done.set()

        async with asyncio.timeout(PATIENCE_SECONDS), broker:
            await broker.start()
            for number in sorted(ALL_JOBS):
                if number == 50:
                    await asyncio.to_thread(mesh.kill, "a")
                await space["publish_safely"](number)
            await all_done.wait()

    mesh = MeshUnderTest(tmp_path, peers, node_files=QUICK + QUICK_TAKEOVER)
    try:
        mesh.start("a", "b", "c")
        mesh.wait_for_links()
        asyncio.run(main())
    finally:
        mesh.close()

    assert done == ALL_JOBS
