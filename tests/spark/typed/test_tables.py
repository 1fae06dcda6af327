"""Typed tables, from logs whose bodies are known, and what other readers see of them."""

import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import polars
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from qmq.cli import main
from qmq.definitions.definition import Definition, Key, Version
from qmq.spark.archive import table as archive_tables
from qmq.spark.archive.table import ArchiveError, Overtaken
from qmq.spark.archive.upkeep import compact
from qmq.spark.jobs.archive import read_archive
from qmq.spark.reading.options import read_options
from qmq.spark.typed import job
from qmq.spark.typed.job import OWN, Tabled, tables
from qmq.storage.format.definition_record import pack_definition
from qmq.storage.format.record import RecordKind
from qmq.wire.avro import read_schema
from qmq.wire.avro.schema import MARK
from tests.spark.rig import START_US, A, B, Journal, batch, messages, node, record

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "odd", "type": ["null", "string", "long"]},
    ],
}
LATER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string"}]}
AN_ORDER = {
    "id": 1,
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "day": date(2026, 1, 2),
    "price": Decimal("12.50"),
    "state": "PAID",
    "before": "NEW",
    "lines": [{"a": 1}, {}],
    "mark": b"\x00\xff",
    "odd": 7,
}


@pytest.fixture
def log(tmp_path: Path) -> Journal:
    return node(tmp_path, "a")


def fill(log: Journal, *bodies: bytes, first: int = 1) -> None:
    records = [record(n, body) for n, body in enumerate(bodies, first)]
    log.segment([batch(A, first, records)], {A: first - 1})


def run(tmp_path: Path, **more: Any) -> Tabled:
    given = more.pop("given", {})
    return tables(read_options({"path": str(tmp_path / "a"), **given}), str(tmp_path / "table"), **more)


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    found = (
        DeltaTable(tmp_path / "table").to_pyarrow_table().sort_by([("origin", "ascending"), ("sequence", "ascending")])
    )
    return list(found.to_pylist())


def avro(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    file = BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return MARK + read_schema(schema).fingerprint.to_bytes(8, "little") + file.getvalue()


def definition(sequence: int, schema: dict[str, Any]) -> bytes:
    change = Definition(Key("schema", "orders"), Version(START_US, 0, A, sequence), json.dumps(schema))
    return record(sequence, pack_definition(change), "", kind=RecordKind.DEFINITION)


def test_bodies_become_columns_and_drift_is_reported_and_no_body_is_lost(log: Journal, tmp_path: Path) -> None:
    fill(log, *(b'{"n": %d, "who": {"name": "x"}}' % n for n in range(1, 4)))
    broken = b'{"n": "\xff"}'

    first = run(tmp_path)
    fill(log, b'{"n": "four", "more": true}', b"no json", b'{"n": 6}', broken, first=4)
    second = run(tmp_path)
    third = run(tmp_path)

    assert (first.done.rows, second.done.rows, third.done.rows) == (3, 4, 0)
    assert first.columns == {"n": "int64", "who.name": "string"} and not first.drift.new
    assert second.drift.new == {"more": "bool"} and second.drift.changed == {"n": ("int64", "string")}
    assert second.drift.unparsed == {"no JSON": 2} and not second.added
    found = rows(tmp_path)
    assert [row["n"] for row in found] == [1, 2, 3, None, None, 6, None] and found[0]["who"] == {"name": "x"}
    assert json.loads(found[3]["body"]) == {"n": "four", "more": True} and found[3]["unparsed"] is None
    assert [(row["body"], row["unparsed"]) for row in (found[4], found[6])] == [(None, b"no json"), (None, broken)]


def test_a_run_over_logs_that_are_behind_the_table_takes_nothing_back(log: Journal, tmp_path: Path) -> None:
    fill(log, b'{"n": 1}', b'{"n": 2}', b'{"n": 3}')
    run(tmp_path)
    node(tmp_path, "behind").segment([batch(A, 1, messages(1, 2))])

    done = run(tmp_path, given={"path": str(tmp_path / "behind")})

    assert done.done.rows == 0 and len(rows(tmp_path)) == 3


def test_with_evolve_new_fields_are_columns_from_then_on(log: Journal, tmp_path: Path) -> None:
    fill(log, b'{"n": 1, "who": {"name": "x"}, "list": [{"a": 1}]}')
    run(tmp_path)
    fill(log, b'{"n": "x", "more": 2, "who": {"age": 3}, "list": [{"b": "y"}]}', first=2)

    done = run(tmp_path, evolve=True)
    compacted = compact(str(tmp_path / "table"))

    assert done.added == {"more": "int64", "who.age": "int64", "list[].b": "string"} and not done.drift.new
    assert done.drift.changed == {"n": ("int64", "string")} and compacted == (2, 1)
    one, two = rows(tmp_path)
    assert (one["who"], two["who"]) == ({"name": "x", "age": None}, {"name": None, "age": 3})
    assert (one["more"], two["more"], two["n"], two["list"]) == (None, 2, None, [{"a": None, "b": "y"}])


def test_the_first_bodies_that_have_fields_decide_about_the_columns(log: Journal, tmp_path: Path) -> None:
    fill(log, b"no json", b"[]", b"5", b'"text"', b"null", b'{"x": null, "y": []}', b"{}")
    first = run(tmp_path)
    fill(log, b'{"n": 3}', first=8)

    second = run(tmp_path)

    assert (first.columns, second.columns) == ({}, {"n": "int64"})
    assert [row["n"] for row in rows(tmp_path)] == [None] * 7 + [3]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1}{"b": 2}',
        b'{"a": 1}\n{"a": 2}\n',
        b'{"a": 1},',
        b'{"a": 1}]',
        b"1 2",
        b"",
        b'{"a": NaN}',
        b'{"a": 1e',
        b'\xef\xbb\xbf{"a": 1}',
        b"[" * 5000,
        b"1" * 5000,
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_of_a_body_that_is_not_one_value_of_json_every_byte_is_kept(log: Journal, tmp_path: Path, body: bytes) -> None:
    """Lines of NDJSON are such a body."""
    fill(log, b'{"a": 1}', body, b' {"a": 3}\r\n')

    done = run(tmp_path)

    assert [(row["a"], row["unparsed"]) for row in rows(tmp_path)] == [(1, None), (None, body), (3, None)]
    assert done.drift.unparsed == {"no JSON": 1} and rows(tmp_path)[2]["body"] == ' {"a": 3}\r\n'


