"""What the console asks besides pages: the overview, the last hour, the audit, and what a client may do."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.console import queue_history
from qmq.admin.console.history import SERIES, HistoryCall, percentile_us
from qmq.admin.console.queue_history import QueueHistoryCall
from qmq.admin.console.samples import SAMPLE_SECONDS, SAMPLES, TimeSeries
from qmq.admin.facts import node_facts
from qmq.storage.log.fsync_times import BOUNDS_SECONDS
from tests.node.mesh_rig import MeshRig
from tests.node.rig import send, subscribe
from tests.protocols.http.rig import WebClient, dial, dial_node, web_rig
from tests.sessions.clients.test_access import users


async def show(client: WebClient, request: str) -> dict[str, Any]:
    response = await client.get(f"/v1/control/{request}")
    assert response.status == 200, response.body
    facts: dict[str, Any] = response.facts
    return facts


# The overview


async def test_overview_has_each_node_with_its_links_and_whose_messages_it_serves(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await trio.sleep(10)

        facts = await show(await dial_node(rig, "b"), "overview?scope=mesh")

        assert (facts["node"], sorted(facts["nodes"]), facts["nodes_missing"]) == ("b", ["a", "b", "c"], [])
        a = facts["nodes"]["a"]
        assert [(link["peer"], link["out"], link["in"]) for link in a["links"]] == [
            ("b", "caught-up", "up"),
            ("c", "caught-up", "up"),
        ]
        assert {one["owner"]: one["server"] for one in a["owners"]} == {"a": "a", "b": "b", "c": "c"}
        assert a["disk_free_bytes"] > 0


async def test_overview_names_the_node_that_is_gone_and_has_the_others(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        rig.nodes["c"].stop()
        await trio.sleep(60)

        facts = await show(await dial_node(rig, "a"), "overview?scope=mesh")

        assert (sorted(facts["nodes"]), facts["nodes_missing"]) == (["a", "b"], ["c"])
        assert {one["owner"] for one in facts["nodes"]["a"]["owners"] if one["server"] in ("a", "b")} >= {"c"}


async def test_overview_shows_conditions_with_advice(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        rig.alive.raise_condition("disk-full", "no space")

        facts = await show(await dial(rig), "overview")

        (one,) = facts["nodes"]["a"]["conditions"]
        assert (one["code"], one["severity"], bool(one["advice"])) == ("disk-full", "error", True)


@pytest.mark.parametrize("more", [0, 1])
async def test_overview_shows_the_20_most_severe_conditions_and_how_many_there_are_more(
    autojump_clock: MockClock, more: int
) -> None:
    async with web_rig().run() as rig:
        for number in range(19 + more):
            rig.alive.raise_condition("reload", f"file {number}")
        rig.alive.raise_condition("disk-full", "no space")

        facts = (await show(await dial(rig), "overview"))["nodes"]["a"]

        assert [one["code"] for one in facts["conditions"]] == ["disk-full", *["reload"] * 19]
        assert facts["conditions_more"] == more


async def test_overview_sums_connections_in_turns(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "SESSIONS_AT_ONCE", 2)
    async with web_rig().run() as rig:
        for number in range(7):
            stomp = await rig.connect()
            await stomp.send(*[subscribe(f"/queue/q{name}", id=str(name)) for name in range(number)])
        await trio.sleep(1)
        client = await dial(rig)
        await show(client, "overview")  # the second one has the bytes of this one

        facts = (await show(client, "overview"))["nodes"]["a"]

        sessions = list(rig.alive.sessions.values())
        assert (facts["connections"], facts["subscriptions"]) == (8, 21)
        assert facts["traffic"]["bytes_in"] == sum(session.bytes_in for session in sessions)
        assert 0 < facts["traffic"]["bytes_out"] < sum(session.bytes_out for session in sessions)


# The last hour


async def test_history_has_the_growth_of_each_interval(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        stomp = await rig.connect()
        await trio.sleep(SAMPLE_SECONDS)
        await stomp.send(subscribe("/queue/q"), *[send("/queue/q", "x") for _ in range(5)])
        await stomp.messages(5)
        await trio.sleep(2 * SAMPLE_SECONDS)

        here = (await show(await dial(rig), "history"))["nodes"]["a"]

        assert here["accepted"] == [0, 5, 0]
        assert here["delivered"] == [0, 5, 0]
        assert here["acknowledged"] == [0, 5, 0]
        assert here["connections"] == [1, 1, 1]
        assert here["fsync_p99_us"][1] > 0
        assert [round((b - a) / 1e6) for a, b in zip(here["at_us"], here["at_us"][1:], strict=False)] == [10, 10]


async def test_history_keeps_one_hour_in_the_same_memory(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        history = rig.alive.admin.console.history
        for number in range(SAMPLES + 5):
            rig.alive.broker.totals.others.accepted += number
            history.take(0)

        facts = history.here(HistoryCall())
        assert facts["accepted"] == list(range(5, SAMPLES + 5))
        assert [len(facts[name]) for name in SERIES] == [SAMPLES] * len(SERIES)
        assert len(history._own) == SAMPLES
        assert history.here(HistoryCall(count=2))["accepted"] == [SAMPLES + 3, SAMPLES + 4]


async def test_deepest_queues_have_a_history_and_those_that_were_looked_at(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_history, "DEEPEST", 1)
    async with MeshRig("a", "b").run() as rig:
        client = await rig.connect("a")
        for name, many in (("deep", 5), ("flat", 2)):
            await client.send(*[send(f"/queue/{name}", "x", "r") for _ in range(many)])
            for _ in range(many):
                await client.receipt()
        await trio.sleep(2.5 * SAMPLE_SECONDS)
        await client.send(subscribe("/queue/deep", ack="client-individual", **{"prefetch-count": "1"}))
        await client.consume(2)
        await client.messages(1)
        await trio.sleep(SAMPLE_SECONDS)

        deep = await show(await dial_node(rig, "b"), "queue-history/queue/deep?scope=mesh")
        flat = await show(await dial_node(rig, "b"), "queue-history/queue/flat?scope=mesh")
        await trio.sleep(2 * SAMPLE_SECONDS)
        looked_at = await show(await dial_node(rig, "b"), "queue-history/queue/flat?scope=mesh")

        of_a = deep["nodes"]["a"]
        assert [of_a[name] for name in queue_history.SERIES] == [[5, 2], [0, 1], [0, 0], [0, 2]]
        assert [flat["nodes"][name]["at_us"] for name in "ab"] == [[], []]
        assert looked_at["nodes"]["a"]["waiting"] == [2]
        assert looked_at["nodes"]["b"]["waiting"] == [0]


async def test_few_queues_have_a_history_and_for_an_hour(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_history, "QUEUES_MAX", 3)
    async with web_rig().run() as rig:
        of_queues = rig.alive.admin.console.history.of_queues
        for number in range(9):
            of_queues.here(QueueHistoryCall(f"/queue/q{number}"))
            await trio.sleep(0.1)
        await trio.sleep(3 * SAMPLE_SECONDS)

        assert list(of_queues._samples) == ["/queue/q5", "/queue/q4", "/queue/q3"]
        await trio.sleep(queue_history.KEPT_SECONDS)
        assert not of_queues._samples and not of_queues._before


async def test_history_of_a_node_that_has_ended_is_what_its_peers_have_seen(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        await trio.sleep(SAMPLE_SECONDS * 3 + 5)
        seen = rig.nodes["c"].admin.console.history.here(HistoryCall())["at_us"]
        rig.nodes["c"].stop()
        await trio.sleep(60)

        facts = await show(await dial_node(rig, "a"), "history?scope=mesh")
        rig.nodes["b"].admin.console.history._of_peers.clear()  # As after a restart of b.
        of_b = await show(await dial_node(rig, "b"), "history?scope=mesh")

        assert (sorted(facts["nodes"]), facts["nodes_missing"]) == (["a", "b", "c"], ["c"])
        kept = facts["nodes"]["c"]["at_us"]
        assert kept in (seen, seen[:-1])  # Of its last seconds, if no peer has asked since.
        assert of_b["nodes"]["c"] == facts["nodes"]["c"]
        assert len(facts["nodes"]["a"]["at_us"]) > len(seen)


async def test_a_node_that_starts_again_has_its_history_from_its_peers(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        await trio.sleep(SAMPLE_SECONDS * 3 + 5)
        before = rig.nodes["b"].admin.console.history.here(HistoryCall())["at_us"]
        await rig.kill("b")
        await rig.start("b")
        await trio.sleep(SAMPLE_SECONDS * 3 + 5)

        after = rig.nodes["b"].admin.console.history.here(HistoryCall())["at_us"]

        assert after[: len(before) - 1] == before[:-1]
        assert len(after) > len(before)
        assert after == sorted(set(after))


@pytest.mark.parametrize(
    "wrong",
    [{}, {"at_us": [1], "accepted": [1, 2]}, {"at_us": ["x"]}, {"at_us": [1] * 361}, {"at_us": [1], "cpu_us": [2**63]}],
)
def test_samples_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at_us|accepted|cpu_us"):
        HistoryCall().check(wrong)


def test_samples_of_one_node_are_joined_in_order_and_without_doubles() -> None:
    def facts(*times: int) -> dict[str, Any]:
        return {"at_us": list(times), "accepted": list(times)}

    samples = TimeSeries(SERIES)
    samples.add_later(facts(20, 30))
    samples.add_later(facts(20, 30, 40))
    samples.add_earlier(facts(10, 20))

    assert (samples.facts()["at_us"], samples.facts()["accepted"]) == ([10, 20, 30, 40], [10, 20, 30, 40])
    assert samples.facts()["cpu_us"] == [0, 0, 0, 0]
    samples.add_earlier(facts(*range(-400, 0)))
    assert (len(samples), samples.last_us) == (SAMPLES, 40)


def test_percentile_is_the_bound_of_the_bucket_in_which_it_is_reached() -> None:
    buckets = [0] * (len(BOUNDS_SECONDS) + 1)
    assert percentile_us(buckets, 0.99) == 0

    buckets[3] = 99
    assert percentile_us(buckets, 0.99) == round(BOUNDS_SECONDS[3] * 1e6)

    buckets[9] = 2
    assert percentile_us(buckets, 0.99) == round(BOUNDS_SECONDS[9] * 1e6)


# The audit


async def test_audit_remembers_what_was_done_on_all_nodes(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        await (await dial_node(rig, "b")).post("/v1/control/pause/queue/jobs")
        await trio.sleep(1)
        await (await dial_node(rig, "a")).post("/v1/control/resume/queue/jobs")

        facts = await show(await dial_node(rig, "a"), "audit?scope=mesh")

        assert [(row["event"], row["node"], row["destination"]) for row in facts["rows"]] == [
            ("resume", "a", "/queue/jobs"),
            ("pause", "b", "/queue/jobs"),
        ]


async def test_audit_is_a_stream_while_a_page_is_open(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        page = await (await dial(rig)).follow("/v1/system/audit/events")

        await (await dial(rig)).post("/v1/control/pause/queue/jobs")

        event = await page.event()
        assert '"event": "pause"' in event.facts["body"]


# Rights


async def test_client_sees_what_it_may_do(autojump_clock: MockClock) -> None:
    async with web_rig(users=users("observer", "operator", "client", "administrator")).run() as rig:
        may: dict[str, set[str]] = {}
        for user in ("observer", "operator", "client", "administrator"):
            facts = await show(await dial(rig, user=user), "rights?about=/queue/q")
            assert facts["user"] == user
            may[user] = {name for part in ("may", "about") for name, is_so in facts[part].items() if is_so}

        assert may["observer"] == {"observe", "trace"}
        assert may["client"] == {"send", "subscribe", "declare"}
        assert may["operator"] == {"observe", "kick", "trace", "redrive", "subscribe", "declare", "administer"}
        assert may["administrator"] >= {"definitions", "audit", "retire"}


async def test_only_an_administrator_sees_what_another_user_may_do(autojump_clock: MockClock) -> None:
    async with web_rig(users=users("operator", "client", "administrator")).run() as rig:
        path = "rights?user=client&about=/queue/q"

        facts = await show(await dial(rig, user="administrator"), path)
        refused = await (await dial(rig, user="operator")).get(f"/v1/control/{path}")

        assert (facts["user"], facts["about"]["send"], facts["about"]["administer"]) == ("client", True, False)
        assert (refused.status, refused.code) == (403, "not-allowed")


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        ("overview", {"observer", "operator"}),
        ("history", {"observer", "operator"}),
        ("list/queue?sort=depth", {"observer", "operator"}),
        ("audit", set()),
    ],
)
async def test_console_needs_the_right_to_observe(autojump_clock: MockClock, request_: str, allowed: set[str]) -> None:
    async with web_rig(users=users("observer", "operator", "client", "administrator")).run() as rig:
        found = {
            user
            for user in ("observer", "operator", "client", "administrator")
            if (await (await dial(rig, user=user)).get(f"/v1/control/{request_}")).status == 200
        }

        assert found == {*allowed, "administrator"}


async def test_hash_of_a_passcode_is_made_for_administrators(autojump_clock: MockClock) -> None:
    async with web_rig(users=users("operator", "administrator")).run() as rig:
        administrator = await dial(rig, user="administrator")

        made = (await administrator.post("/v1/control/password-hash", {"passcode": "new"})).facts["password_hash"]
        bad = await administrator.post("/v1/control/password-hash", {"passcode": ""})
        refused = await (await dial(rig, user="operator")).post("/v1/control/password-hash", {"passcode": "new"})

        assert made.startswith("$argon2id$")
        assert (bad.status, bad.code, refused.status) == (400, "bad-body", 403)
