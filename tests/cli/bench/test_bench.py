"""`qmq bench`: what it says of a broker that is right, and of one that is not."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qmq.bench import exchange, many, paced, process, workloads
from qmq.bench.process import Usage
from qmq.cli.bench.target import limits_for
from qmq.cli.throwaway import exit_on_signals
from tests.cli.bench.relay import Relay, impatient
from tests.cli.conftest import Run

QUICK = ("--seconds", "0.1", "--warmup", "0")
MANY = ("backlog", "drain", "queues", "subscriptions")
FEW = {
    "backlog": ("--count", "50"),
    "drain": ("--count", "50"),
    "queues": ("--count", "50", "--queues", "50"),
    "subscriptions": ("--count", "50", "--subscriptions", "50"),
}


@pytest.fixture
def measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run `qmq bench` against a relay; its line of JSON, with the exit code as `exit`.

    Its patience is short only where something never comes: else a slow machine would look like a relay that loses.
    """
    for module in (exchange, paced):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(many, "SETTLE_SECONDS", 0)

    def bench(relay: Relay, *arguments: str) -> dict[str, Any]:
        if relay.loses:
            impatient(monkeypatch)
        length = () if arguments[0] in MANY else QUICK
        result = run("bench", *arguments, *length, "--at", relay.at)
        facts = json.loads(result.stdout.splitlines()[0])
        return {**facts, "exit": result.exit_code, "said": result.stderr}

    return bench


@pytest.mark.parametrize(
    ("workload", "counted"),
    [("topic", 1), ("fan-out", 10), ("queue", 1), ("send", 1)],
)
def test_a_broker_that_loses_nothing_is_measured(
    measured: Callable[..., dict[str, Any]], workload: str, counted: int
) -> None:
    with Relay() as relay:
        facts = measured(relay, workload)

    assert (facts["missing"], facts["extra"], facts["errors"], facts["exit"]) == (0, 0, 0, 0), facts
    assert facts["workload"] == workload
    assert facts["per_second"] > 0
    assert relay.sent > 0
    if workload != "send":
        assert len(relay.delivered) == relay.sent * counted
    assert {len(body) for body in relay.bodies} == {100}


@pytest.mark.parametrize("workload", ["topic", "fan-out", "queue", "send", "latency"])
def test_a_lost_message_is_missed(measured: Callable[..., dict[str, Any]], workload: str) -> None:
    with Relay(lose=3) as relay:
        facts = measured(relay, workload)

    assert facts["missing"] == (10 if workload == "fan-out" else 1)
    assert facts["exit"] == 1
    assert "missing" in facts["said"]


@pytest.mark.parametrize("workload", ["topic", "queue", "latency"])
def test_a_message_that_comes_twice_is_counted(measured: Callable[..., dict[str, Any]], workload: str) -> None:
    with Relay(repeat=3) as relay:
        facts = measured(relay, workload)

    assert (facts["missing"], facts["extra"], facts["exit"]) == (0, 1, 1)


@pytest.mark.parametrize("workload", ["topic", "queue", "send", "latency"])
def test_the_error_before_a_close_is_reported(measured: Callable[..., dict[str, Any]], workload: str) -> None:
    with Relay(refuse=5) as relay:
        facts = measured(relay, workload)

    assert (facts["errors"], facts["exit"]) == (1, 1)
    assert "enough of you" in facts["error"]


def test_a_backlog_is_published_and_drained(measured: Callable[..., dict[str, Any]]) -> None:
    with Relay() as relay:
        facts = measured(relay, "backlog", "--count", "2500", "--window", "70", "--prefetch", "7")

    assert (facts["missing"], facts["extra"], facts["errors"], facts["exit"]) == (0, 0, 0, 0), facts
    assert relay.sent == 2500
    assert {len(body) for body in relay.bodies} == {200}
    assert set(relay.acked) <= relay.delivered
    assert len(relay.delivered - set(relay.acked)) <= 7, "what was on its way when the time was over"
    assert set(relay.acked.values()) == {1}
    assert relay.headers[-1]["prefetch-count"] == "7"
    assert facts["publish_per_second"] > 0
    assert facts["drain_per_second"] > 0