@pytest.mark.parametrize(
    ("bodies", "column"),
    [
        (["1", "2.5"], [1.0, 2.5]),
        (["1", '"x"'], ["1", "x"]),
        (['{"a": 1}', "[2]"], ['{"a": 1}', "[2]"]),
        (["true", "1"], ["true", "1"]),
        (["1", str(2**70)], [1, None]),
        (["1.5", "1e999"], [1.5, None]),
        (["1.5", "1" + "0" * 400], [1.5, None]),
        (['"x"', '"\\ud800"'], ["x", None]),
        (["{}", "null"], ["{}", None]),
        (['{"": 1, "\\u0000": 2}', "{}"], ['{"": 1, "\\u0000": 2}', "{}"]),
    ],
)
def test_values_that_do_not_fit_their_column_are_null_and_in_the_body(
    log: Journal, tmp_path: Path, bodies: list[str], column: list[Any]
) -> None:
    fill(log, *(b'{"f": %s}' % body.encode() for body in bodies))

    run(tmp_path)

    assert [row["f"] for row in rows(tmp_path)] == column
    assert [row["body"] for row in rows(tmp_path)] == [f'{{"f": {body}}}' for body in bodies]


def test_of_fields_that_differ_by_capitals_the_frequent_one_is_a_column(log: Journal, tmp_path: Path) -> None:
    fill(
        log,
        b'{"ORDER": 5, "list": [{"X": 4, "x": 5}]}',
        b'{"Order": "six"}',
        *(b'{"order": %d, "list": [{"x": 3}]}' % n for n in range(5)),
    )

    done = run(tmp_path)

    assert done.drift.new == {"ORDER": "int64", "Order": "string", "list[].X": "int64"}
    found = rows(tmp_path)
    assert [row["order"] for row in found] == [None, None, 0, 1, 2, 3, 4]
    assert found[0]["list"] == [{"x": 5}] and json.loads(found[0]["body"])["ORDER"] == 5


def test_fields_that_are_called_as_our_columns_get_other_names(log: Journal, tmp_path: Path) -> None:
    fill(log, b'{"Timestamp": 1, "body": 2, "body_body": 3, "day": 4}')

    done = run(tmp_path)
    fill(log, b'{"body": 5}', first=2)
    run(tmp_path)

    one, two = rows(tmp_path)
    assert (one["body_Timestamp"], one["body_body"], one["body_day"], two["body_body"]) == (1, 2, 4, 5)
    assert done.drift.new == {"body_body": "int64"}


def test_names_as_ids_do_not_make_a_column_each(log: Journal, tmp_path: Path) -> None:
    fill(log, *(json.dumps({f"id-{n}-{m}": 1 for m in range(300)}).encode() for n in range(5)))

    done = run(tmp_path)

    assert len(done.columns) == 1000 and all(row["body"] for row in rows(tmp_path))


