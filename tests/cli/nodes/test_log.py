"""`qmq log`: an operator's look into a data directory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qmq.model.dots import Origin
from qmq.storage.format.batch import encode_batch
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record
from qmq.storage.store import open_store
from tests.cli.conftest import Run

ORIGIN = Origin("a", 0xAA)
TIME_US = 1_700_000_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a START and three messages in two batches."""
    store = open_store(tmp_path / "data", node="a")
    origin = store.begin_incarnation(0xAA, TIME_US)
    store.journal.append([batch(origin, 2, ["/queue/jobs", "/fanout/log"], [b"one\x1b\n", b"\xff"])])
    store.journal.append([batch(origin, 4, ["/queue/jobs"], [b"x" * 500])])
    store.close()
    return tmp_path / "data"


def batch(origin: Origin, first: int, destinations: list[str], bodies: list[bytes]) -> bytes:
    records = [
        pack_record(first + at, TIME_US, RecordKind.PUBLISH, 0, pack_envelope(destination, b"kind:test\n"), body)
        for at, (destination, body) in enumerate(zip(destinations, bodies, strict=True))
    ]
    return encode_batch(origin, records, first, first + len(records) - 1, TIME_US, TIME_US)


def damage(data: Path, needle: bytes) -> None:
    (segment,) = (data / "journal").iterdir()
    content = bytearray(segment.read_bytes())
    content[content.index(needle)] ^= 0x01
    segment.write_bytes(content)


def test_a_whole_log_is_called_ok(run: Run, data: Path) -> None:
    result = run("log", "verify", str(data))

    assert result.exit_code == 0, result.output
    head, segment, *_, verdict = [line.split() for line in result.output.splitlines()]
    assert head == ["SEGMENT", "BASE", "BATCHES", "RECORDS", "SIZE", "TAIL", "STATE"]
    assert segment[2:4] == ["3", "4"]
    assert verdict == ["ok"]


def test_damage_is_reported_with_exit_code_1(run: Run, data: Path) -> None:
    damage(data, b"one\x1b")

    result = run("log", "verify", str(data))

    assert result.exit_code == 1
    assert "no batch can be read from" in result.output
    assert result.output.splitlines()[-1] == "damaged"


def test_a_damaged_row_of_the_queue_store_is_reported_with_exit_code_1(run: Run, data: Path) -> None:
    queues = data / "queues.sqlite"
    open_store(data, node="a").close()  # Its start carries the messages into the queue store.
    body = b"x" * 500
    assert body in queues.read_bytes()
    queues.write_bytes(queues.read_bytes().replace(body, b"y" + body[1:]))

    result = run("log", "verify", str(data))

    assert result.exit_code == 1
    assert f"DAMAGED queues.sqlite: the row of {ORIGIN}:4 of /queue/jobs" in result.output
    assert result.output.splitlines()[-1] == "damaged"


def test_a_torn_tail_is_no_damage(run: Run, data: Path) -> None:
    (segment,) = (data / "journal").iterdir()
    segment.write_bytes(segment.read_bytes()[:-5])

    result = run("log", "verify", str(data), "--json")

    facts = json.loads(result.output)
    assert result.exit_code == 0
    assert facts["damaged"] is False
    assert facts["segments"][0]["batches"] == 2
    assert facts["segments"][0]["tail_bytes"] > 0


def test_json_names_what_is_damaged(run: Run, data: Path) -> None:
    damage(data, b"one\x1b")

    facts = json.loads(run("log", "verify", str(data), "--json").output)

    (bad,) = facts["segments"][0]["bad"]
    assert bad[0] < bad[1]
    assert facts["segments"][0]["violations"][0]["origin"] == str(ORIGIN)
    assert facts["damaged"] is True


