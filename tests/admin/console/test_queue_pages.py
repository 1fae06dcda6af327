"""Pages of queues in any order: found in turns, by any of the nodes, and correct for what they show."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.console import queue_pages
from qmq.admin.console.queue_pages import RATE_SECONDS, QueueRows, Rates, RowsCall
from qmq.errors import Refused
from qmq.verbs.lists import LIMIT_MAX, OFFSET_MAX
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, send, subscribe
from tests.protocols.http.rig import WebClient, dial, dial_node, web_rig


def fill(rig: Rig, depths: dict[str, int]) -> None:
    """Queues with so many messages, as far as counters can say so."""
    for name, messages in depths.items():
        rig.alive.broker.queues.get(f"/queue/{name}").held = messages


async def page(client: WebClient, **query: Any) -> dict[str, Any]:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    response = await client.get(f"/v1/control/list/queue?{text}")
    assert response.status == 200, response.body
    facts: dict[str, Any] = response.facts
    return facts


def names(facts: dict[str, Any]) -> list[str]:
    return [row["destination"].removeprefix("/queue/") for row in facts["destinations"]]


async def test_queues_are_listed_in_each_order(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        fill(rig, {"b": 1, "c": 3, "a": 2})
        client = await dial(rig)

        assert names(await page(client, sort="name")) == ["a", "b", "c"]
        assert names(await page(client, sort="name", order="desc")) == ["c", "b", "a"]
        assert names(await page(client, sort="depth")) == ["c", "a", "b"]
        assert names(await page(client, sort="depth", order="asc")) == ["b", "a", "c"]


async def test_equal_queues_are_in_the_order_of_their_names(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        fill(rig, {"c": 1, "a": 1, "b": 1})

        assert names(await page(await dial(rig), sort="depth")) == ["a", "b", "c"]


async def test_oldest_message_comes_first(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        fill(rig, {"empty": 0})
        stomp = await rig.connect()
        for name in ("old", "middle", "new"):
            await stomp.send(send(f"/queue/{name}", "x", "r"))
            await stomp.receipt()
            await trio.sleep(100)
        client = await dial(rig)

        facts = await page(client, sort="oldest")

        assert names(facts) == ["old", "middle", "new", "empty"]
        assert [round(row["oldest_age_us"] / 1e8) for row in facts["destinations"][:3]] == [3, 2, 1]


async def test_queue_that_is_only_in_the_store_has_its_place(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        stomp = await rig.connect()
        for name in ("deep", "deep", "deep", "flat"):
            await stomp.send(send(f"/queue/{name}", "x", "r", persistent="true"))
            await stomp.receipt()
        await trio.sleep(100)
    async with rig.run():
        stomp = await rig.connect()
        await stomp.send(*[send("/queue/middle", "x", f"r{number}", persistent="true") for number in range(2)])
        await stomp.receipt()
        await stomp.receipt()
        client = await dial(rig)

        by_depth = await page(client, sort="depth")

        assert "/queue/deep" not in rig.alive.broker.queues.by_name
        assert [(row["destination"], row["messages"]) for row in by_depth["destinations"]] == [
            ("/queue/deep", 3),
            ("/queue/middle", 2),
            ("/queue/flat", 1),
        ]
        assert names(await page(client, sort="oldest"))[-1] == "middle"


async def test_queue_in_memory_and_in_the_store_counts_as_a_whole(autojump_clock: MockClock) -> None:
    rig = web_rig()
    async with rig.run():
        stomp = await rig.connect()
        for name in ("both", "both", "both", "deep", "deep", "deep"):
            await stomp.send(send(f"/queue/{name}", "x", "r", persistent="true"))
            await stomp.receipt()
    async with rig.run():
        queues = rig.alive.broker.queues
        queues.get("/queue/both").held = 1
        assert not queues.by_name["/queue/both"].is_counted

        found = await page(await dial(rig), sort="depth")

        assert [(row["destination"], row["messages"]) for row in found["destinations"]] == [
            ("/queue/both", 4),
            ("/queue/deep", 3),
        ]


async def test_busiest_queue_comes_first_once_rates_are_known(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        stomp = await rig.connect()
        await stomp.send(subscribe("/queue/busy"), send("/queue/calm", "x"), send("/queue/busy", "x"))
        await stomp.messages(1)
        client = await dial(rig)
        await page(client, sort="rate")
        await trio.sleep(RATE_SECONDS)
        await stomp.send(*[send("/queue/busy", "x") for _ in range(40)], send("/queue/calm", "x"))
        await stomp.messages(40)

        facts = await page(client, sort="rate")

        assert names(facts) == ["busy", "calm"]
        busy = facts["destinations"][0]
        assert busy["accepted_per_second"] == pytest.approx(40 / RATE_SECONDS, rel=0.1)
        assert busy["acknowledged_per_second"] == pytest.approx(40 / RATE_SECONDS, rel=0.1)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_queue_that_grows_fastest_comes_first_and_one_that_shrinks_last(
    autojump_clock: MockClock, order: str
) -> None:
    async with web_rig().run() as rig:
        stomp, client = await rig.connect(), await dial(rig)
        await stomp.send(*[send("/queue/drained", "x", "r") for _ in range(8)], send("/queue/busy", "x", "r"))
        await stomp.send(send("/queue/calm", "x", "r"), send("/queue/slow", "x", "r"), send("/queue/fast", "x", "r"))
        for _ in range(12):
            await stomp.receipt()
        await page(client, sort="growth")
        await trio.sleep(RATE_SECONDS)
        await stomp.send(subscribe("/queue/drained", id="0"), subscribe("/queue/busy", id="1"))
        await stomp.send(*[send("/queue/busy", "x") for _ in range(50)])
        await stomp.send(*[send("/queue/fast", "x", "r") for _ in range(8)], send("/queue/slow", "x", "r"))
        await stomp.messages(59)
        for _ in range(9):
            await stomp.receipt()
        seen: list[str] = []

        while True:
            facts = await page(client, sort="growth", order=order, limit=2, offset=len(seen))
            seen += names(facts)
            if not facts["more"]:
                break

        wanted = ["fast", "slow", "calm", "busy", "drained"]
        assert seen == (wanted if order == "desc" else ["drained", "busy", "calm", "slow", "fast"])
        rows = {row["destination"]: row for row in (await page(client, sort="growth"))["destinations"]}
        assert rows["/queue/fast"]["grown_per_second"] == pytest.approx(8 / RATE_SECONDS, rel=0.1)
        assert rows["/queue/drained"]["grown_per_second"] == pytest.approx(-8 / RATE_SECONDS, rel=0.1)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_by_rate_follow_each_other(autojump_clock: MockClock, order: str) -> None:
    async with web_rig().run() as rig:
        queues = [f"/queue/{number:02d}" for number in range(40)]
        stomp = await rig.connect()
        await stomp.send(*[send(queue, "x", queue) for queue in queues])
        for _ in queues:
            await stomp.receipt()
        client = await dial(rig)
        await page(client, sort="rate")
        await trio.sleep(RATE_SECONDS)
        busy = queues[39:9:-3]
        await stomp.send(*[send(queue, "x", queue) for queue in busy])
        for _ in busy:
            await stomp.receipt()
        seen: list[str] = []

        while True:
            facts = await page(client, sort="rate", order=order, limit=7, offset=len(seen))
            seen += [row["destination"] for row in facts["destinations"]]
            if not facts["more"]:
                break

        calm = [queue for queue in queues if queue not in busy]
        assert seen == ([*calm, *sorted(busy)] if order == "asc" else [*sorted(busy), *calm])


async def test_rate_is_right_after_a_measurement_that_was_cancelled(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_pages, "TURN_NAMES", 1)
    async with web_rig().run() as rig:
        stomp = await rig.connect()
        await stomp.send(send("/queue/other", "x"), send("/queue/q", "x", "first"))
        await stomp.receipt()
        rates = Rates(rig.alive.broker.totals)
        await rates.refresh()
        await trio.sleep(RATE_SECONDS * 9)
        with trio.CancelScope() as scope:
            scope.cancel()
            await rates.refresh()
        assert scope.cancelled_caught
        await trio.sleep(RATE_SECONDS)
        await stomp.send(*[send("/queue/q", "x") for _ in range(79)], send("/queue/q", "x", "last"))
        await stomp.receipt()

        await rates.refresh()

        assert rates.by_name["/queue/q"][0] == pytest.approx(80 / (RATE_SECONDS * 10), rel=0.1)


async def test_rate_is_not_negative_when_counting_begins_again(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        stomp, client = await rig.connect(), await dial(rig)
        await stomp.send(*[send("/queue/q", "x") for _ in range(9)], send("/queue/q", "x", "last"))
        await stomp.receipt()
        await page(client, sort="rate")
        await trio.sleep(RATE_SECONDS)
        rig.alive.broker.totals.by_name.clear()
        await stomp.send(send("/queue/q", "x", "new"))
        await stomp.receipt()

        (row,) = (await page(client, sort="rate"))["destinations"]

        assert "accepted_per_second" not in row


async def test_filter_finds_a_part_of_the_name_in_the_same_order(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        fill(rig, {f"{'odd' if number % 2 else 'even'}.{number}": number for number in range(100)})
        client = await dial(rig)

        facts = await page(client, sort="depth", filter="odd", limit=3)

        assert names(facts) == ["odd.99", "odd.97", "odd.95"]
        assert facts["more"]
        assert facts["queues"] == 100
        assert names(await page(client, sort="depth", filter="none")) == []


@pytest.mark.parametrize("text", ["", "q"])
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_follow_each_other_without_gap_or_repeat(autojump_clock: MockClock, order: str, text: str) -> None:
    async with web_rig().run() as rig:
        fill(rig, {f"q{number}": number % 7 for number in range(230)})
        client = await dial(rig)
        seen: list[str] = []

        while True:
            facts = await page(client, sort="depth", order=order, filter=text, limit=50, offset=len(seen))
            seen += names(facts)
            if not facts["more"]:
                break

        assert len(seen) == len(set(seen)) == 230


async def test_queues_of_all_nodes_are_summed_before_they_are_ordered(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        for node, depths in (("a", {"one": 3, "both": 2}), ("b", {"both": 2, "other": 1})):
            for name, messages in depths.items():
                rig.nodes[node].broker.queues.get(f"/queue/{name}").held = messages

        facts = await page(await dial_node(rig, "a"), sort="depth", scope="mesh")

        found = [(row["destination"], row["messages"]) for row in facts["destinations"]]
        assert found == [("/queue/both", 4), ("/queue/one", 3), ("/queue/other", 1)]
        assert facts["nodes_missing"] == []


async def test_missing_node_is_named(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        rig.nodes["b"].stop()
        await trio.sleep(30)

        facts = await page(await dial_node(rig, "a"), sort="depth", scope="mesh")

        assert facts["nodes_missing"] == ["b"]


async def test_node_whose_rows_are_missing_is_named(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(call: RowsCall) -> QueueRows:
        raise Refused("any", "this part gives no answer")

    async with MeshRig("a", "b").run() as rig:
        for node, messages in (("a", 1), ("b", 2)):
            rig.nodes[node].broker.queues.get("/queue/both").held = messages
        monkeypatch.setattr(rig.nodes["b"].admin.console.pages, "rows", refuse)

        facts = await page(await dial_node(rig, "a"), sort="depth", scope="mesh")

        assert facts["nodes_missing"] == ["b"]


async def test_page_about_one_queue_is_that_queue_whatever_else_begins_like_it(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        for node, depths in (("a", {"one": 2, "one-more": 7}), ("b", {"one": 3, "one-else": 7})):
            for name, messages in depths.items():
                rig.nodes[node].broker.queues.get(f"/queue/{name}").held = messages
        client = await dial_node(rig, "a")

        one = (await client.get("/v1/control/list/queue/one?limit=1&scope=mesh")).facts
        more = (await client.get("/v1/control/list/queue/one?limit=9&scope=mesh")).facts
        none = (await client.get("/v1/control/list/queue/on?limit=1")).facts

        assert [(row["destination"], row["messages"]) for row in one["destinations"]] == [("/queue/one", 5)]
        assert [row["destination"] for row in more["destinations"]] == [
            "/queue/one",
            "/queue/one-else",
            "/queue/one-more",
        ]
        assert [row["destination"] for row in none["destinations"]] == ["/queue/one"]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("sort=size", "bad-sort"),
        ("sort=name&order=up", "bad-order"),
        (f"sort=name&limit={LIMIT_MAX + 1}", "bad-limit"),
        (f"sort=name&offset={OFFSET_MAX + 1}", "bad-offset"),
        (f"sort=name&filter={'x' * 300}", "bad-filter"),
        ("sort=name&scope=world", "bad-scope"),
    ],
)
async def test_bad_request_for_a_page_is_refused(autojump_clock: MockClock, query: str, code: str) -> None:
    async with web_rig().run() as rig:
        response = await (await dial(rig)).get(f"/v1/control/list/queue?{query}")

        assert (response.status, response.code) == (400, code)
