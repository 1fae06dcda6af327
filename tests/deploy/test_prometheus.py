"""The alert rules and the Grafana dashboard of cluster/, with Prometheus itself: each alert fires and ends again, each
panel finds something, and a mesh of three is scraped as docs/metrics.md says."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from qmq.testing.ports import free_ports
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "cluster" / "alerts.yaml"
DASHBOARD = ROOT / "cluster" / "dashboard.json"
PAGE = (ROOT / "docs" / "metrics.md").read_text("utf-8")

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="prometheus is not installed (make deploy-test)"
)


class Case(NamedTuple):
    """Samples of one a minute, as promtool writes them: the alert fires at minute `fires`, and not at minute `over`."""

    series: dict[str, str]
    fires: int
    over: int


def gauge(name: str, bad: float, good: float, minutes: int, labels: str = "") -> dict[str, str]:
    """Good for five minutes, bad for so many, and good again."""
    return {f'{name}{{job="qmq",instance="a"{labels}}}': f"{good}x4 {bad}x{minutes - 1} {good}x60"}


CASES = {
    "QmqNodeDown": Case(gauge("up", 0, 1, 10), 8, 16),
    "QmqNodeRestarts": Case({'qmq_uptime_seconds{instance="a"}': "60+60x4 0 60 0 60 0 60 0 60+60x90"}, 13, 90),
    "QmqConditionCritical": Case(gauge("qmq_conditions", 1, 0, 10, ',code="x",severity="critical"'), 6, 16),
    "QmqConditionError": Case(gauge("qmq_conditions", 1, 0, 10, ',code="x",severity="error"'), 12, 16),
    "QmqDiskFull": Case(gauge("qmq_disk_full", 1, 0, 10), 8, 16),
    "QmqDiskFillsUp": Case({'qmq_disk_free_bytes{instance="a"}': "10000-10x100 9000x400"}, 60, 500),
    "QmqSlowDisk": Case(
        {
            'qmq_journal_fsync_seconds_bucket{instance="a",le="0.25"}': "0+100x4 500x30 500+100x60",
            'qmq_journal_fsync_seconds_bucket{instance="a",le="0.5"}': "0+100x4 500+10x30 800+100x60",
            'qmq_journal_fsync_seconds_bucket{instance="a",le="+Inf"}': "0+100x4 500+10x30 800+100x60",
        },
        25,
        60,
    ),
    "QmqCheckpointBehind": Case(gauge("qmq_journal_unsaved_bytes", 2e9, 1e6, 20), 18, 30),
    "QmqLinkDown": Case(gauge("qmq_link_up", 0, 1, 10, ',peer="b",direction="out"'), 12, 16),
    "QmqLinkLags": Case(gauge("qmq_link_lag_records", 100_001, 100_000, 20, ',peer="b"'), 18, 30),
    "QmqQueuesHeld": Case(gauge("qmq_queues_held", 1, 0, 10), 12, 16),
    "QmqQueueWaits": Case(gauge("qmq_queue_oldest_waiting_seconds", 3601, 3600, 20, ',queue="/queue/q"'), 18, 30),
    "QmqMessagesDeadLettered": Case(gauge("qmq_messages_dead_lettered_total", 1, 0, 100), 6, 40),
    "QmqSendsRefused": Case({'qmq_messages_refused_total{instance="a"}': "0x4 0+120x20 2400x60"}, 20, 40),
    "QmqMemoryShort": Case(gauge("qmq_memory_bytes", 76, 75, 10) | gauge("qmq_memory_max_bytes", 100, 100, 10), 12, 16),
    "QmqFilesShort": Case(gauge("process_open_fds", 81, 80, 10) | gauge("process_max_fds", 100, 100, 10), 12, 16),
    "QmqMessagesUnroutable": Case(gauge("qmq_messages_unroutable_total", 1, 0, 100), 6, 40),
}


def test_every_alert_has_a_case() -> None:
    assert set(re.findall(r"^ +- alert: (\w+)$", ALERTS.read_text("utf-8"), re.MULTILINE)) == set(CASES)


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_and_ends(alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    # Before, during, after; a count of nothing has no sample.
    minutes = [(3, 0), (case.fires, 1), (case.over, 0)]
    checks = [
        {
            "expr": firing,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "{}", "value": count}] * bool(count),
        }
        for minute, count in minutes
    ]
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    tests = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}],
    }
    (tmp_path / "test.yaml").write_text(json.dumps(tests), "utf-8")

    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "test.yaml")], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A server that scrapes each second, and takes a range of minutes in a rule for one of seconds."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        (port,) = free_ports(1)
        self.address = f"http://127.0.0.1:{port}"
        targets = [f"127.0.0.1:{cluster.web_address(name)[1]}" for name in cluster.names]
        (text,) = re.findall(r"^```yaml\n(scrape_configs:\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        text = re.sub(r"targets: \[.*\]", f"targets: {json.dumps(targets)}", text).replace("15s", "1s")
        (folder / "prometheus.yml").write_text("global: {evaluation_interval: 1s}\n" + text, "utf-8")
        rules = re.sub(r"\[\d+[mh]\]", "[10s]", ALERTS.read_text("utf-8"))
        (folder / "alerts.yaml").write_text(re.sub(r"^( +for:) \w+$", r"\1 1s", rules, flags=re.MULTILINE), "utf-8")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ]
        )

    def ask(self, path: str) -> Any:
        """What its API answers; None while it does not."""
        try:
            with urlopen(f"{self.address}/api/v1/{path}", timeout=10) as reply:
                return json.load(reply)["data"]
        except URLError:
            return None

    def series(self, query: str) -> list[Any]:
        found = self.ask(f"query?query={quote(query)}")
        return [] if found is None else found["result"]

    def firing(self) -> set[str]:
        found = self.ask("alerts") or {"alerts": []}
        return {one["labels"]["alertname"] for one in found["alerts"] if one["state"] == "firing"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("watched")) as made:
        made.start("a", "b", "c")
        made.make_healthy()
        yield made


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster) -> Iterator[Prometheus]:
    made = Prometheus(cluster.folder, cluster)
    try:
        eventually(lambda: len(made.series('up{job="qmq"} == 1')) == 3, lambda: f"scraped: {made.series('up')}")
        yield made
    finally:
        made.process.terminate()
        made.process.wait()


def queries() -> dict[str, str]:
    """Panel and letter → its query, for all nodes."""
    values = {"$job": "qmq", "$instance": ".+", "$__rate_interval": "10s"}
    found = {}
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in values.items():
                query = query.replace(name, value)
            found[f"{panel['title']} {target['refId']}"] = query
    return found


def test_metrics_of_the_dashboard_are_on_the_page() -> None:
    used = {name for query in queries().values() for name in re.findall(r"\b((?:qmq|process)_\w+)", query)}
    known = set(re.findall(r"^\| `((?:qmq|process)_\w+)` \|", PAGE, re.MULTILINE))

    assert len(used) > 20
    assert {name.removesuffix("_bucket") for name in used} <= known


MAY_BE_EMPTY = {"Fastest growing queues, messages per second A", "Links that are down A", "Conditions A"}
"""Panels that show trouble only."""


def test_each_panel_of_the_dashboard_finds_something(cluster: Cluster, prometheus: Prometheus) -> None:
    client = cluster.client("a")
    client.publish("/queue/watched", b"1", b"2")
    found: dict[str, bool] = {}

    def all_found() -> bool:
        client.publish("/queue/watched", b"3")
        found.update({name: bool(prometheus.series(query)) for name, query in queries().items()})
        return all(is_found or name in MAY_BE_EMPTY for name, is_found in found.items())

    eventually(all_found, lambda: f"empty: {[name for name, is_found in found.items() if not is_found]}")
    # Each is a query, also where it finds nothing.
    assert [name for name, query in queries().items() if prometheus.ask(f"query?query={quote(query)}") is None] == []


def test_a_node_that_ends_and_returns_fires_and_clears_its_alert(cluster: Cluster, prometheus: Prometheus) -> None:
    assert "QmqNodeDown" not in prometheus.firing()

    cluster.kill("b")
    eventually(lambda: "QmqNodeDown" in prometheus.firing(), lambda: f"firing: {prometheus.firing()}")
    down = prometheus.series('qmq_link_up{peer="b"} == 0')

    cluster.start("b")
    eventually(
        lambda: not {"QmqNodeDown", "QmqLinkDown"} & prometheus.firing(), lambda: f"firing: {prometheus.firing()}"
    )
    assert down
