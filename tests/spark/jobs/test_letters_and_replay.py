"""Dead letters and replays, from logs whose answers are known. What is published goes to a stub."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qmq.cli import main
from qmq.model.dots import Dot
from qmq.spark.jobs.archive import archive
from qmq.spark.jobs.dead_letters import BadList, dead_letters, read_dead_letters, read_list, redrive_lines
from qmq.spark.jobs.messages import read_messages
from qmq.spark.jobs.replay import choose, plan, send
from qmq.spark.reading.options import read_options
from qmq.storage.format.failure_records import pack_dead
from qmq.storage.format.record import RecordKind
from tests.spark.rig import START_US, A, batch, node, record
from tests.spark.stub import Stub


@pytest.fixture
def log(tmp_path: Path) -> dict[str, str]:
    """Four orders, two of them dead, one by a letter that is a PUBLISH of its own."""
    kept = b"shop:x\nttl:5000\n"
    orders = [record(n, b'{"order": %d, "shop": "x"}' % n, "/queue/orders", headers=kept) for n in range(1, 5)]
    reason = b"dead-letter-reason:%s\ndead-letter-from:/queue/orders\ndead-letter-deliveries:%d\nshop:x\n"
    one = pack_dead("/queue/orders", Dot(A, 2), b'{"order": 2, "shop": "x"}')
    letters = [
        record(5, one, "/queue/dead-letters", headers=reason % (b"rejected", 1), kind=RecordKind.DEAD),
        record(6, b'{"order": 3}', "/queue/dead-letters", headers=reason % (b"delivery-limit", 20)),
    ]
    node(tmp_path, "a").segment([batch(A, 1, [*orders, *letters])])
    return {"path": str(tmp_path / "a")}


def test_dead_letters_are_listed_and_sent_again_by_a_list(spark: Any, log: dict[str, str], stub: Stub) -> None:
    messages = read_messages(spark, log)

    groups = dead_letters(messages)
    lines = list(redrive_lines(messages))
    listed = read_list(iter(lines[1:]))
    send(choose(messages, listed=listed), {"servers": stub.address}, name="again")

    assert {(group.queue, group.reason, group.dead_letters, group.deliveries_most) for group in groups} == {
        ("/queue/orders", "rejected", 1, 1),
        ("/queue/orders", "delivery-limit", 1, 20),
    }
    assert [json.loads(line)["id"] for line in lines] == [f"{A}-5", f"{A}-6"]
    (sent,) = stub.sends
    headers = dict(sent.head.headers)
    assert (headers["destination"], sent.body) == ("/queue/orders", b'{"order": 3}')
    assert headers["dedup-id"] == f"again-{A}-6" and headers["qmq-replayed-from"] == f"{A}-6"
    assert headers["shop"] == "x" and not any(name.startswith("dead-letter-") for name in headers)


@pytest.mark.parametrize("into", [(), ("--into", "/queue/again")])
def test_of_a_list_only_what_is_asked_for_is_sent(
    spark: Any, log: dict[str, str], tmp_path: Path, into: tuple[str, ...]
) -> None:
    listed = tmp_path / "list.jsonl"
    listed.write_text("".join(f"{line}\n" for line in redrive_lines(read_messages(spark, log))))
    said = ["--path", log["path"], "--list", str(listed), "--where", "sequence = 6", "--dry-run", "--json"]

    found = CliRunner().invoke(main, ["pipeline", "replay", *said, *into])

    assert json.loads(found.stdout)["by_destination"] == {into[-1] if into else "/queue/orders": 1}


@pytest.mark.parametrize("chosen", [{"subscribe": "/queue/orders"}, {"subscribePattern": "/queue/dead-.*"}])
def test_dead_letters_are_chosen_by_the_queue_that_gave_them_up_or_that_keeps_them(
    spark: Any, log: dict[str, str], tmp_path: Path, chosen: dict[str, str]
) -> None:
    table = str(tmp_path / "table")
    archive(spark, read_options(log), table)

    for letters in (
        read_dead_letters(spark, {**log, **chosen}),
        read_dead_letters(spark, {**chosen, "servers": "somewhere:1"}, table),
    ):
        assert sorted(row.sequence for row in letters.collect()) == [5, 6]
        assert sum(group.dead_letters for group in dead_letters(letters)) == 2
    assert read_dead_letters(spark, {**log, "subscribe": "/queue/other"}).count() == 0


def test_times_are_utc_wherever_the_machine_is(
    spark: Any, log: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = read_messages(spark, log)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()

        groups = dead_letters(messages)
        sample = plan(choose(messages)).samples[0]
    time.tzset()

    first = datetime.fromtimestamp(START_US / 1e6, UTC)
    assert {group.first for group in groups} == {first + timedelta(milliseconds=n) for n in (5, 6)}
    assert sample["time"] == first + timedelta(milliseconds=1)


def test_a_replay_from_an_archive_keeps_the_order_also_when_its_node_goes_away(
    spark: Any, log: dict[str, str], tmp_path: Path
) -> None:
    table = str(tmp_path / "archive")
    archive(spark, read_options(log), table)
    messages = read_messages(spark, {"subscribe": "/queue/orders"}, table)
    chosen = choose(messages, where="sequence >= 2", to="/queue/again")
    dying = Stub([2, 0])

    would = plan(chosen)
    send(chosen, {"servers": dying.address}, name="r", tasks=1, rate=1000.0)
    dying.close()

    assert (would.messages, would.by_destination) == (3, {"/queue/again": 3})
    first = list(dict.fromkeys(frame.head.headers["dedup-id"] for frame in dying.sends))
    assert first == [f"r-{A}-{n}" for n in (2, 3, 4)]
    assert all("ttl" not in frame.head.headers for frame in dying.sends)


@pytest.mark.parametrize(
    "line", ["nonsense", '{"id": "x"}', '{"id": "a-1-zz", "to": "/queue/q"}', '{"id": "-1", "to": ""}']
)
def test_a_list_that_is_none_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(BadList, match="line 2"):
        read_list(iter(['{"id": "a-00000000000000a1-1", "to": "/queue/q"}', line]))