def test_a_table_keeps_to_its_destinations_and_times(log: Journal, tmp_path: Path) -> None:
    fill(log, *(b'{"n": %d}' % n for n in range(1, 10)))
    times = {"startingTimestamp": str(START_US // 1000 + 5), "endingTimestamp": str(START_US // 1000 + 12)}
    first = run(tmp_path, given=times)
    fill(log, *(b'{"n": %d}' % n for n in range(10, 20)), first=10)

    second = run(tmp_path, given=times)

    assert (first.done.rows, second.done.rows) == (5, 2)
    assert [row["n"] for row in rows(tmp_path)] == list(range(5, 12))
    with pytest.raises(ArchiveError, match="was started as"):
        run(tmp_path)


def test_every_reader_finds_rows_by_every_column(log: Journal, tmp_path: Path, spark: Any) -> None:
    long = "z" * 5000
    fill(
        log,
        *(json.dumps({"n": n, "f": n / 2, "b": n > 1, "t": f"{long}{n}", "s": {"x": n}}).encode() for n in range(3)),
    )

    run(tmp_path)

    table = str(tmp_path / "table")
    data = DeltaTable(table).to_pyarrow_dataset()
    wanted = {"n": 2, "f": 1.0, "b": True, "t": f"{long}2", "sequence": 3}
    for name, value in wanted.items():
        assert data.to_table(filter=pc.field(name) == value).num_rows == 1, name
        assert polars.scan_delta(table).filter(polars.col(name) == value).collect().height == 1, name
        assert duckdb.execute(f"select count(*) from data where {name} = $1", [value]).fetchall() == [(1,)], name
    found = read_archive(spark, table).where("s.x = 2 and b").collect()
    assert [(row.n, row.timestamp.microsecond) for row in found] == [(2, 3000)]
    assert read_archive(spark, table).columns == [*OWN.names, "n", "f", "b", "t", "s", "body", "unparsed", "day"]


def test_avro_bodies_are_decoded_by_the_schemas_in_the_log(log: Journal, tmp_path: Path) -> None:
    fits, other = avro(ORDER, AN_ORDER), MARK + bytes(8)
    log.segment([batch(A, 1, [definition(1, ORDER), record(2, fits), record(3, other), record(4, fits[:-1])])])

    done = run(tmp_path, given={"subscribe": "/queue/jobs"})

    one, two, three = rows(tmp_path)
    expected = {**AN_ORDER, "odd": "7", "lines": [[("a", 1)], []], "body_day": AN_ORDER["day"]}
    del expected["day"]
    assert {name: one[name] for name in expected} == expected
    assert json.loads(one["body"])["mark"] == "AP8=" and one["unparsed"] is None
    assert (two["unparsed"], three["unparsed"]) == (other, fits[:-1])
    assert done.drift.unparsed == {
        "Avro with the unknown fingerprint 0000000000000000": 1,
        "Avro that does not fit its schema": 1,
    }


@pytest.mark.parametrize("times", [(datetime.min, datetime(999, 5, 5)), (datetime.max, datetime(1969, 12, 31))])
def test_times_at_the_edges_of_the_calendar_are_found_by_every_reader(
    log: Journal, tmp_path: Path, times: tuple[datetime, ...]
) -> None:
    schema = {"type": "record", "name": "T", "fields": [ORDER["fields"][1]]}
    bodies = [avro(schema, {"at": time.replace(tzinfo=UTC)}) for time in times]
    log.segment([batch(A, 1, [definition(1, schema), *(record(n, body) for n, body in enumerate(bodies, 2))])])

    run(tmp_path, given={"subscribe": "/queue/jobs"})

    table = str(tmp_path / "table")
    data = DeltaTable(table).to_pyarrow_dataset()
    for time in (time.replace(tzinfo=UTC) for time in times):
        assert data.to_table(filter=pc.field("at") == time).num_rows == 1
        assert polars.scan_delta(table).filter(polars.col("at") == time).collect().height == 1


def test_numbers_that_json_has_not_are_text_in_the_body(log: Journal, tmp_path: Path) -> None:
    fields = [{"name": "x", "type": "double"}, {"name": "xs", "type": {"type": "array", "items": "double"}}]
    schema = {"type": "record", "name": "F", "fields": fields}
    body = avro(schema, {"x": float("nan"), "xs": [1.5, float("-inf")]})
    log.segment([batch(A, 1, [definition(1, schema), record(2, body)])])

    run(tmp_path, given={"subscribe": "/queue/jobs"})

    (row,) = rows(tmp_path)
    assert json.loads(row["body"], parse_constant=pytest.fail) == {"x": "NaN", "xs": [1.5, "-Infinity"]}


def test_a_later_schema_adds_its_columns_and_the_first_one_is_known_without_the_log(
    log: Journal, tmp_path: Path
) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    fill(log, avro(ORDER, AN_ORDER))
    unknown = run(tmp_path, schemas=[str(tmp_path / "order.avsc")])
    later = avro(LATER, {**AN_ORDER, "id": 3, "note": "hello"})
    log.segment([batch(A, 2, [definition(2, LATER), record(3, later), record(4, avro(ORDER, AN_ORDER))])], {A: 1})

    done = run(tmp_path)

    assert not unknown.drift.unparsed and not done.drift.unparsed and done.added == {"note": "string"}
    assert [(row["id"], row["note"]) for row in rows(tmp_path)] == [(1, None), (3, "hello"), (1, None)]


def test_json_beside_avro_is_reported_where_it_has_no_column(log: Journal, tmp_path: Path) -> None:
    log.segment([batch(A, 1, [definition(1, ORDER), record(2, avro(ORDER, AN_ORDER))])])
    run(tmp_path)
    fill(log, b'{"id": 9, "price": "cheap", "extra": 1}', first=3)

    done = run(tmp_path)

    assert done.drift.new == {"extra": "int64"} and done.drift.changed == {"price": ("decimal128(10, 2)", "string")}
    assert (rows(tmp_path)[1]["id"], rows(tmp_path)[1]["price"]) == (9, None)


def descriptors(path: Path) -> Any:
    """A file of descriptors, and the class of its message."""
    kind = FieldDescriptorProto
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3", dependency=[TIMESTAMP])
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    message.field.add(name="tags", number=2, type=kind.TYPE_STRING, label=kind.LABEL_REPEATED)
    at = message.field.add(name="at", number=3, type=kind.TYPE_MESSAGE, label=kind.LABEL_OPTIONAL)
    at.type_name = ".google.protobuf.Timestamp"
    entry = message.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kind.TYPE_DOUBLE, label=kind.LABEL_OPTIONAL)
    counts = message.field.add(name="counts", number=4, type=kind.TYPE_MESSAGE, label=kind.LABEL_REPEATED)
    counts.type_name = ".shop.Order.CountsEntry"
    states = file.enum_type.add(name="State")
    states.value.add(name="NEW", number=0)
    states.value.add(name="PAID", number=1)
    state = message.field.add(name="state", number=5, type=kind.TYPE_ENUM, label=kind.LABEL_OPTIONAL)
    state.type_name = ".shop.State"
    parent = message.field.add(name="parent", number=6, type=kind.TYPE_MESSAGE, label=kind.LABEL_OPTIONAL)
    parent.type_name = ".shop.Order"
    time = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(time)
    path.write_bytes(FileDescriptorSet(file=[time, file]).SerializeToString())
    pool = DescriptorPool()
    pool.Add(time)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


TIMESTAMP = "google/protobuf/timestamp.proto"


def test_protobuf_bodies_are_decoded_by_descriptors(log: Journal, tmp_path: Path) -> None:
    make = descriptors(tmp_path / "order.desc")
    order = make(id=7, tags=["a", "b"], counts={"x": 1.5}, state=1, parent=make(id=6))
    order.at.FromDatetime(datetime(2026, 1, 2, tzinfo=UTC))
    whole, more = order.SerializeToString(), make(id=8).SerializeToString() + b"\x78\x01"
    fill(log, whole, more, b"\xff")

    done = run(tmp_path, protobuf=(str(tmp_path / "order.desc"), "shop.Order"))

    one, two, three = rows(tmp_path)
    assert (one["id"], one["tags"], one["counts"], one["state"]) == (7, ["a", "b"], [("x", 1.5)], "PAID")
    assert one["at"] == datetime(2026, 1, 2, tzinfo=UTC) and one["unparsed"] is None
    assert json.loads(one["parent"])["id"] == 6 and "parent" in done.columns, "a message in itself is text"
    assert json.loads(one["body"])["at"] == "2026-01-02T00:00:00+00:00"
    assert (two["id"], two["at"], two["unparsed"]) == (8, None, more) and three["unparsed"] == b"\xff"
    assert done.drift.unparsed == {"Protobuf with fields that the descriptors do not have": 1, "not of the message": 1}


def test_with_a_key_the_table_has_the_last_message_of_each_value(log: Journal, tmp_path: Path) -> None:
    fill(
        log, b'{"order id": "x", "n": 1}', b'{"order id": "y", "n": 2}', b"none", b'{"order id": "x", "n": 3}', b"none"
    )
    run(tmp_path, key="order id")
    other = node(tmp_path, "b")
    early = record(1, b'{"order id": "y", "n": 0}', at_us=START_US)
    late = record(2, b'{"order id": "x", "n": 5}', at_us=START_US + 86_400_000_000)
    other.segment([batch(B, 1, [early, late, record(3, b'{"order id": "z", "n": 6}')])])
    both = {"path": f"{tmp_path / 'a'},{tmp_path / 'b'}"}

    done = run(tmp_path, given=both, key="order id")
    again = run(tmp_path, given=both, key="order id")

    assert sorted((row["order id"] or "", row["n"]) for row in rows(tmp_path)) == [
        ("", None),
        ("", None),
        ("x", 5),
        ("y", 2),
        ("z", 6),
    ]
    assert (done.done.rows, again.done.rows) == (3, 0)
    with pytest.raises(ArchiveError, match="was started as"):
        run(tmp_path, given=both)
    with pytest.raises(ArchiveError, match="the key nothing is no column"):
        tables(read_options(both), str(tmp_path / "other"), key="nothing")


@pytest.mark.parametrize("key", ["", "n"])
def test_of_two_runs_at_once_the_later_commit_is_refused(
    log: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    fill(log, b'{"n": 1}')
    run(tmp_path, key=key)
    fill(log, b'{"n": 2}', first=2)

    def late(*given: Any, **more: Any) -> None:
        monkeypatch.setattr(job, "commit", archive_tables.commit)
        run(tmp_path, key=key)
        archive_tables.commit(*given, **more)

    monkeypatch.setattr(job, "commit", late)
    with pytest.raises(Overtaken):
        run(tmp_path, key=key)

    assert [row["n"] for row in rows(tmp_path)] == [1, 2]


def test_a_table_of_an_earlier_version_is_refused_with_what_to_do(log: Journal, tmp_path: Path) -> None:
    fill(log, b'{"n": 1}')
    (tmp_path / "table" / "run=0").mkdir(parents=True)
    (tmp_path / "table" / "_qmq.json").write_text("{}")

    result = CliRunner().invoke(main, ["pipeline", "tables", str(tmp_path / "table"), "--path", str(tmp_path / "a")])

    assert result.exit_code == 1 and "earlier version, which is not continued: give a new directory" in result.output


def test_the_command_says_what_differs(log: Journal, tmp_path: Path) -> None:
    fill(log, b'{"n": 1}', b"{")
    given = ["pipeline", "tables", str(tmp_path / "table"), "--path", str(tmp_path / "a")]
    first = CliRunner().invoke(main, given)
    fill(log, b'{"n": "x", "more": 1}', first=3)

    second = CliRunner().invoke(main, [*given, "--evolve"])
    as_json = CliRunner().invoke(main, [*given, "--json"])

    assert first.output == "DRIFT 1 bodies in unparsed: no JSON\n2 messages added, in 1 commit\n"
    assert second.output.splitlines() == [
        "new column more (int64)",
        "DRIFT n is string and was int64: null if a value does not fit",
        "1 message added, in 1 commit",
    ]
    assert json.loads(as_json.output)["columns"] == {"n": "int64", "more": "int64"}


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--protobuf", "x.desc"], "--protobuf must be FILE:MESSAGE"),
        (["--protobuf", "{file}:shop.Order"], "has no descriptors of the message shop.Order"),
        (["--schema", "{file}"], "has no Avro schema"),
        (["--schema", "/nowhere"], "No such file"),
        (["--key", "x"], "the key x is no column that holds one value"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(log: Journal, tmp_path: Path, more: list[str], problem: str) -> None:
    fill(log, b'{"n": 1}')
    (tmp_path / "file").write_bytes(b"nonsense")
    chosen = [text.replace("{file}", str(tmp_path / "file")) for text in more]

    result = CliRunner().invoke(
        main, ["pipeline", "tables", str(tmp_path / "table"), "--path", str(tmp_path / "a"), *chosen]
    )

    assert result.exit_code in (1, 2) and problem in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(("package", "extra"), [("fastavro", "avro"), ("google.protobuf", "protobuf")])
def test_a_package_that_is_missing_is_named_with_its_extra(
    log: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    descriptors(tmp_path / "order.desc")
    log.segment([batch(A, 1, [definition(1, ORDER), record(2, avro(ORDER, AN_ORDER))])])
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ArchiveError, match=rf"qmq\[{extra}\]"):
        run(tmp_path, protobuf=(str(tmp_path / "order.desc"), "shop.Order") if extra == "protobuf" else None)
