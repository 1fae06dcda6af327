"""Publishes to queues that do not exist: peers are asked once for all that have come, and never too early."""

from collections.abc import Callable

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from qmq.node.node import Node
from qmq.protocols.amqp.codec.frames import HEARTBEAT
from qmq.protocols.amqp.lookup import Questions
from tests.protocols.amqp.mesh import AmqpMesh
from tests.protocols.amqp.rig import AmqpClient, Message


def counted(node: Node) -> list[float]:
    """When this node asks its peers for their definitions, from now on."""
    asked: list[float] = []
    refresh = node.settings_parts.sync.refresh

    async def counting() -> None:
        asked.append(trio.current_time())
        await refresh()

    node.settings_parts.sync.refresh = counting  # type: ignore[method-assign]
    return asked


async def confirmed(client: AmqpClient, count: int) -> None:
    last = 0
    while last < count:
        last = (await client.next(commands.Basic.Ack)).delivery_tag


async def with_confirms(mesh: AmqpMesh, name: str) -> AmqpClient:
    client = await mesh.client(name)
    await client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return client


async def test_peers_are_asked_once_for_all_that_came_in_one_read(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a", "b").run() as mesh:
        client = await with_confirms(mesh, "a")
        asked = counted(mesh.nodes["a"])

        await client.pipe.send_all(b"".join(client.publishing("nowhere", b"x") for _ in range(100)))
        await confirmed(client, 100)

        assert len(asked) == 1


async def test_many_publishers_share_the_questions(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a", "b").run() as mesh:
        clients = [await with_confirms(mesh, "a") for _ in range(10)]
        asked = counted(mesh.nodes["a"])

        for client in clients:
            await client.publish("nowhere", b"x")
        for client in clients:
            await confirmed(client, 1)

        # Those that come while one is under way wait for the next.
        assert 1 <= len(asked) <= 3


async def test_each_name_is_asked_about(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a", "b").run() as mesh:
        client, other = await with_confirms(mesh, "a"), await mesh.client("b")
        await other.declare("here")
        await client.pipe.send_all(
            client.publishing("nowhere", b"1", mandatory=True) + client.publishing("here", b"2", mandatory=True)
        )
        await confirmed(client, 2)

        (returned,) = await client.messages(1)
        assert returned.body == b"1" and client.received == []


async def test_a_publish_after_a_declaration_on_another_node_reaches_the_queue(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a", "b").run() as mesh:
        client, other = await with_confirms(mesh, "a"), await mesh.client("b")
        # The record of the declaration takes long: only a question finds it.
        mesh.nodes["a"].engine.replay.follow(definitions=lambda change: None)

        for number in range(20):
            name = f"queue-{number}"
            await client.publish(name, *[b"early"] * 5)
            if number % 2:
                await confirmed(client, 6 * number + 5)
            await other.declare(name)
            await client.publish(name, b"late", delivery_mode=2)
            await other.consume(name, tag=name)
            while (await other.next(Message)).body != b"late":
                pass


async def test_a_mandatory_publish_after_a_binding_on_another_node_is_not_returned(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a", "b").run() as mesh:
        client, other = await with_confirms(mesh, "a"), await mesh.client("b")
        await other.declare("jobs")
        # The record of the binding takes long: only a question finds it.
        mesh.nodes["a"].engine.replay.follow(definitions=lambda change: None)
        await other.call(1, commands.Queue.Bind(0, "jobs", "amq.topic", "eu.*"), commands.Queue.BindOk)
        asked = counted(mesh.nodes["a"])

        eu = [client.publishing("eu.new", b"%d" % number, "amq.topic", mandatory=True) for number in range(10)]
        us = [client.publishing("us.new", b"%d" % number, "amq.topic", mandatory=True) for number in range(10)]
        await client.pipe.send_all(b"".join([*us[:5], *eu, *us[5:]]))
        await confirmed(client, 20)

        assert [message.method.routing_key for message in await client.messages(10)] == ["us.new"] * 10
        assert len(asked) == 1
        await other.consume("jobs")
        assert await other.bodies(10) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("exchange", ["", "amq.topic"])
async def test_a_publisher_is_not_silent_while_its_node_waits_for_peers(
    exchange: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AmqpMesh("a", "b").run() as mesh:
        client = await mesh.client("a", heartbeat=1)
        await client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

        async def slow() -> None:
            await trio.sleep(3)

        monkeypatch.setattr(mesh.nodes["a"].settings_parts.sync, "refresh", slow)
        await client.pipe.send_all(b"".join([client.publishing(key, b"x", exchange, mandatory=True) for key in "abc"]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat, client)
            await confirmed(client, 3)
            nursery.cancel_scope.cancel()


async def beat(client: AmqpClient) -> None:
    while True:
        await trio.sleep(0.5)
        await client.pipe.send_all(HEARTBEAT)


class Asked:
    """Questions that are answered when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, trio.Event]] = []
        self.known: set[str] = set()

    async def ask(self, queue: str) -> bool:
        event = trio.Event()
        self.waiting.append((queue, event))
        found = queue in self.known
        await event.wait()
        return found

    def answer(self) -> None:
        self.waiting.pop(0)[1].set()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.testing.wait_all_tasks_blocked()


async def test_a_question_that_began_before_a_publish_came_does_not_answer_no(autojump_clock: MockClock) -> None:
    asked = Asked()
    questions = Questions()
    answers: dict[str, bool] = {}

    async def publish(name: str) -> None:
        answers[name] = await questions.exists("/queue/q", asked.ask)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, "early")
        await until(lambda: len(asked.waiting) == 1)
        asked.known.add("/queue/q")
        nursery.start_soon(publish, "late")
        nursery.start_soon(publish, "later")
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked.waiting) == 1

        asked.answer()
        await until(lambda: len(asked.waiting) == 1 and "early" in answers)
        assert answers == {"early": False}
        asked.answer()

    assert answers == {"early": False, "late": True, "later": True}
    assert asked.waiting == []


async def test_a_question_that_found_the_queue_answers_all(autojump_clock: MockClock) -> None:
    asked = Asked()
    asked.known.add("/queue/q")
    questions = Questions()
    found: list[bool] = []

    async def publish() -> None:
        found.append(await questions.exists("/queue/q", asked.ask))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        await until(lambda: len(asked.waiting) == 1)
        nursery.start_soon(publish)
        await trio.testing.wait_all_tasks_blocked()
        asked.answer()

    assert found == [True, True]


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_publisher_that_leaves_lets_the_others_ask(autojump_clock: MockClock, is_first: bool) -> None:
    """The question that is not answered is the first one, or one for which the others have waited from its begin."""
    asked = Asked()
    questions = Questions()
    found: list[bool] = []
    scopes = {name: trio.CancelScope() for name in ("ann", "bob")}
    asking: list[str] = []

    async def publish(name: str) -> None:
        async def ask(queue: str) -> bool:
            asking.append(name)
            return await asked.ask(queue)

        with scopes[name]:
            found.append(await questions.exists("/queue/q", ask))

    async with trio.open_nursery() as nursery:
        if not is_first:
            nursery.start_soon(questions.exists, "/queue/q", asked.ask)
            await until(lambda: len(asked.waiting) == 1)
        for name in scopes:
            nursery.start_soon(publish, name)
            await trio.testing.wait_all_tasks_blocked()
        if not is_first:
            asked.answer()
        await until(lambda: len(asking) == 1)

        scopes[asking[0]].cancel()
        await until(lambda: len(asking) == 2)
        asked.waiting.pop(0)
        asked.answer()

    assert asking[0] != asking[1]
    assert found == [False]
