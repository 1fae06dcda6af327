"""`qmq bench` with brokers of other kinds, across nodes, and compared with earlier runs: what it sends and prints."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qmq.bench import exchange, many, paced
from qmq.bench.plan import limited_by
from tests.cli.bench.relay import Relay, impatient
from tests.cli.conftest import Run

QUICK = ("--seconds", "0.1", "--warmup", "0")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (exchange, paced):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(many, "SETTLE_SECONDS", 0)


def facts_of(stdout: str) -> dict[str, Any]:
    facts = json.loads(stdout.splitlines()[0])
    assert isinstance(facts, dict)
    return facts


@pytest.mark.parametrize(
    ("dialect", "durable", "memory", "credit"),
    [
        ("qmq", None, "false", "prefetch-count"),
        ("rabbitmq", "true", None, "prefetch-count"),
        ("activemq", "true", None, "activemq.prefetchSize"),
        ("generic", "true", "false", "prefetch-count"),
    ],
)
def test_each_kind_of_broker_hears_its_own_words(
    run: Run, dialect: str, durable: str | None, memory: str | None, credit: str
) -> None:
    said = []
    for option in ((), ("--memory",)):
        with Relay() as relay:
            result = run("bench", "queue", *QUICK, *option, "--dialect", dialect, "--server", relay.at)
        assert result.exit_code == 0, result.output
        subscribe, send = relay.headers[0], relay.headers[-1]
        assert subscribe[credit] == "1000"
        said.append(send.get("persistent"))

    assert said == [durable, memory]


def test_headers_and_prefixes_are_as_asked(run: Run) -> None:
    more = ("--connect-header", "client-id:me", "--send-header", "priority:7", "--subscribe-header", "selector:a=1:b")
    with Relay() as relay:
        named = ("--host", "there", "--queue-prefix", "/amq/queue/", "--login", "guest", "--passcode", "secret")
        result = run("bench", "queue", *QUICK, *named, *more, "--at", relay.at)

    assert result.exit_code == 0, result.output
    assert {key: relay.connects[0][key] for key in ("host", "login", "passcode", "client-id")} == {
        "host": "there",
        "login": "guest",
        "passcode": "secret",
        "client-id": "me",
    }
    subscribe, send = relay.headers[0], relay.headers[-1]
    assert subscribe["selector"] == "a=1:b"
    assert send["priority"] == "7"
    assert send["destination"].startswith("/amq/queue/bench-")


def test_heart_beats_are_sent_where_they_are_agreed_and_cut_no_frame(run: Run) -> None:
    with Relay(heart_beat="1,1") as relay:
        result = run("bench", "topic", *QUICK, "--heart-beat", "1", "--at", relay.at)

    assert result.exit_code == 0, result.output
    assert relay.connects[0]["heart-beat"] == "1,1"
    assert relay.beats > 0


def test_no_heart_beats_are_sent_where_the_broker_wants_none(run: Run) -> None:
    with Relay(heart_beat="1,0") as relay:
        run("bench", "topic", *QUICK, "--heart-beat", "1", "--at", relay.at)

    assert relay.beats == 0


@pytest.mark.parametrize("kind", ["topic", "queue", "fanout"])
def test_what_crosses_is_read_at_the_other_nodes_alone_but_a_fanout_at_all(run: Run, kind: str) -> None:
    with Relay() as near, Relay() as far:
        near.forwards_to(far)
        result = run("bench", "mesh", "--kind", kind, *QUICK, "--at", near.at, "--to", far.at)

    assert result.exit_code == 0, result.output
    facts = facts_of(result.stdout)
    assert facts["nodes"] == 2
    assert facts["per_second"] > 0
    assert far.delivered
    assert bool(near.delivered) == (kind == "fanout")
    if kind == "fanout":
        assert facts["accepted_per_second"] > 0
        assert facts["delivered_per_second"] > 0


def test_a_message_that_one_node_never_gets_is_missed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    with Relay() as near, Relay() as far:
        near.forwards_to(far, leave_out=5)
        result = run("bench", "mesh", "--kind", "fanout", *QUICK, "--at", near.at, "--to", far.at)

    assert result.exit_code == 1
    assert facts_of(result.stdout)["missing"] == 1


def test_what_one_node_gets_twice_does_not_make_up_for_what_another_lost(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    with Relay(repeat=5) as near, Relay() as far:
        near.forwards_to(far, leave_out=5)
        result = run("bench", "mesh", "--kind", "fanout", *QUICK, "--at", near.at, "--to", far.at)

    facts = facts_of(result.stdout)
    assert (facts["missing"], facts["extra"], result.exit_code) == (1, 1, 1)


def test_a_run_is_written_and_compared_with_the_next(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    with Relay() as relay:
        first = run("bench", "queue", *QUICK, "--json", str(file), "--at", relay.at)
        second = run("bench", "queue", *QUICK, "--compare", str(file), "--at", relay.at)

    assert (first.exit_code, second.exit_code) == (0, 0), second.output
    assert json.loads(file.read_text("utf-8"))["per_second"] == facts_of(first.stdout)["per_second"]
    head, *rows = second.stdout.splitlines()
    assert head.split() == ["figure", "before", "now", "ratio", "direction", "verdict"]
    assert rows[0].startswith("per_second")
    assert "more is better" in rows[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("so fast", "not JSON"),
        ("[1, 2]", "not a result of qmq bench"),
        ('{"per_second": 5}', "has no workload"),
    ],
)
def test_what_is_no_earlier_run_is_refused_before_anything_is_measured(
    run: Run, tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "before.json"
    if text is not None:
        file.write_text(text, "utf-8")

    with Relay() as relay:
        result = run("bench", "topic", *QUICK, "--compare", str(file), "--at", relay.at)

    assert result.exit_code == 1
    assert said in result.stderr
    assert relay.sent == 0


def test_a_run_of_another_shape_is_named_and_this_one_is_not_lost(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    with Relay() as relay:
        run("bench", "topic", *QUICK, "--body", "500", "--json", str(file), "--at", relay.at)
        result = run("bench", "topic", *QUICK, "--compare", str(file), "--at", relay.at)

    assert result.exit_code == 1
    assert "body_bytes is 500 there and 100 here" in result.stderr
    assert facts_of(result.stdout)["per_second"] > 0


@pytest.mark.parametrize(
    ("workload", "before", "now"),
    [
        (("mesh", "--kind", "queue", *QUICK), ("--prefetch", "5"), ("--prefetch", "6")),
        (("subscriptions", "--kind", "queue", "--subscriptions", "5", "--count", "5"), (), ("--memory",)),
    ],
)
def test_what_the_load_was_asked_for_must_be_the_same_to_be_compared(
    run: Run, tmp_path: Path, workload: tuple[str, ...], before: tuple[str, ...], now: tuple[str, ...]
) -> None:
    file = str(tmp_path / "before.json")
    results = []
    for more in ((*before, "--json", file), (*now, "--compare", file)):
        with Relay() as near, Relay() as far:
            near.forwards_to(far)
            to = ("--to", far.at) if workload[0] == "mesh" else ()
            results.append(run("bench", *workload, *more, "--at", near.at, *to))

    assert results[0].exit_code == 0, results[0].output
    assert results[1].exit_code == 1
    assert "cannot be compared" in results[1].stderr


def test_a_run_that_cannot_be_written_is_not_lost(run: Run, tmp_path: Path) -> None:
    with Relay() as relay:
        result = run("bench", "topic", *QUICK, "--json", str(tmp_path / "nowhere" / "run.json"), "--at", relay.at)

    assert result.exit_code == 1
    assert "No such file" in result.stderr
    assert facts_of(result.stdout)["per_second"] > 0


def test_progress_is_shown_on_stderr_and_removed_at_the_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.bench.plan.BUSY_SHARE", 2.0)  # on a busy machine a warning would come after it

    with Relay() as relay:
        result = run("bench", "topic", *QUICK, "--progress", "--at", relay.at)

    assert "measuring" in result.stderr
    assert result.stderr.endswith("\r")  # and what clears the line, on a terminal
    assert facts_of(result.stdout)["workload"] == "topic"


def test_a_generator_that_was_the_limit_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.bench.plan.BUSY_SHARE", 0.0)

    with Relay() as relay:
        result = run("bench", "topic", *QUICK, "--at", relay.at, "--pid", str(os.getpid()))

    assert facts_of(result.stdout)["limited_by"] == "generator"
    assert "the generator was the limit" in result.stderr


@pytest.mark.parametrize(
    ("generator", "server", "said"),
    [(0.95, 0.99, "generator"), (0.5, 0.95, "server"), (0.5, 0.5, "waiting"), (0.5, None, "unknown")],
)
def test_the_busy_side_is_the_limit(generator: float, server: float | None, said: str) -> None:
    assert limited_by(generator, server) == said