def test_each_queue_gets_a_message_before_one_gets_another(measured: Callable[..., dict[str, Any]]) -> None:
    with Relay() as relay:
        facts = measured(relay, "queues", "--queues", "1200", "--count", "300")

    assert (facts["missing"], facts["extra"], facts["errors"], facts["exit"]) == (0, 0, 0, 0), facts
    assert len(relay.kept) == 1200
    assert [len(messages) for messages in relay.kept.values()] == [2] * 300 + [1] * 900
    assert [messages[0][0] for messages in relay.kept.values()] == list(range(1, 1201))
    assert facts["create_per_second"] > 0
    assert facts["send_per_second"] > 0


@pytest.mark.parametrize(("kind", "ack"), [("topic", "auto"), ("queue", "client-individual")])
def test_each_destination_is_subscribed_once_and_gets_its_share(
    measured: Callable[..., dict[str, Any]], kind: str, ack: str
) -> None:
    with Relay() as relay:
        facts = measured(
            relay, "subscriptions", "--kind", kind, "--subscriptions", "25", "--connections", "3", "--count", "60"
        )

    assert (facts["missing"], facts["extra"], facts["errors"], facts["exit"]) == (0, 0, 0, 0), facts
    subscribed = [headers["destination"] for headers in relay.headers if "ack" in headers]
    assert len(subscribed) == len(set(subscribed)) == 25
    assert {headers["ack"] for headers in relay.headers if "ack" in headers} == {ack}
    assert all(name.startswith(f"/{kind}/") for name in subscribed)
    assert len(relay.delivered) == 60
    assert set(relay.acked) == (relay.delivered if kind == "queue" else set())
    assert facts["subscribe_per_second"] > 0
    assert facts["send_per_second"] > 0


@pytest.mark.parametrize(("workload", "missing"), [("backlog", 2), ("drain", 2), ("queues", 1), ("subscriptions", 1)])
def test_a_message_that_is_lost_among_many_is_missed(
    measured: Callable[..., dict[str, Any]], workload: str, missing: int
) -> None:
    with Relay(lose=3) as relay:
        facts = measured(relay, workload, *FEW[workload])

    assert facts["missing"] == missing  # of a backlog both the receipt and the message
    assert facts["exit"] == 1


@pytest.mark.parametrize("workload", ["backlog", "drain", "subscriptions"])
def test_a_message_that_comes_twice_among_many_is_counted(
    measured: Callable[..., dict[str, Any]], workload: str
) -> None:
    with Relay(repeat=3) as relay:
        facts = measured(relay, workload, *FEW[workload])

    assert (facts["missing"], facts["extra"], facts["exit"]) == (0, 1, 1)


@pytest.mark.parametrize("workload", MANY)
def test_a_refusal_of_one_frame_of_many_is_reported(measured: Callable[..., dict[str, Any]], workload: str) -> None:
    with Relay(refuse=5) as relay:
        facts = measured(relay, workload, *FEW[workload])

    assert (facts["errors"], facts["exit"]) == (1, 1)
    assert "enough of you" in facts["error"]


def test_a_throwaway_node_allows_as_many_as_are_measured() -> None:
    limits = limits_for(connections=20_000, destinations=1_000_000, subscriptions=1_000_000, prefetch=5000)

    assert limits["destinations_max"] > 1_000_000
    assert limits["subscriptions_max"] == 1_000_000
    assert limits["connections_max"] > 20_000
    assert limits["connections_per_address_max"] > 20_000
    assert limits["prefetch_max"] == 5000


def test_a_throwaway_node_allows_no_less_than_others() -> None:
    assert limits_for() == {}
    assert limits_for(connections=150, subscriptions=5, prefetch=10) == {}


