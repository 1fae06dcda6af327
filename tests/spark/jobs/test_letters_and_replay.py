"""Dead letters, replays and typed tables, from logs whose answers are known. What is published goes to a stub."""

import fcntl
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyarrow import timestamp
from pyarrow.parquet import read_schema

from qmq.cli import main
from qmq.model.dots import Dot
from qmq.spark.jobs.archive import archive
from qmq.spark.jobs.dead_letters import BadList, dead_letters, read_dead_letters, read_list, redrive_lines
from qmq.spark.jobs.messages import read_messages
from qmq.spark.jobs.replay import choose, choose_listed, plan, send
from qmq.spark.jobs.tables import LOCK, OWN_COLUMNS, TableError, read_table, tables
from qmq.spark.reading.options import read_options
from qmq.storage.format.failure_records import pack_dead
from qmq.storage.format.record import RecordKind
from tests.spark.rig import START_US, A, batch, messages, node, record
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
    send(choose_listed(spark, messages, listed), {"servers": stub.address}, name="again")

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


def test_bodies_become_columns_and_drift_is_reported_and_no_body_is_lost(spark: Any, tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    journal.segment([batch(A, 1, [record(n, b'{"n": %d, "who": {"name": "x"}}' % n) for n in range(1, 4)])])
    given, table = {"path": str(tmp_path / "a")}, str(tmp_path / "table")

    first = tables(spark, given, table)
    broken = b'{"n": "\xff"}'
    odd = [record(4, b'{"n": "four", "more": true}'), record(5, b"no json"), record(6, b'{"n": 6}'), record(7, broken)]
    journal.segment([batch(A, 4, odd)], {A: 3})
    second = tables(spark, given, table)
    third = tables(spark, given, table)
    node(tmp_path, "behind").segment([batch(A, 1, messages(1, 2))])
    behind = tables(spark, {"path": str(tmp_path / "behind")}, table)

    assert (first.rows, first.drift.any, second.rows, third.rows, behind.rows) == (3, False, 4, 0, 0)
    assert tables(spark, given, table).rows == 0
    assert second.drift.new == {"more": "boolean"} and second.drift.changed == {"n": ("bigint", "string")}
    assert second.drift.unparsed == 2 and "who.name" in second.drift.removed
    rows = {row.message_id: row for row in read_table(spark, table).selectExpr("*", "to_json(body) as json").collect()}
    assert [rows[f"{A}-{n}"].n for n in range(1, 7)] == [1, 2, 3, None, None, 6]
    assert json.loads(rows[f"{A}-4"].json) == {"n": "four", "more": True} and rows[f"{A}-5"].json is None
    assert [bytes(rows[f"{A}-{n}"].unparsed) for n in (5, 7)] == [b"no json", broken] and rows[
        f"{A}-4"
    ].unparsed is None
    with pytest.raises(TableError, match="was started with"):
        tables(spark, {**given, "subscribe": "/queue/x"}, table)


def test_of_a_body_with_more_than_one_json_value_every_byte_is_kept(spark: Any, tmp_path: Path) -> None:
    """Lines of NDJSON are such a body. Each of these begins with a value, or ends with one."""
    more = [
        b'{"a": 1}{"b": 2}',
        b'{"a": 1}\n{"a": 2}\n',
        b'{"a": 1},{"b": 2}',
        b'{"a": 1},',
        b'{"a": 1}]',
        b'{"a": 1}}',
        b'{"a": 1}]}',
        b'{"a": 1}],"b":[2',
        b'{"a": 1}},"b":{"c": 2',
        b'{"a": 1} x',
        b"[1] 2",
        b"1 2",
        b'"x" "y"',
    ]
    whole = [b'{"a": 1}', b' {"a": 1}\r\n', b'{"a": 1, "b": {}}', b"[1, 2]", b'"x"', b"1", b"null"]
    bodies = [*more, *whole]
    node(tmp_path, "a").segment([batch(A, 1, [record(n, body) for n, body in enumerate(bodies, 1)])])
    table = str(tmp_path / "table")

    done = tables(spark, {"path": str(tmp_path / "a")}, table)

    rows = read_table(spark, table).selectExpr("message_id", "to_json(body) as json", "unparsed", "a").collect()
    found = {bodies[int(row.message_id.rpartition("-")[2]) - 1]: row for row in rows}
    assert {body: bytes(row.unparsed) for body, row in found.items() if row.unparsed is not None} == {
        body: body for body in more
    }
    assert {body: json.loads(row.json) for body, row in found.items() if row.json is not None} == {
        body: json.loads(body) for body in whole
    }
    assert done.drift.unparsed == len(more) and sum(row.a == 1 for row in rows) == 3


def test_times_in_a_table_are_utc_in_microseconds_for_every_reader(spark: Any, tmp_path: Path) -> None:
    node(tmp_path, "a").segment([batch(A, 1, [record(1, b'{"n": 1}')])])

    tables(spark, {"path": str(tmp_path / "a")}, str(tmp_path / "table"))

    (file,) = tmp_path.glob("table/run=0/*.parquet")
    assert read_schema(file).field("timestamp").type == timestamp("us", tz="UTC")


def test_a_table_of_a_time_goes_on_with_what_is_of_that_time(spark: Any, tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    journal.segment([batch(A, 1, [record(n, b'{"n": %d}' % n) for n in range(1, 10)])])
    times = {"startingTimestamp": str(START_US // 1000 + 5), "endingTimestamp": str(START_US // 1000 + 12)}
    given, table = {"path": str(tmp_path / "a"), **times}, str(tmp_path / "table")

    first = tables(spark, given, table)
    journal.segment([batch(A, 10, [record(n, b'{"n": %d}' % n) for n in range(10, 20)])], {A: 9})
    second = tables(spark, given, table)

    assert (first.rows, second.rows) == (5, 2)
    assert sorted(row.n for row in read_table(spark, table).collect()) == list(range(5, 12))
    with pytest.raises(TableError, match="was started with"):
        tables(spark, {"path": given["path"]}, table)


def test_the_first_bodies_that_have_fields_decide_about_the_columns(spark: Any, tmp_path: Path) -> None:
    journal = node(tmp_path, "a")
    journal.segment([batch(A, 1, [record(1, b"no json"), record(2, b"[]")])])
    given, table = {"path": str(tmp_path / "a")}, str(tmp_path / "table")

    first = tables(spark, given, table)
    journal.segment([batch(A, 3, [record(3, b'{"n": 3}')])], {A: 2})
    second = tables(spark, given, table)

    assert (first.rows, first.schema, second.rows, second.drift.any) == (2, "", 1, False)
    assert sorted(row.n or 0 for row in read_table(spark, table).collect()) == [0, 0, 3]


def test_only_objects_have_fields_that_become_columns(spark: Any, tmp_path: Path) -> None:
    bodies = [b'{"n": 1}', b"5", b'"text"', b"[1]", b"true", b"null"]
    node(tmp_path, "a").segment([batch(A, 1, [record(n, body) for n, body in enumerate(bodies, 1)])])
    table = str(tmp_path / "table")

    done = tables(spark, {"path": str(tmp_path / "a")}, table)

    assert (done.rows, done.drift.any) == (6, False)
    assert read_table(spark, table).columns == [*OWN_COLUMNS, "n"]


def test_fields_that_are_called_as_our_columns_get_other_names(spark: Any, tmp_path: Path) -> None:
    """For Spark, capitals make no difference."""
    bodies = [b'{"Timestamp": 1, "body": 2, "body_body": 3}']
    node(tmp_path, "a").segment([batch(A, 1, [record(n, body) for n, body in enumerate(bodies, 1)])])
    table = str(tmp_path / "table")

    tables(spark, {"path": str(tmp_path / "a")}, table)

    (row,) = read_table(spark, table).select("body_Timestamp", "body_body", "body_body_body").collect()
    assert tuple(row) == (1, 3, 2)


def test_of_fields_that_differ_by_capitals_the_frequent_one_is_a_column_and_the_others_are_reported(
    spark: Any, tmp_path: Path
) -> None:
    bodies = [
        *[b'{"order": %d, "list": [{"y": 0}, {"x": 3}], "of": {"\'id"": 1}}' % n for n in range(5)],
        b'{"ORDER": 5, "list": [{"X": 4, "x": 5}], "of": {"\'ID"": "six"}}',
        b'{"Order": "six", "list": []}',
    ]
    bodies = [body.replace(b"'id\"", b"'id\\\"").replace(b"'ID\"", b"'ID\\\"") for body in bodies]
    node(tmp_path, "a").segment([batch(A, 1, [record(n, body) for n, body in enumerate(bodies, 1)])])
    table = str(tmp_path / "table")

    done = tables(spark, {"path": str(tmp_path / "a")}, table)

    rows = read_table(spark, table).selectExpr("*", "to_json(body) as json").orderBy("message_id").collect()
    assert done.drift.new == {"ORDER": "bigint", "Order": "string", "list[].X": "bigint", "of.'ID\"": "string"}
    assert [row.order for row in rows] == [0, 1, 2, 3, 4, None, None]
    assert [one.x for one in rows[5].list] == [5] and rows[0].of.asDict() == {"'id\"": 1}
    assert json.loads(rows[5].json)["ORDER"] == 5


def test_of_equally_frequent_fields_that_differ_by_capitals_one_is_a_column(spark: Any, tmp_path: Path) -> None:
    node(tmp_path, "a").segment([batch(A, 1, [record(1, b'{"id": 1, "Id": 2}')])])
    table = str(tmp_path / "table")

    done = tables(spark, {"path": str(tmp_path / "a")}, table)

    assert done.drift.new == {"id": "bigint"}
    assert [row.Id for row in read_table(spark, table).collect()] == [2]


def test_a_field_that_is_called_as_sparks_column_for_broken_lines_is_a_field(spark: Any, tmp_path: Path) -> None:
    bodies = [b'{"_corrupt_record": 1, "n": 2}', b'{"n": 3}']
    node(tmp_path, "a").segment([batch(A, 1, [record(n, body) for n, body in enumerate(bodies, 1)])])
    table = str(tmp_path / "table")

    tables(spark, {"path": str(tmp_path / "a")}, table)

    rows = read_table(spark, table).orderBy("message_id").collect()
    assert [(row["_corrupt_record"], row.n) for row in rows] == [(1, 2), (None, 3)]


def test_two_runs_do_not_add_to_a_table_at_once(tmp_path: Path) -> None:
    nothing: Any = None
    (tmp_path / "table").mkdir()
    with open(tmp_path / "table" / LOCK, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        with pytest.raises(TableError, match="another run"):
            tables(nothing, {"path": str(tmp_path)}, str(tmp_path / "table"))