def test_dump_prints_a_line_for_each_record(run: Run, data: Path) -> None:
    result = run("log", "dump", str(data))

    lines = [line.split("  ") for line in result.output.splitlines()]
    assert [line[1] for line in lines] == [f"{ORIGIN}:{sequence}" for sequence in (1, 2, 3, 4)]
    assert [line[3] for line in lines] == ["START", "PUBLISH", "PUBLISH", "PUBLISH"]
    assert lines[1][2:] == ["2023-11-14T22:13:20.000+00:00", "PUBLISH", "/queue/jobs", "one\\x1b\\n"]
    assert lines[2][5] == "\\xff"
    assert lines[3][5] == "x" * 80 + "…"


@pytest.mark.parametrize(
    ("at_us", "text"),
    [
        (1_700_000_000_123_456, "2023-11-14T22:13:20.123+00:00"),
        (253_402_300_800_000_000, "253402300800000000 us"),  # the year 10000
        (2**64 - 1, "18446744073709551615 us"),
    ],
)
def test_dump_prints_times_that_no_calendar_has(run: Run, tmp_path: Path, at_us: int, text: str) -> None:
    store = open_store(tmp_path / "data", node="a")
    record = pack_record(1, at_us, RecordKind.PUBLISH, 0, pack_envelope("/queue/q", b""), b"")
    store.journal.append([encode_batch(ORIGIN, [record], 1, 1, at_us, at_us)])
    store.close()

    result = run("log", "dump", str(tmp_path / "data"))

    assert result.exit_code == 0, result.output
    assert result.output.split("  ")[2] == text


def test_dump_can_show_one_destination(run: Run, data: Path) -> None:
    result = run("log", "dump", str(data), "--destination", "/fanout/log")

    assert [line.split("  ")[4] for line in result.output.splitlines()] == ["/fanout/log"]


def test_dump_as_json_has_whole_records(run: Run, data: Path) -> None:
    result = run("log", "dump", str(data), "--json", "--destination", "/queue/jobs")

    first, second = map(json.loads, result.output.splitlines())
    assert first["body"] == "one\x1b\n"
    assert first["headers"] == "kind:test\n"
    assert (first["origin"], first["sequence"], first["kind"]) == (str(ORIGIN), 2, "PUBLISH")
    assert second["body"] == "x" * 500


def test_looking_changes_nothing(run: Run, data: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}

    run("log", "verify", str(data))
    run("log", "dump", str(data))

    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_a_directory_without_a_log_is_reported(run: Run, tmp_path: Path, command: str) -> None:
    result = run("log", command, str(tmp_path))

    assert result.exit_code == 1
    assert "is not the data directory of a node" in result.stderr


def test_quarantined_batches_are_restored_only_with_yes(run: Run, data: Path) -> None:
    damage(data, b"one\x1b")
    open_store(data, node="a").close()

    asked = run("log", "release", str(data))
    assert asked.exit_code == 0, asked.output
    assert asked.output.splitlines() == [
        f"{ORIGIN}: records 2 to 3 are given up",
        f"{ORIGIN}: 1 records after them are restored",
        "nothing was changed; add --yes to apply this",
    ]
    store = open_store(data, node="a")
    assert store.journal.vector() == {ORIGIN: 1}
    store.close()

    done = run("log", "release", str(data), "--yes")

    assert done.output.splitlines()[-1] == "done: the node applies this at its next start"
    store = open_store(data, node="a")
    assert store.journal.vector()[ORIGIN] == 4
    store.close()
    assert "nothing to restore" in run("log", "release", str(data)).output


def test_a_directory_that_is_in_use_or_of_no_node_is_not_changed(run: Run, data: Path, tmp_path: Path) -> None:
    store = open_store(data, node="a")

    assert run("log", "release", str(data), "--yes").exit_code != 0
    assert run("log", "release", str(tmp_path)).exit_code != 0

    store.close()


def test_a_reader_that_has_seen_enough_is_no_failure(data: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [sys.executable, "-m", "qmq", "log", "dump", str(data)], stdout=writing, stderr=subprocess.PIPE, text=True
    )

    os.close(writing)
    assert done.stderr == ""
