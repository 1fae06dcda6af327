"""Request and reply: answers, many at once, refusals, nodes that die with an answer on its way."""

import re
from collections import Counter
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import qmq.client
from qmq.errors import NotConnected, Refused, ReplyLost
from tests.client.rig import CLIENT_HOST, eventually, running

WORK = "/queue/work"
PAGE = Path(__file__).parents[2] / "docs" / "client.md"


async def respond(
    client: qmq.client.Client,
    *,
    gate: trio.Event | None = None,
    seen: Counter[bytes] | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer every request with its body doubled."""
    async with client.subscribe(WORK) as requests:
        task_status.started()
        async for request in requests:
            async with request:
                if seen is not None:
                    seen[request.body] += 1
                if gate is not None:
                    await gate.wait()
                await request.reply(request.body * 2, {"colour": "green"})


async def test_an_answer_comes_back_with_its_headers(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client, mesh.client() as worker, trio.open_nursery() as nursery:
        await nursery.start(respond, worker)

        answer = await client.request(WORK, b"ab", {"size": "small"}, timeout_seconds=5)

        assert answer.body == b"abab"
        assert answer.headers["colour"] == "green"
        assert client.statistics().waiting_requests == 0
        async with answer:
            pass  # there is nothing to settle
        nursery.cancel_scope.cancel()


async def test_many_requests_at_once_each_get_their_own_answer_from_another_node(autojump_clock: MockClock) -> None:
    async with (
        running("ab") as mesh,
        mesh.client(addresses=mesh.addresses[:1]) as client,
        mesh.client(addresses=mesh.addresses[1:]) as worker,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(respond, worker)
        answers: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            answers[number] = (await client.request(WORK, b"%d" % number)).body

        async with trio.open_nursery() as asking:
            for number in range(500):
                asking.start_soon(ask, number)

        assert answers == {number: b"%d%d" % (number, number) for number in range(500)}
        nursery.cancel_scope.cancel()


async def test_a_client_may_answer_itself(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client, trio.open_nursery() as nursery:
        await nursery.start(respond, client)

        assert (await client.request(WORK, b"x")).body == b"xx"
        nursery.cancel_scope.cancel()


async def test_without_an_answer_the_time_limit_ends_the_wait_and_a_late_answer_does_no_harm(
    autojump_clock: MockClock,
) -> None:
    gate = trio.Event()
    async with running() as mesh, mesh.client() as client, mesh.client() as worker, trio.open_nursery() as nursery:
        await nursery.start(partial(respond, worker, gate=gate))

        with pytest.raises(TimeoutError):
            await client.request(WORK, b"late", timeout_seconds=1)
        gate.set()
        answer = await client.request(WORK, b"soon")

        assert answer.body == b"soonsoon"
        assert client.statistics().waiting_requests == 0
        nursery.cancel_scope.cancel()


async def test_a_refused_request_says_so(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        with pytest.raises(Refused, match="bad-destination"):
            await client.request("/nowhere/x", b"")

        assert client.statistics().waiting_requests == 0


async def test_headers_that_would_lead_the_answer_astray_are_refused(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.request, WORK, b"", {"correlation-id": "mine"}))
        await eventually(lambda: client.statistics().waiting_requests == 1)

        with pytest.raises(ValueError, match="correlation-id"):
            await client.request(WORK, b"", {"correlation-id": "mine"})
        with pytest.raises(ValueError, match="reply-to"):
            await client.request(WORK, b"", {"reply-to": "/queue/q"})

        assert client.statistics().waiting_requests == 1
        nursery.cancel_scope.cancel()


async def test_a_request_that_its_node_had_taken_is_lost_with_the_connection(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client, mesh.client(addresses=mesh.addresses[1:]) as worker:
        async with worker.subscribe(WORK) as requests:

            async def ask() -> None:
                with pytest.raises(ReplyLost):
                    await client.request(WORK, b"x")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                request = await anext(requests)
                await eventually(lambda: not client.statistics().unconfirmed_messages)
                mesh.kill("a")

            await eventually(lambda: not mesh.nodes["b"].broker.replies.peers)
            assert await request.reply(b"too late") is False
            assert client.statistics().waiting_requests == 0


async def test_with_retry_it_is_asked_once_more_at_the_next_node_with_the_same_ids(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client, mesh.client(addresses=mesh.addresses[1:]) as worker:
        async with worker.subscribe(WORK) as requests:
            answers: list[bytes] = []

            async def ask() -> None:
                answers.append((await client.request(WORK, b"x", retry=True)).body)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                first = await anext(requests)
                await eventually(lambda: not client.statistics().unconfirmed_messages)
                mesh.kill("a")
                second = await anext(requests)
                assert await second.reply(b"answer")

            assert answers == [b"answer"]
            assert first.headers["reply-to"] != second.headers["reply-to"]
            for name in ("correlation-id", "dedup-id"):
                assert first.headers[name] == second.headers[name]


async def test_a_request_without_a_receipt_is_written_again_and_answered(autojump_clock: MockClock) -> None:
    seen: Counter[bytes] = Counter()
    async with (
        running("ab") as mesh,
        mesh.client() as client,
        mesh.client(addresses=mesh.addresses[1:]) as worker,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(partial(respond, worker, seen=seen))
        mesh.fabric.cut(mesh.hosts["a"], CLIENT_HOST)
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append((await client.request(WORK, b"x")).body)

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await eventually(lambda: seen[b"x"] == 1)
            mesh.fabric.break_between(CLIENT_HOST, mesh.hosts["a"])

        assert answers == [b"xx"]
        assert seen == {b"x": 2}
        assert client.statistics().written_again == 1
        nursery.cancel_scope.cancel()


async def test_leaving_ends_the_wait_for_answers(autojump_clock: MockClock) -> None:
    async with running() as mesh, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(NotConnected):
                await client.request(WORK, b"x")

        async with mesh.client() as client:
            nursery.start_soon(ask)
            await eventually(lambda: client.statistics().waiting_requests == 1)


async def test_a_message_that_asks_for_no_answer_gets_none(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client, client.subscribe(WORK) as requests:
        await client.send(WORK, b"x")
        message = await anext(requests)

        with pytest.raises(ValueError, match="reply-to"):
            await message.reply(b"y")


async def test_a_reply_to_an_ordinary_queue_is_a_message_like_any_other(autojump_clock: MockClock) -> None:
    async with (
        running() as mesh,
        mesh.client() as client,
        client.subscribe(WORK) as requests,
        client.subscribe("/queue/answers") as answers,
    ):
        await client.send(WORK, b"x", {"reply-to": "/queue/answers"})
        request = await anext(requests)
        assert await request.reply(b"y")
        answer = await anext(answers)

        # Without a correlation id the request's own id is what the asker can know it by.
        assert (answer.body, answer.headers["correlation-id"]) == (b"y", request.id)


@pytest.mark.parametrize(
    ("queue", "headers", "is_taken"),
    [
        ("/queue/amq.gen-1", {}, False),
        ("/queue/answers", {"mandatory": "true"}, False),
        ("/queue/answers", {}, True),
    ],
)
async def test_a_reply_to_a_queue_that_has_ended(
    autojump_clock: MockClock, queue: str, headers: dict[str, str], is_taken: bool
) -> None:
    async with running() as mesh, mesh.client() as client, client.subscribe(WORK) as requests:
        async with client.subscribe(queue):
            await client.send(WORK, b"x", {"reply-to": queue})
            request = await anext(requests)
        await eventually(lambda: queue not in mesh.nodes["a"].broker.queues.by_name)

        assert await request.reply(b"y", headers) is is_taken
        assert (queue in mesh.nodes["a"].broker.queues.by_name) is is_taken


async def test_an_explicit_subscription_to_a_temporary_queue_is_like_one_to_a_topic(autojump_clock: MockClock) -> None:
    async with (
        running() as mesh,
        mesh.client() as client,
        client.subscribe(WORK) as requests,
        client.subscribe("/temp-queue/mine") as answers,
    ):
        await client.send(WORK, b"x", {"reply-to": "/temp-queue/mine"})
        assert await (await anext(requests)).reply(b"y")

        async with await anext(answers) as answer:
            assert answer.body == b"y"


async def test_the_examples_of_the_page_do_what_it_says(autojump_clock: MockClock) -> None:
    section = PAGE.read_text("utf-8").partition("## Request and reply")[2].partition("\n## ")[0]
    answering, asking = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    said: list[bytes] = []
    names: dict[str, Any] = {"print": said.append}
    exec(f"async def answer(client):\n{indent(answering, '    ')}", names)
    exec(f"async def ask(client):\n{indent(asking, '    ')}", names)

    async with (
        running("ab") as mesh,
        mesh.client(addresses=mesh.addresses[:1]) as client,
        mesh.client(addresses=mesh.addresses[1:]) as worker,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(names["answer"], worker)
        await names["ask"](client)
        nursery.cancel_scope.cancel()

    assert said == [b"49"]
