"""Avro files: what a client wrote is a batch, and no file of a few bytes stands for more than it may."""

import io
import json
from typing import Any

import fastavro
import pytest

from qmq.errors import Refused
from qmq.gateways.http.avro import container, messages_in, schema_page

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
