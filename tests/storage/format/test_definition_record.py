"""Records of definitions: what a peer may send, and what a start makes of others."""

import msgpack
import pytest

from qmq.definitions.definition import DEPTH_MAX, VALUE_BYTES_MAX, Definition, Key, Version
from qmq.errors import CorruptLog
from qmq.model.dots import Origin
from qmq.storage.format.definition_record import pack_definition, readable_definition, unpack_definition

A = Origin("a", 1)


def changed(text: str | None) -> Definition:
    return Definition(Key("policy", "/queue/q"), Version(5, 0, A, 1), text, Version(4, 0, A, 1))


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("text", [None, "{}", '{"a":[1,{"b":2}]}', nested(DEPTH_MAX)])
def test_a_definition_is_read_as_it_was_written(text: str | None) -> None:
    assert unpack_definition(pack_definition(changed(text))) == changed(text)


def test_the_clock_of_the_writer_is_read_as_it_was_written_and_is_left_out_if_it_is_the_time() -> None:
    later = changed("{}")._replace(version=Version(5, 1, A, 1, 3))

    assert unpack_definition(pack_definition(later)) == later
    assert (later.version.written_us, changed("{}").version.written_us) == (3, 5)
    assert len(msgpack.unpackb(pack_definition(changed("{}")))["version"]) == 5


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "5", "[1]", "null", '"a"'),
        '{"a":' + "9" * 5000 + "}",
        nested(DEPTH_MAX + 1),
        nested(5000),
        '{"a":"' + "a" * VALUE_BYTES_MAX + '"}',
    ],
    ids=lambda text: text[:10],
)
def test_a_text_that_is_no_value_is_refused_and_a_start_leaves_it_out(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = pack_definition(changed(text))

    with pytest.raises(CorruptLog, match="not a definition"):
        unpack_definition(body)
    assert readable_definition(body) is None
    assert "is left out" in caplog.text
    assert changed(text).value is None


@pytest.mark.parametrize("number", [-1, 2**64 - 1, 1.5, "1", None])
@pytest.mark.parametrize("place", [0, 1, 4, 5])
@pytest.mark.parametrize("field", ["version", "replaced"])
def test_a_number_of_a_version_has_bounds(field: str, place: int, number: object) -> None:
    skewed = changed("{}")._replace(version=Version(5, 0, A, 1, 4), replaced=Version(4, 0, A, 1, 3))
    fields = msgpack.unpackb(pack_definition(skewed))
    fields[field][place] = number

    with pytest.raises(CorruptLog, match="not a definition"):
        unpack_definition(msgpack.packb(fields))


@pytest.mark.parametrize(
    "fields", [5, [], {}, {"kind": 5}, {"name": ["a"]}, {"name": "a" * 1025}, {"version": None}, {"value": 5}]
)
def test_fields_of_another_type_are_refused(fields: object) -> None:
    if isinstance(fields, dict) and fields:
        fields = msgpack.unpackb(pack_definition(changed("{}"))) | fields

    with pytest.raises(CorruptLog):
        unpack_definition(msgpack.packb(fields))