def test_subscribers_count_as_connections_of_a_throwaway_node(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("qmq.cli.bench.command.limits_for", lambda **wanted: asked.append(wanted["connections"]) or {})
    monkeypatch.setattr("qmq.cli.throwaway.PROGRAM", (sys.executable, "-c", "raise SystemExit(0)"))

    run("bench", "topic", "--serve", "--subscribers", "1100", "--connections", "7")

    assert asked == [1107]


def test_every_message_of_a_queue_is_acknowledged_once(measured: Callable[..., dict[str, Any]]) -> None:
    with Relay() as relay:
        facts = measured(relay, "queue", "--prefetch", "7")

    assert (facts["missing"], facts["exit"]) == (0, 0), facts
    assert set(relay.acked) == relay.delivered
    assert set(relay.acked.values()) == {1}
    assert relay.headers[0]["ack"] == "client-individual"
    assert relay.headers[0]["prefetch-count"] == "7"


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        (("topic", "--outstanding", "50"), 50),
        (("fan-out", "--outstanding", "50", "--subscribers", "5"), 10),
        (("queue", "--outstanding", "50"), 50),
    ],
)
def test_the_brake_stops_the_sender_when_nothing_comes_back(
    measured: Callable[..., dict[str, Any]], arguments: tuple[str, ...], most: int
) -> None:
    with Relay(hold=1) as relay:
        measured(relay, *arguments)

    assert relay.sent == most


def test_the_window_stops_the_sender_when_receipts_are_missing(measured: Callable[..., dict[str, Any]]) -> None:
    with Relay(lose=1) as relay:
        facts = measured(relay, "send", "--window", "1")

    assert relay.sent == 1
    assert facts["missing"] == 1


def test_latency_is_in_microseconds_with_the_lag_of_the_generator(
    measured: Callable[..., dict[str, Any]],
) -> None:
    with Relay() as relay:
        facts = measured(relay, "latency", "--rate", "200")

    shares = ("p50_us", "p90_us", "p99_us", "p999_us", "p9999_us", "max_us")
    assert 0 < facts["p50_us"]
    assert [facts[name] for name in shares] == sorted(facts[name] for name in shares)
    assert facts["generator_lag_p50_us"] <= facts["generator_lag_max_us"]
    assert facts["kind"] == "topic"
    assert 1 <= relay.sent <= 30


@pytest.mark.parametrize(("option", "value"), [((), None), (("--memory",), "false")])
def test_memory_only_messages_say_so(
    measured: Callable[..., dict[str, Any]], option: tuple[str, ...], value: str | None
) -> None:
    with Relay() as relay:
        facts = measured(relay, "send", *option)

    assert relay.headers[0].get("persistent") == value
    assert facts["memory"] == bool(option)


def test_body_and_destination_are_as_asked(measured: Callable[..., dict[str, Any]]) -> None:
    with Relay() as relay:
        measured(relay, "topic", "--body", "1000", "--destination", "/topic/mine")

    assert {len(body) for body in relay.bodies} == {1000}
    assert {headers["destination"] for headers in relay.headers} == {"/topic/mine"}


def test_a_frame_that_was_begun_is_finished_before_the_goodbye(measured: Callable[..., dict[str, Any]]) -> None:
    with Relay() as relay:
        # So much more than the kernel holds that the end finds the sender in the middle of a frame.
        facts = measured(relay, "topic", "--body", "1000000", "--outstanding", "50")

    assert (facts["missing"], facts["errors"]) == (0, 0), facts
    assert {len(body) for body in relay.bodies} == {1_000_000}


def test_two_runs_do_not_meet_in_one_destination(measured: Callable[..., dict[str, Any]]) -> None:
    with Relay() as relay:
        measured(relay, "topic")
        measured(relay, "topic")

    assert len({headers["destination"] for headers in relay.headers}) == 2


