"""Totals and rates in the status and the lists of nodes."""

import json
from itertools import count
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.facts.totals import rates_between
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from tests.admin.test_control_mesh import ask, ask_at_length, fill
from tests.client.rig import running
from tests.mesh.peers.test_replies import at
from tests.node.rig import Client, Rig, eventually, send, subscribe


async def status_of(client: Client, **headers: str) -> Any:
    return json.loads((await ask(client, "/control/status", **headers))["status"])


async def rows_of(client: Client, kind: str, **headers: str) -> dict[str, dict[str, Any]]:
    found = await ask_at_length(client, f"/control/list/{kind}", **headers)
    return {row["destination"]: row for row in found["destinations"]}


async def test_the_status_sums_what_the_lists_show(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        sender, reader = await rig.connect(), await rig.connect()
        await reader.send(
            subscribe("/queue/q", id="1", ack="client-individual"),
            subscribe("/topic/t", id="2"),
            subscribe("/topic/*", id="3"),
            subscribe("/fanout/f", id="4"),
        )
        for _ in range(4):
            await reader.receipt()
        await fill(sender, "/queue/q", "/queue/q", "/topic/t", "/fanout/f")
        for _ in range(5):
            message = await reader.next("MESSAGE")
            if message.head.headers["destination"] == "/queue/q":
                await reader.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:a\n\n")
        await reader.receipt()
        await reader.receipt()

        totals = (await status_of(sender))["totals"]
        rows = {
            name: row for kind in ("queue", "topic", "fanout") for name, row in (await rows_of(sender, kind)).items()
        }

        def one(name: str) -> tuple[int, ...]:
            return tuple(rows[name].get(total, 0) for total in ("accepted", "delivered", "acknowledged"))

        assert (one("/queue/q"), one("/topic/t"), one("/fanout/f")) == ((2, 2, 2), (1, 2, 0), (1, 1, 0))
        assert all(rows[name]["counted_since_us"] > 0 for name in ("/queue/q", "/topic/t", "/fanout/f"))
        assert {name: total for name, total in totals.items() if total} == {
            "accepted": 4,
            "delivered": 5,
            "acknowledged": 2,
        }


async def test_a_reader_of_the_log_and_a_durable_subscription_are_delivered_to(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        sender, reader = await rig.connect(), await rig.connect()
        await fill(sender, "/fanout/f", "/fanout/f", "/fanout/f")
        await reader.send(
            subscribe("/fanout/f", id="1", **{"x-stream-offset": "first"}),
            subscribe("/fanout/f", id="2", ack="client", durable="true", **{"x-stream-offset": "first"}),
        )
        last = ""
        for _ in range(6):
            message = await reader.next("MESSAGE")
            last = message.head.headers["ack"] if message.head.headers["subscription"] == "2" else last
        await reader.send(f"ACK\nid:{last}\nreceipt:a\n\n")
        while await reader.receipt() != "a":
            pass

        totals = (await status_of(sender))["totals"]

        assert (totals["accepted"], totals["delivered"], totals["acknowledged"]) == (3, 6, 3)


async def test_a_subscription_with_a_declared_buffer_is_delivered_to(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        sender, reader = await rig.connect(), await rig.connect()
        for number, destination in enumerate(("/topic/t", "/fanout/f")):
            await reader.send(subscribe(destination, id=str(number), **{"buffer-messages": "10"}))
            await reader.receipt()
        await fill(sender, "/topic/t", "/fanout/f")
        await reader.messages(2)

        rows = {**await rows_of(sender, "topic"), **await rows_of(sender, "fanout")}

        assert [rows[name]["delivered"] for name in ("/topic/t", "/fanout/f")] == [1, 1]


async def test_a_refused_send_is_counted_for_its_destination_if_that_is_known(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await fill(client, "/queue/q")
        for frame in (send("/queue/q", "x", priority="99"), send("/queue/new", "x", priority="99"), send("/x", "x")):
            refused = await rig.connect()
            await refused.send(frame)
            await refused.next("ERROR")

        assert (await status_of(client))["totals"]["refused"] == 3
        assert [(name, row["refused"]) for name, row in (await rows_of(client, "queue")).items()] == [("/queue/q", 1)]


async def test_totals_of_a_mesh_are_summed(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        a, b = await at(mesh, "a"), await at(mesh, "b")
        await b.send(subscribe("/queue/q", id="1"), subscribe("/fanout/f", id="2"))
        await b.receipt()
        await b.receipt()
        await fill(a, "/queue/q", "/fanout/f")
        await b.messages(2)
        await fill(b, "/queue/q", "/fanout/f")
        await b.messages(2)

        rows = {**await rows_of(a, "queue", scope="mesh"), **await rows_of(a, "fanout", scope="mesh")}
        here = {**await rows_of(a, "queue"), **await rows_of(a, "fanout")}
        there = {**await rows_of(b, "queue"), **await rows_of(b, "fanout")}

        for name in ("/queue/q", "/fanout/f"):
            assert (rows[name]["accepted"], rows[name]["delivered"]) == (2, 2)
            assert (here[name]["accepted"], here[name].get("delivered", 0)) == (1, 0)
            assert there[name]["counted_since_us"] > here[name]["counted_since_us"]
            assert rows[name]["counted_since_us"] == there[name]["counted_since_us"]


@pytest.mark.parametrize("scope", ["node", "mesh"])
async def test_rates_are_measured_for_as_long_as_the_request_says(autojump_clock: MockClock, scope: str) -> None:
    async with running("ab") as mesh:
        a, b = await at(mesh, "a"), await at(mesh, "b")
        other = await at(mesh, "a")
        await fill(a, "/queue/q", "/queue/q")
        await fill(b, "/queue/q")
        found: dict[str, dict[str, Any]] = {}

        async def measure() -> None:
            found.update(await rows_of(other, "queue", scope=scope, rate_seconds="2"))

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure)
            await trio.sleep(1.0)
            await fill(a, *["/queue/q"] * 10)
            await fill(b, *["/queue/q"] * 10)

        assert 2.0 <= trio.current_time() - began < 4.0
        assert found["/queue/q"]["accepted"] == (23 if scope == "mesh" else 12)
        assert found["/queue/q"]["accepted_per_second"] == pytest.approx(10 if scope == "mesh" else 5, abs=1)


async def test_the_status_has_rates_of_the_node(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, other = await rig.connect(), await rig.connect()
        await fill(client, "/topic/t")
        found: dict[str, Any] = {}

        async def measure() -> None:
            found.update(await status_of(other, rate_seconds="1"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure)
            await trio.sleep(0.5)
            await fill(client, *["/topic/t"] * 6)

        assert found["rates"]["accepted_per_second"] == 6.0
        assert found["rates"]["delivered_per_second"] == 0.0
        assert "rates" not in await status_of(client)


@pytest.mark.parametrize("text", ["0", "6", "10", "x", "", "-1", "1.5", "٣"])
async def test_a_time_that_makes_no_sense_is_refused(autojump_clock: MockClock, text: str) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send("/control/list/queue", "", "asked", **{"rate-seconds": text}))

        error = await client.next("ERROR")

        assert error.head.headers["error-code"] == "bad-rate-seconds"


def test_there_is_no_rate_if_the_counting_began_again_between_the_samples() -> None:
    before = {"counted_since_us": 1, "accepted": 100}

    assert rates_between(before, {"counted_since_us": 1, "accepted": 110}, 2.0) == {"accepted_per_second": 5.0}
    assert rates_between(before, {"counted_since_us": 9, "accepted": 3}, 2.0) == {}


def test_a_field_of_a_peer_that_is_no_number_counts_as_nothing() -> None:
    assert rates_between({"accepted": "many"}, {"accepted": 4}, 2.0) == {"accepted_per_second": 2.0}


async def test_fsyncs_and_commits_are_counted(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await fill(client, "/topic/t")
        before = await status_of(client)
        rig.alive.store.journal.sync_times.clock = count(0.0, 0.003).__next__
        for _ in range(3):
            await fill(client, "/queue/q", "/queue/q")
        after = await status_of(client)

        assert after["fsync"]["count"] - before["fsync"]["count"] == 3
        assert after["commits"]["groups"] - before["commits"]["groups"] == 3
        assert after["commits"]["records"] - before["commits"]["records"] == 6
        grown = after["commits"]["bytes"] - before["commits"]["bytes"]
        assert 3 * 2 * 5 < grown <= 3 * after["commits"]["group_bytes_max"]
        assert after["fsync"]["last_us"] == pytest.approx(3000, abs=1)


async def test_bytes_of_connections_that_have_ended_stay_in_the_sums_of_the_node(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, sender, reader = await rig.connect(), await rig.connect(), await rig.connect()
        await reader.send(subscribe("/topic/t"))
        await reader.receipt()
        before = (await status_of(client))["traffic"]
        await sender.send(send("/topic/t", "x" * 1000, "r"))
        await reader.messages(1)
        await sender.receipt()
        for one in (sender, reader):
            one.pipe.close()
        await eventually(lambda: len(rig.alive.sessions) == 1)

        after = (await status_of(client))["traffic"]

        assert 1000 < after["bytes_in"] - before["bytes_in"] < 1500
        assert 1000 < after["bytes_out"] - before["bytes_out"] < 8000 + 1500


async def test_a_client_that_reads_late_gets_every_byte_counted(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, reader = await rig.connect(), await rig.connect()
        await reader.send(subscribe("/topic/t"))
        await reader.receipt()
        for _ in range(8):
            await client.send(send("/topic/t", "x" * 100_000, "r"))
            await client.receipt()
        await reader.messages(8)

        rows = (await ask_at_length(client, "/control/connections"))["rows"]

        assert max(row["bytes_out"] for row in rows) > 800_000
        assert max(row["bytes_in"] for row in rows) > 800_000


async def test_a_connection_has_rates_of_its_bytes(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, other = await rig.connect(), await rig.connect()
        found: list[dict[str, Any]] = []

        async def measure() -> None:
            found.extend((await ask_at_length(other, "/control/connections", rate_seconds="1"))["rows"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure)
            await trio.sleep(0.5)
            await client.send(send("/topic/t", "x" * 2000, "r"))
            await client.receipt()

        rates = {row["id"]: row["bytes_in_per_second"] for row in found}
        assert 2000 < rates["a/1"] < 2500
        assert rates["a/2"] == 0.0


async def test_a_consumer_has_the_number_of_its_deliveries(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, one = await rig.connect(), await rig.connect()
        await one.send(subscribe("/queue/q", id="1"), subscribe("/fanout/f", id="2", durable="true"))
        await one.receipt()
        await one.receipt()
        await fill(client, *["/queue/q", "/fanout/f"] * 2)
        await one.messages(4)
        await eventually(lambda: not rig.alive.broker.queues.deliveries)

        for name in ("/queue/q", "/fanout/f"):
            (row,) = (await ask_at_length(client, f"/control/list-subscribers{name}", rate_seconds="1"))["subscribers"]
            assert (row["delivered"], row["delivered_per_second"]) == (2, 0.0)


async def test_links_are_listed_as_each_node_sees_them(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        client = await at(mesh, "a")
        await fill(client, "/queue/q")
        await eventually(lambda: mesh.nodes["b"].mesh.statistics().peers[0].record_bytes_in > 0)

        here = await ask_at_length(client, "/control/links")
        both = await ask_at_length(client, "/control/links", scope="mesh", rate_seconds="1")
        mesh.kill("b")
        await eventually(lambda: mesh.nodes["a"].mesh.statistics().peers[0].in_state == "down")
        alone = await ask_at_length(client, "/control/links", scope="mesh")

        assert [(row["id"], row["out"], row["in"]) for row in here["rows"]] == [("a/b", "caught-up", "up")]
        assert {row["id"]: (row["node"], row["peer"]) for row in both["rows"]} == {"a/b": ("a", "b"), "b/a": ("b", "a")}
        assert both["links"] == 2 and here["links"] == 1
        assert all(row["bytes_out_per_second"] >= 0.0 for row in both["rows"])
        assert (alone["rows"][0]["in"], alone["nodes_missing"]) == ("down", ["b"])


async def test_a_node_alone_has_no_links(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()

        assert await ask_at_length(client, "/control/links") == {"links": 0, "rows": []}


def test_a_number_that_became_smaller_began_again_and_has_no_rate() -> None:
    assert rates_between({"bytes_in": 100}, {"bytes_in": 7}, 1.0) == {}


async def ages_of(client: Client, **headers: str) -> dict[str, float]:
    """Queue → age of its oldest message in seconds."""
    rows = await rows_of(client, "queue", oldest="true", **headers)
    return {name: row["oldest_age_us"] / 1_000_000 for name, row in rows.items() if "oldest_age_us" in row}


async def test_the_oldest_message_waits_or_is_in_flight(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, worker = await rig.connect(), await rig.connect()
        await fill(client, "/queue/q")
        await trio.sleep(10)
        await fill(client, "/queue/q", "/queue/late")
        await client.send(send("/queue/late", "x", "r", delay="100000"))
        await client.receipt()
        await trio.sleep(5)

        waiting = await ages_of(client)
        await worker.send(subscribe("/queue/q", ack="client-individual"))
        messages = [await worker.next("MESSAGE") for _ in range(2)]
        in_flight = await ages_of(client)
        await worker.send(f"ACK\nid:{messages[0].head.headers['ack']}\nreceipt:a\n\n")
        await worker.receipt()
        await worker.receipt()
        settled = await ages_of(client)
        await worker.send(f"ACK\nid:{messages[1].head.headers['ack']}\nreceipt:a\n\n")
        await worker.receipt()

        for found, age in ((waiting, 15), (in_flight, 15), (settled, 5)):
            assert found == {"/queue/q": pytest.approx(age, abs=1), "/queue/late": pytest.approx(5, abs=1)}
        assert list(await ages_of(client)) == ["/queue/late"]
        assert "oldest_age_us" not in (await rows_of(client, "queue"))["/queue/late"]


async def test_the_oldest_message_may_be_with_a_consumer_that_gets_nothing_more(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, worker = await rig.connect(), await rig.connect()
        await fill(client, "/queue/q")
        await worker.send(subscribe("/queue/q", ack="client-individual"))
        await worker.next("MESSAGE")
        queues = rig.alive.broker.queues
        [subscription] = queues.by_name["/queue/q"].subscriptions
        queues.cease(subscription, Outcome(subscription.session, rig.alive.environment.now_us()))
        await trio.sleep(10)

        assert await ages_of(client) == {"/queue/q": pytest.approx(10, abs=1)}


async def test_the_oldest_message_of_a_backlog_that_is_only_in_the_queue_store_is_found(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "/queue/q")
        await trio.sleep(10)
        await fill(client, "/queue/q", "/queue/q")
    async with rig.run():
        client = await rig.connect()
        node = rig.alive
        stored = await ages_of(client)
        first = node.engine.served_rows().page("/queue/q", PRIORITY_DEFAULT, None, node.environment.now_us(), 1)[0].dot
        node.broker.queues.settlement.settled_elsewhere("/queue/q", first, first.sequence, None)
        settled = await ages_of(client)

        assert stored["/queue/q"] - settled["/queue/q"] == pytest.approx(10, abs=1)
        assert not node.broker.queues.by_name, "a look loads nothing"


async def test_the_oldest_message_of_all_nodes_counts_in_a_mesh(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        a, b = await at(mesh, "a"), await at(mesh, "b")
        await fill(b, "/queue/q")
        await trio.sleep(10)
        await fill(a, "/queue/q")
        await trio.sleep(5)

        here, both = await ages_of(a), await ages_of(a, scope="mesh")
        await a.send(subscribe("/queue/q", ack="client-individual"))
        await a.messages(2)
        lent = await ages_of(b)

        assert here["/queue/q"] == pytest.approx(5, abs=1)
        assert (both["/queue/q"], lent["/queue/q"]) == (pytest.approx(15, abs=1), pytest.approx(15, abs=1))


async def test_what_the_node_itself_says_counts_as_no_message_and_a_reply_between_clients_does(
    autojump_clock: MockClock,
) -> None:
    def counted(rig: Rig) -> tuple[int, int]:
        totals = rig.alive.broker.totals.node()
        return totals.accepted, totals.delivered

    async with Rig().run() as rig:
        operator, server = await rig.connect(), await rig.connect()
        await operator.send(subscribe("/system/events", id="e"))
        await operator.receipt()
        asked = {"reply-to": "/temp-queue/answers"}
        await operator.send(send("/control/list/queue", "", None, **asked))
        assert json.loads((await operator.next("MESSAGE")).body)["destinations"] == []
        assert counted(rig) == (0, 0)

        await server.send(subscribe("/queue/requests", id="r"))
        await server.receipt()
        await operator.send(send("/queue/requests", "", None, **asked))
        address = (await server.next("MESSAGE")).head.headers["reply-to"]
        await server.send(send(address, "yes", "sent"))
        await operator.next("MESSAGE")
        assert counted(rig) == (2, 2)
