"""The events of a node for subscribers of its system topics."""

import json
import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.facts.system import LOGGED_PER_MINUTE, MINUTE_US, STATS_SECONDS
from tests.client.rig import running
from tests.mesh.peers.test_replies import at
from tests.node.rig import Client, Rig, eventually, nothing_more, send, subscribe


async def events(client: Client, count: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(count):
        message = await client.next("MESSAGE")
        assert message.head.headers["content-type"] == "application/json"
        found.append(json.loads(message.body))
    return found


async def test_links_that_end_and_come_back_are_reported(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        watcher = await at(mesh, "a")
        await watcher.send(subscribe("/system/events"))
        await watcher.receipt()

        mesh.kill("b")
        down = await events(watcher, 2)
        await mesh.start("b")
        await eventually(lambda: len(mesh.nodes["a"].broker.replies.peers) == 1)
        told = []
        while {(event["link"], event["state"]) for event in told} < {("out", "up"), ("in", "up")}:
            told += await events(watcher, 1)

        assert {(event["link"], event["state"]) for event in down} == {("out", "down"), ("in", "down")}
        assert {(event["event"], event["node"], event["peer"]) for event in (*down, *told)} == {("link", "a", "b")}


async def test_the_picture_of_all_peers_follows_each_change(autojump_clock: MockClock) -> None:
    async with running("abc") as mesh:
        watcher = await at(mesh, "a")
        await watcher.send(subscribe("/system/peers"))
        await watcher.receipt()

        mesh.kill("b")
        picture: Any = []
        while {peer["name"]: (peer["out"], peer["in"]) for peer in picture} != {
            "b": ("down", "down"),
            "c": ("up", "up"),
        }:
            (picture,) = await events(watcher, 1)


async def test_a_new_subscriber_gets_the_peers_at_once_and_the_others_nothing(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        first = await at(mesh, "a")
        await first.send(subscribe("/system/peers"))
        (picture,) = await events(first, 1)

        second = await at(mesh, "a")
        await second.send(subscribe("/system/peers"))
        (again,) = await events(second, 1)

        assert [(peer["name"], peer["out"], peer["in"]) for peer in picture] == [("b", "up", "up")]
        assert [peer["name"] for peer in again] == ["b"]
        await nothing_more(first)


async def test_a_node_alone_answers_that_it_has_no_peers(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        watcher = await rig.connect()
        await watcher.send(subscribe("/system/peers"))

        assert (await watcher.any()).head.command == "RECEIPT"
        assert json.loads((await watcher.next("MESSAGE")).body) == []


async def test_a_subscriber_that_leaves_before_its_answer_gets_none(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        watcher = await at(mesh, "a")
        await watcher.send(subscribe("/system/peers"), "UNSUBSCRIBE\nid:0\n\n")

        await nothing_more(watcher)


async def test_an_event_is_published_once(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        watcher = await rig.connect()
        await watcher.send(subscribe("/system/events"))
        await watcher.receipt()

        rig.alive.add_event("gap", "one")
        rig.alive.add_event("gap", "one")
        rig.alive.add_event("gap", "two")

        assert [(event["event"], event["message"]) for event in await events(watcher, 2)] == [
            ("gap", "one"),
            ("gap", "two"),
        ]


async def test_the_stop_of_a_node_is_announced_before_it_disconnects_its_clients(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        watcher = await rig.connect()
        await watcher.send(subscribe("/system/events"))
        await watcher.receipt()

        rig.alive.stop()
        event, error = await watcher.until_closed()

        assert json.loads(event.body)["event"] == "stopping"
        assert error.head.headers["error-code"] == "stopping"


async def test_no_other_node_delivers_it_and_nothing_is_left(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        watcher = await at(mesh, "b")
        await watcher.send(subscribe("/system/events"))
        await watcher.receipt()

        mesh.nodes["a"].add_event("gap", "of a")
        mesh.nodes["b"].add_event("gap", "of b")
        (event,) = await events(watcher, 1)
        watcher.pipe.close()
        await eventually(lambda: not mesh.nodes["b"].sessions)

        assert event["message"] == "of b"
        assert not mesh.nodes["b"].broker.topics
        assert not any(mesh.nodes["b"].broker.subscriptions.watchers.values())


async def test_patterns_of_topics_do_not_hear_it(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        watcher = await rig.connect()
        for number, pattern in enumerate(("/topic/#", "/topic/*", "/topic/*.*")):
            await watcher.send(subscribe(pattern, id=str(number)))
            await watcher.receipt()

        rig.alive.add_event("gap", "one")
        rig.alive.system.links_changed()
        await eventually(lambda: not rig.alive.system._waiting)
        await watcher.send(send("/topic/t", "the only one"))

        assert await watcher.messages(2) == [b"the only one"] * 2


async def test_no_other_session_may_send_there_and_other_names_mean_nothing(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        for frame in (
            send("/system/events", "{}", "r"),
            subscribe("/system/other"),
            subscribe("/system/*"),
        ):
            client = await rig.connect()
            await client.send(frame)
            assert (await client.next("ERROR")).head.headers["error-code"] in ("bad-destination", "bad-pattern")


def bind(queue: str) -> str:
    return send(f"/control/bind/queue/{queue}", "{}", queue, source="/exchange/amq.direct", key=queue)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.message for record in caplog.records if record.levelno >= logging.INFO and "= user" in record.message
    ]


async def test_verbs_that_change_nothing_are_not_in_the_log(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.INFO, "qmq.admin")
    async with Rig().run() as rig:
        client = await rig.connect()

        for frame in [bind("q"), bind("q"), bind("q"), send("/control/purge/queue/none", "", "p")]:
            await client.send(frame)
            await client.receipt()

        (line,) = lines_of(caplog)
        assert "bind" in line
        assert [row["event"] for row in rig.alive.system.audited] == ["bind", "bind", "bind", "purge"]


async def test_of_many_verbs_of_one_user_a_hundred_a_minute_are_in_the_log_and_then_their_number(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.INFO, "qmq.admin")
    async with Rig().run() as rig:
        client = await rig.connect()
        to_minute = -rig.alive.environment.now_us() % MINUTE_US / 1e6
        await trio.sleep(to_minute)
        for number in range(LOGGED_PER_MINUTE + 20):
            await client.send(bind(f"q{number}"))
            await client.receipt()
        assert len(lines_of(caplog)) == LOGGED_PER_MINUTE

        await trio.sleep(MINUTE_US / 1e6)
        await client.send(bind("last"))
        await client.receipt()

        assert lines_of(caplog)[LOGGED_PER_MINUTE] == "= user -: 20 more of these in their minute"
        assert "last" in lines_of(caplog)[-1]


async def test_the_numbers_of_the_node_come_at_once_and_every_minute(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        watcher, sender = await rig.connect(), await rig.connect()
        began = trio.current_time()
        await watcher.send(subscribe("/system/stats"))
        (first,) = await events(watcher, 1)
        assert trio.current_time() < began + 1
        await sender.send(send("/queue/q", "x", "r"))
        await sender.receipt()
        await trio.sleep_until(began + STATS_SECONDS)
        (second,) = await events(watcher, 1)

        assert trio.current_time() == pytest.approx(began + STATS_SECONDS, abs=1)
        assert second["totals"]["accepted"] == first["totals"]["accepted"] + 1
        assert (second["node"], second["connections"]) == (first["node"], 2)
        assert second["at_us"] > first["at_us"]


async def test_a_later_subscriber_of_the_numbers_gets_them_at_once_and_the_first_one_not_sooner(
    autojump_clock: MockClock,
) -> None:
    async with Rig().run() as rig:
        first, second = await rig.connect(), await rig.connect()
        await first.send(subscribe("/system/stats"))
        await events(first, 1)
        await trio.sleep(STATS_SECONDS / 2)
        began = trio.current_time()
        await second.send(subscribe("/system/stats"))
        await events(second, 1)
        assert trio.current_time() < began + 1
        await nothing_more(first)

        await events(first, 1)
        assert trio.current_time() == pytest.approx(began + STATS_SECONDS / 2, abs=1)


async def test_numbers_without_a_subscriber_are_not_read(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        reads = 0
        facts = rig.alive.admin.facts
        read = facts.read

        async def counted() -> Any:
            nonlocal reads
            reads += 1
            return await read()

        facts.read = counted  # type: ignore[method-assign]
        watcher = await rig.connect()
        await watcher.send(subscribe("/system/stats"))
        await events(watcher, 1)
        await watcher.send("DISCONNECT\nreceipt:bye\n\n")
        await watcher.until_closed()
        await trio.sleep(10 * STATS_SECONDS)

        assert reads <= 2