def test_the_generator_of_latencies_asks_to_be_woken_on_time(
    measured: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slack = tmp_path / "timerslack_ns"
    monkeypatch.setattr(process, "TIMER_SLACK", slack)

    with Relay() as relay:
        measured(relay, "latency", "--rate", "200")

    assert slack.read_text() == "1"


def test_where_a_process_may_not_ask_to_be_woken_on_time_it_goes_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "TIMER_SLACK", tmp_path / "no" / "timerslack_ns")
    process.wake_on_time()
    assert not list(tmp_path.iterdir())


def test_idle_reports_memory_and_wakeups_of_the_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(workloads, "LOGIN_SECONDS", 0)

    with Relay() as relay:
        arguments = ("--pid", str(os.getpid()), "--connections", "3", "--seconds", "0.1")
        result = run("bench", "idle", *arguments, "--at", relay.at)

    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["server_rss_mib"] > 1
    assert facts["wakeups_per_second"] >= 0
    assert facts["connected_wakeups_per_second"] >= 0
    assert isinstance(facts["bytes_per_connection"], int)


def test_wakeups_of_a_thread_that_ended_meanwhile_are_not_taken_away() -> None:
    stays, ended, came = 1, 2, 3
    before = Usage(cpu_seconds=0, wakeups={stays: 5, ended: 100}, rss_bytes=0, rss_highest_bytes=0)
    after = Usage(cpu_seconds=0, wakeups={stays: 7, came: 4}, rss_bytes=0, rss_highest_bytes=0)

    assert after.wakeups_since(before) == 6


def test_a_table_shows_the_same(run: Run) -> None:
    with Relay() as relay:
        result = run("bench", "topic", *QUICK, "--table", "--at", relay.at)

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("figure")
    assert "per_second" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topic", "--rate", "5"), "--rate does not apply to topic"),
        (("send", "--subscribers", "2"), "--subscribers does not apply to send"),
        (("idle",), "give --pid or --serve"),
        (("topic", "--serve", "--at", "127.0.0.1:1"), "leave out --at"),
        (("topic", "--serve", "--dialect", "rabbitmq"), "leave out --dialect"),
        (("topic", "--to", "127.0.0.1:1"), "--to does not apply to topic"),
        (("mesh",), "needs another node"),
        (("mesh", "--to", "127.0.0.1:1", "--nodes", "3"), "needs --serve"),
        (("mesh", "--serve", "--kind", "fanout", "--outstanding", "5"), "use --window"),
        (("mesh", "--serve", "--window", "5"), "for --kind fanout"),
        (("subscriptions", "--kind", "fanout"), "topic, queue"),
        (("topic", "--cores", "1"), "two numbers"),
        (("topic", "--cores", "0,100000"), "core 100000"),
        (("topic", "--send-header", "priority"), "NAME:VALUE"),
        (("topic", "--serve-in", "/tmp"), "needs --serve"),
        (("topic", "--body", "3"), "--body"),
        (("walk",), "walk"),
        (("backlog", "--seconds", "3"), "--seconds does not apply to backlog"),
        (("topic", "--count", "3"), "--count does not apply to topic"),
        (("queues", "--destination", "/queue/mine"), "--destination does not apply to queues"),
        (("subscriptions", "--connections", "0"), "at least 1"),
        (("subscriptions", "--memory"), "with --kind queue"),
        (("mesh", "--serve", "--memory"), "with --kind queue"),
        (("mesh", "--serve", "--kind", "fanout", "--memory"), "with --kind queue"),
        (("mesh", "--serve", "--prefetch", "5"), "with --kind queue"),
        (("latency", "--memory"), "give a queue as --destination"),
        (("latency", "--memory", "--destination", "/topic/t"), "give a queue as --destination"),
        (("topic", "--no-pin", "--cores", "0,0"), "leave out --no-pin"),
    ],
)
def test_options_that_would_be_ignored_are_refused(run: Run, arguments: tuple[str, ...], said: str) -> None:
    result = run("bench", *arguments)

    assert result.exit_code == 2
    assert said in result.stderr


