"""The page of metrics: what it says, that Prometheus reads it, and that docs/metrics.md lists all of it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope
from qmq.protocols.http.metrics import CONTENT_TYPE, FAMILIES, MESSAGES
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.settings.routing.test_bindings import request

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "metrics.md").read_text("utf-8")
ALERTS = ROOT / "cluster" / "alerts.yaml"
PROMTOOL = shutil.which("promtool")


async def families_of(rig: Rig) -> dict[str, Metric]:
    page = await rig.alive.protocols.of("http").shared.metrics.read()
    return {family.name: family for family in text_string_to_metric_families(page.decode())}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return found


async def fill(client: Client, *destinations: str) -> None:
    for destination in destinations:
        await client.send(send(destination, "12345", "r"))
        await client.receipt()


async def test_totals_are_counters(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await fill(client, "/queue/a", "/queue/a", "/queue/b")
        await client.send(subscribe("/queue/a"))
        await client.messages(2)

        families = await families_of(rig)

        assert value(families, "qmq_messages_accepted_total") == 3
        assert value(families, "qmq_messages_delivered_total") == 2
        assert value(families, "qmq_messages_refused_total") == 0
        assert families["qmq_messages_accepted"].type == "counter"


async def test_library_is_loaded_in_a_thread(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig().run() as rig:
        monkeypatch.delitem(sys.modules, FAMILIES, raising=False)
        environment = rig.alive.environment
        loaded: list[bool] = []

        async def run_blocking(call: Callable[[], Any]) -> Any:
            before = FAMILIES in sys.modules
            result = await blocking(call)
            loaded.append(FAMILIES in sys.modules and not before)
            return result

        blocking = environment._run_blocking
        monkeypatch.setattr(environment, "_run_blocking", run_blocking)

        await rig.alive.protocols.of("http").shared.metrics.read()

        assert any(loaded)


async def test_every_total_of_the_node_is_a_metric(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        totals = rig.alive.broker.totals.others
        for number, name in enumerate(MESSAGES, start=1):
            setattr(totals, name, number)

        families = await families_of(rig)

        found = {name: value(families, f"qmq_messages_{name}_total") for name in MESSAGES}
        assert found == {name: number for number, name in enumerate(MESSAGES, start=1)}


async def test_clients_and_their_bytes_are_counted(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        families = await families_of(rig)
        assert value(families, "qmq_connections", protocol="stomp") == 0

        client = await rig.connect()
        await client.send(subscribe("/topic/a"), send("/topic/b", "x" * 1000, "r"))
        await client.receipt()
        families = await families_of(rig)

        assert value(families, "qmq_connections", protocol="stomp") == 1
        assert value(families, "qmq_sessions") == value(families, "qmq_subscriptions") == 1
        assert value(families, "qmq_client_received_bytes_total") > 1000
        assert value(families, "qmq_client_sent_bytes_total") > 10
        assert value(families, "qmq_memory_max_bytes") == rig.alive.session_parts.host.budget.bytes_max


async def test_syncs_are_a_histogram(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        before = await families_of(rig)
        times = rig.alive.store.journal.sync_times
        times.note(0.004)
        times.note(7.0)

        families = await families_of(rig)

        def grown(name: str, **labels: str) -> float:
            return value(families, name, **labels) - value(before, name, **labels)

        assert grown("qmq_journal_fsync_seconds_bucket", le="0.0025") == 0
        assert grown("qmq_journal_fsync_seconds_bucket", le="0.005") == 1
        assert grown("qmq_journal_fsync_seconds_bucket", le="5.0") == 1
        assert grown("qmq_journal_fsync_seconds_bucket", le="+Inf") == grown("qmq_journal_fsync_seconds_count") == 2
        assert grown("qmq_journal_fsync_seconds_sum") == pytest.approx(7.004)


async def test_conditions_have_their_code_and_severity(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        for message in ("one", "another"):
            rig.alive.raise_condition("shortage", message)
        rig.alive.raise_condition("disk-full", "no space")
        rig.alive.clear_condition("disk-full", "no space")

        families = await families_of(rig)

        assert value(families, "qmq_conditions", code="shortage", severity="error") == 2
        assert all(sample.labels["code"] != "disk-full" for sample in families["qmq_conditions"].samples)


async def test_the_deepest_queues_have_series_and_no_others(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        for number in range(101):
            await client.send(send(f"/queue/{number}", "12345"))
        await fill(client, *[f"/queue/{number}" for number in range(99)])
        await client.send(subscribe("/queue/7", **{"prefetch-count": "1"}, ack="client"))
        await client.messages(1)

        families = await families_of(rig)

        assert len(families["qmq_queue_messages"].samples) == 100
        assert value(families, "qmq_queue_messages", queue="/queue/7") == 2
        assert value(families, "qmq_queue_bytes", queue="/queue/7") == 10
        assert value(families, "qmq_queue_consumers", queue="/queue/7") == 1
        assert value(families, "qmq_queue_oldest_waiting_seconds", queue="/queue/7") < 5
        assert value(families, "qmq_queues") == 101


HOSTILE = '/queue/a"b\\nc\nTYPE x counter\rx{y="z"} 1\x1b[2J\x85\u2028ä'


def keep(rig: Rig, *queues: str) -> None:
    """These queues have a message, as a node has that took names of any characters."""
    node = rig.alive
    out = Outcome(now_us=node.environment.now_us())
    for queue in queues:
        node.broker.send(Envelope(queue, DestinationKind.QUEUE, b"", True), b"1", out.now_us, out)
    node.engine.path.submit(out)


async def test_name_with_control_characters_stays_in_its_label(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        keep(rig, HOSTILE)

        page = (await rig.alive.protocols.of("http").shared.metrics.read()).decode()
        families = {family.name: family for family in text_string_to_metric_families(page)}

        assert list(rig.alive.broker.queues.by_name) == [HOSTILE]
        assert "x" not in families
        (sample,) = families["qmq_queue_messages"].samples
        assert sample.labels["queue"] == r'/queue/a"b\\nc\nTYPE x counter\rx{y="z"} 1\x1b[2J\x85\u2028ä'
        assert all(character == "\n" or character.isprintable() for character in page)


async def test_two_names_stay_two_when_control_characters_are_escaped(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        keep(rig, "/queue/a\n", r"/queue/a\n")

        families = await families_of(rig)

        assert len({sample.labels["queue"] for sample in families["qmq_queue_messages"].samples}) == 2


async def test_a_queue_has_what_is_unacknowledged_and_totals_of_which_rates_are_made(
    autojump_clock: MockClock,
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await fill(client, *["/queue/a"] * 5, "/queue/b")
        await client.send(subscribe("/queue/a", ack="client-individual", **{"prefetch-count": "3"}))
        first = await client.next("MESSAGE")
        await client.messages(2)
        await client.send(f"ACK\nid:{first.head.headers['ack']}\nreceipt:k\n\n")
        await client.messages(1)

        families = await families_of(rig)

        found = {
            name: value(families, f"qmq_queue_{name}", queue="/queue/a")
            for name in (
                "messages", "unacknowledged_messages", "messages_accepted_total", "messages_delivered_total",
                "messages_acknowledged_total",
            )
        }  # fmt: skip
        assert list(found.values()) == [4, 3, 5, 4, 1]
        assert value(families, "qmq_queue_unacknowledged_messages", queue="/queue/b") == 0
        assert families["qmq_queue_messages_accepted"].type == "counter"


async def test_messages_that_no_binding_takes_are_counted(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(on_error="keep-open")
        await request(client, "bind/queue/q", source="/exchange/amq.direct", key="taken")
        for key in ("taken", "lost", "lost"):
            await client.send(send(f"/exchange/amq.direct/{key}", "x", "r"))
            await client.receipt()
        await client.send(send("/exchange/amq.direct/lost", "x", "r", mandatory="true"))
        assert (await client.any()).head.headers["error-code"] == "unroutable"

        families = await families_of(rig)

        assert value(families, "qmq_messages_unroutable_total") == 2
        assert value(families, "qmq_messages_refused_total") == 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc")
async def test_the_process_has_its_memory_its_time_and_its_open_files(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        families = await families_of(rig)

        assert value(families, "process_resident_memory_bytes") > 1 << 20
        assert value(families, "process_cpu_seconds_total") > 0
        assert 0 < value(families, "process_open_fds") < value(families, "process_max_fds")


async def test_links_and_owners_have_a_series_for_each_peer(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        node = rig.nodes["a"]

        def links(families: dict[str, Metric]) -> list[float]:
            return [
                value(families, "qmq_link_up", peer=peer, direction=way) for peer in ("b", "c") for way in ("out", "in")
            ]

        def parsed(page: bytes) -> dict[str, Metric]:
            return {family.name: family for family in text_string_to_metric_families(page.decode())}

        mesh = node.mesh
        await eventually(lambda: not any(sum(peer.lag.values()) for peer in mesh.statistics().peers))

        families = parsed(await node.protocols.of("http").shared.metrics.read())
        assert links(families) == [1, 1, 1, 1]
        assert value(families, "qmq_link_lag_records", peer="b") == 0
        (delays,) = {one.delays.count for one in mesh.statistics().peers if one.name == "b"}
        assert value(families, "qmq_link_delay_seconds_bucket", peer="b", le="+Inf") == delays
        owners = {sample.labels["owner"]: sample.labels["server"] for sample in families["qmq_owner_info"].samples}
        assert owners == {"a": "a", "b": "b", "c": "c"}

        rig.nodes["c"].stop()
        await eventually(lambda: "c" not in node.mesh.followers())
        families = parsed(await node.protocols.of("http").shared.metrics.read())

        assert links(families)[:2] == [1, 1]
        assert value(families, "qmq_link_up", peer="c", direction="in") == 0
        assert [sample.labels["peer"] for sample in families["qmq_link_lag_records"].samples] == ["b"]


async def test_metrics_of_the_code_and_of_the_page_are_the_same(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        page = (await rig.alive.protocols.of("http").shared.metrics.read()).decode()

    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE))
    assert dict(re.findall(r"^\| `((?:qmq|process)_\w+)` \| (\w+) \|", PAGE, re.MULTILINE)) == types


async def test_labels_of_the_code_are_on_the_page(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as rig:
        rig.nodes["a"].raise_condition("shortage", "no files")
        await fill(await rig.connect("a"), "/queue/a")
        page = (await rig.nodes["a"].protocols.of("http").shared.metrics.read()).decode()

    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            row = re.search(rf"^\| `{family.name}(?:_total)?` \|.*$", PAGE, re.MULTILINE)
            assert row is not None
            named = set(re.findall(r"`(\w+)`", row[0].split("|")[4]))
            assert set(sample.labels) - {"le"} == named, family.name


def test_metrics_of_the_alerts_are_on_the_page() -> None:
    used = set(re.findall(r"\b((?:qmq|process)_\w+)", ALERTS.read_text("utf-8")))
    known = set(re.findall(r"^\| `((?:qmq|process)_\w+)` \|", PAGE, re.MULTILINE))

    assert used
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} - known == set()


def complaint(*arguments: str | Path, text: bytes = b"") -> bytes:
    """What promtool says, with `text` at its standard input, if it ends with an error."""
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)
    return done.stdout + done.stderr if done.returncode else b""


@pytest.mark.skipif(PROMTOOL is None, reason="promtool of Prometheus is not installed")
async def test_promtool_accepts_the_page(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        await fill(await rig.connect(), "/queue/a")
        page = await rig.alive.protocols.of("http").shared.metrics.read()

    assert complaint("metrics", text=page) == b""
    assert complaint("metrics", text=page.replace(b"_bytes", b"_kilobytes")) != b""


@pytest.mark.skipif(PROMTOOL is None, reason="promtool of Prometheus is not installed")
def test_promtool_accepts_the_alerts() -> None:
    assert complaint("rules", ALERTS) == b""


def test_the_content_type_names_the_version_of_the_format() -> None:
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
