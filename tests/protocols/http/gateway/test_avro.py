"""Avro files: a file of a client is a batch, and a small file cannot stand for more messages than allowed."""

import io
import json
import zlib
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.errors import Refused
from qmq.protocols.http.gateway.avro import container, messages_in, schema_page
from qmq.protocols.http.gateway.avro_reader import MAGIC

SCHEMA = json.loads(schema_page())


def written(records: list[dict[str, Any]], schema: object = SCHEMA, codec: str = "null") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec=codec)
    return out.getvalue()


def code_of(body: bytes, messages_max: int = 10) -> str:
    with pytest.raises(Refused) as refused:
        messages_in(body, messages_max)
    return refused.value.code


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_records_are_messages_with_the_fields_that_say_something(codec: str) -> None:
    records = [{"body": b"\xff%d" % number, "headers": {"kind": "b"}, "priority": 9} for number in range(1000)]

    messages = messages_in(written(records, codec=codec), 1000)

    assert messages == records


def test_a_writer_may_have_a_schema_of_its_own() -> None:
    schema = {"type": "record", "name": "Mine", "fields": [{"name": "body", "type": "bytes"}]}

    assert messages_in(written([{"body": b"one"}], schema), 10) == [{"body": b"one"}]


def test_a_received_file_can_be_sent_again() -> None:
    received = {"id": "a-1", "destination": "/queue/q", "ack_token": "t", "redelivered": True, "delivery_count": 2}

    body = container([{**received, "body": b"x", "headers": {"a": "b"}, "content_type": "text/plain"}])

    assert next(fastavro.reader(io.BytesIO(body)))["delivery_count"] == 2
    assert messages_in(body, 10) == [{"body": b"x", "headers": {"a": "b"}, "content_type": "text/plain"}]


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "null"},
        {"type": "map", "values": "null"},
        {"type": "fixed", "name": "F", "size": 1 << 30},
        ["null", {"type": "array", "items": "null"}],
    ],
)
def test_a_schema_whose_values_cost_nothing_to_write_is_refused(kind: object) -> None:
    schema = {"type": "record", "name": "M", "fields": [{"name": "headers", "type": kind}]}
    value: object = None if isinstance(kind, list) else {} if "map" in str(kind) else []
    body = written([] if "fixed" in str(kind) else [{"headers": value}], schema)

    assert code_of(body) == "bad-body"


def test_records_of_no_bytes_are_counted() -> None:
    schema = {"type": "record", "name": "M", "fields": [{"name": "ttl", "type": "null"}]}

    assert code_of(written([{"ttl": None}] * 11, schema), 10) == "bad-body"


def test_a_packed_file_is_bounded_by_what_it_unpacks_to() -> None:
    body = written([{"body": bytes(40 << 20)}] * 2, codec="deflate")

    assert len(body) < 1 << 20
    assert code_of(body) == "body-too-large"


def test_another_codec_is_refused() -> None:
    assert code_of(written([{"body": b"x"}], codec="bzip2")) == "bad-body"


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_file_that_is_cut_anywhere_is_refused_or_has_whole_messages(codec: str) -> None:
    records = [{"body": b"one"}, {"body": b"two"}]
    body = written(records, codec=codec)

    for length in range(len(body)):
        try:
            assert messages_in(body[:length], 10) in ([], records)
        except Refused as refused:
            assert refused.code == "bad-body"


def number(value: int) -> bytes:
    """A long that is not negative."""
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def file_of(kind: object, count: int, block: bytes, codec: str = "null", fields: int = 1) -> bytes:
    """A file with one block, whatever that has."""
    schema = {"type": "record", "name": "M", "fields": [{"name": f"f{n}", "type": kind} for n in range(fields)]}
    out = io.BytesIO(MAGIC)
    out.seek(0, io.SEEK_END)
    metadata = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    fastavro.schemaless_writer(out, {"type": "map", "values": "bytes"}, metadata)
    if codec == "deflate":
        packer = zlib.compressobj(9, wbits=-15)
        block = packer.compress(block) + packer.flush()
    return out.getvalue() + bytes(16) + number(count) + number(len(block)) + block + bytes(16)


MAP = {"type": "map", "values": "string"}


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_map_of_many_equal_entries_is_refused_before_it_is_read(codec: str) -> None:
    entries = 4_000_000
    body = file_of(MAP, 1, number(entries) + b"\0\0" * entries + b"\0", codec)

    assert code_of(body) == "bad-body"


def test_a_number_of_many_digits_is_bytes() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 9_000_000, "scale": 2}
    digits = b"\x7f" * 3_000_000

    assert messages_in(file_of(kind, 1, number(len(digits)) + digits), 1) == [{"f0": digits}]


def test_a_schema_of_very_many_fields_is_refused() -> None:
    assert code_of(file_of("null", 10, b"", fields=101)) == "bad-body"
    assert code_of(file_of(["null"] * 101, 10, b"")) == "bad-body"
    assert code_of(file_of("null", 10, b"", fields=5000)) == "bad-body"


def test_every_simple_type_is_read_as_fastavro_does() -> None:
    kinds = ["boolean", "int", "long", "float", "double", "bytes", "string", ["null", "string"], MAP]
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    schema = {"type": "record", "name": "M", "fields": fields}
    records = [
        {"f0": sign > 0, "f1": sign * 5, "f2": sign << 40, "f3": 0.5, "f4": 0.1, "f5": b"\xff", "f6": "é", "f7": "x"}
        for sign in (1, -1)
    ]
    maps = [{f"k{n}": "v" for n in range(100)}, {"a": ""}]
    records = [{**record, "f8": entries} for record, entries in zip(records, maps, strict=True)]

    assert messages_in(written(records, schema, "deflate"), 2) == records


@given(data=st.data())
def test_a_damaged_file_is_refused_or_read(data: st.DataObject) -> None:
    body = bytearray(written([{"body": b"one", "headers": {"kind": "b"}}] * 3))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body))) :]

    try:
        messages = messages_in(bytes(body), 10)
    except Refused:
        return
    assert len(messages) <= 10


def test_a_batch_of_more_values_than_100_for_each_message_allowed_is_refused() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "headers", "type": {"type": "map", "values": "string"}}],
    }
    entries = {str(number): "" for number in range(200)}

    assert len(messages_in(written([{"headers": entries}] * 5, schema), 10)) == 5
    assert code_of(written([{"headers": entries}] * 6, schema)) == "bad-body"


def test_a_block_of_no_records_is_refused() -> None:
    file = written([{"body": b"one"}])
    sync = file[-16:]

    assert len(messages_in(file, 10)) == 1
    assert code_of(file + b"\0\0" + sync) == "bad-body"


def test_a_small_file_stands_for_few_values() -> None:
    records = [{"body": b"x", "headers": {f"{entry:02}": "" for entry in range(95)}}] * 9_999
    file = written(records, codec="deflate")

    assert len(file) < 100_000 and code_of(file, 10_000) == "bad-body"


def test_a_file_of_equal_messages_is_read_however_small_it_is() -> None:
    headers = {f"header-{number}": "value" for number in range(15)}
    records = [{"body": b"x", "headers": headers, "priority": 4, "content_type": "text/plain"}] * 10_000

    assert messages_in(written(records, codec="deflate"), 10_000) == records