def test_an_address_without_a_broker_is_one_line(run: Run) -> None:
    with Relay() as relay:
        at = relay.at

    result = run("bench", "topic", *QUICK, "--at", at)

    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert at in result.stderr


def test_a_throwaway_node_that_does_not_start_says_why(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("qmq.cli.throwaway.PROGRAM", (sys.executable, "-c", "raise SystemExit('no luck today')"))

    result = run("bench", "topic", "--serve", "--serve-in", str(tmp_path))

    assert result.exit_code == 1
    assert "exit code 1" in result.stderr
    assert "no luck today" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_throwaway_node_without_a_place_is_one_line(run: Run, tmp_path: Path) -> None:
    result = run("bench", "topic", "--serve", "--serve-in", str(tmp_path / "nowhere"))

    assert result.exit_code == 1
    assert result.stderr == f"qmq: {tmp_path / 'nowhere'}: No such file or directory\n"


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_stopped_stops_its_node(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "qmq", "bench", "topic", "--seconds", "60", "--serve", "--serve-in", str(tmp_path)]
    with subprocess.Popen([*command, "--progress"], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        seen = b""
        while b"measuring" not in seen:
            seen += process.stderr.read(1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()

        process.send_signal(number)

        assert process.wait(30) == 128 + number
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("workload", "nodes"), [("topic", 1), ("mesh", 2)])
def test_a_run_that_is_killed_takes_its_nodes_along(tmp_path: Path, workload: str, nodes: int) -> None:
    command = [
        sys.executable,
        "-m",
        "qmq",
        "bench",
        workload,
        "--seconds",
        "60",
        "--serve",
        "--serve-in",
        str(tmp_path),
    ]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen([*command, "--progress"], stderr=subprocess.PIPE))
        assert process.stderr is not None
        seen = b""
        while b"measuring" not in seen:
            seen += process.stderr.read(1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        serving = [child for child in children if b"serve" in Path(f"/proc/{child}/cmdline").read_bytes()]
        ends = [os.pidfd_open(int(child)) for child in serving]
        for end in ends:
            stack.callback(os.close, end)

        process.kill()

        assert len(ends) == nodes
        for end in ends:
            assert select.select([end], [], [], 30)[0], "a node outlives the run that started it"


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_orderly_exit_is_not_interrupted_by_another_signal(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        exit_on_signals()

        with pytest.raises(SystemExit):
            signal.raise_signal(number)

        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("arguments", "phase"),
    [
        (("topic", *QUICK), ""),
        (("queue", *QUICK), ""),
        (("send", *QUICK), ""),
        (("backlog", "--count", "2000"), "drain_"),
        (("queues", "--queues", "300", "--count", "600"), "send_"),
        (("subscriptions", "--subscriptions", "300", "--count", "600"), "send_"),
        (("subscriptions", "--kind", "queue", "--subscriptions", "300", "--count", "600"), "send_"),
        (("drain", "--count", "2000"), "drain_"),
        (("mesh", *QUICK), ""),
        (("mesh", "--kind", "queue", *QUICK), ""),
        (("mesh", "--kind", "fanout", "--nodes", "3", *QUICK), ""),
    ],
)
def test_a_real_throwaway_node_is_measured_and_removed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], phase: str
) -> None:
    monkeypatch.setattr(many, "SETTLE_SECONDS", 0)

    result = run("bench", *arguments, "--serve", "--serve-in", str(tmp_path))

    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts[f"{phase}server_rss_mib"] > 1
    assert facts[f"{phase}server_cpu_share"] >= 0
    if phase and arguments[0] != "drain":
        assert facts["server_rss_highest_mib"] >= facts["server_rss_start_mib"] > 1
    assert list(tmp_path.iterdir()) == []
