"""AMQP methods: our reader and writer agree with pamqp, and all bad arguments are one error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from qmq.protocols.amqp.codec.frames import Command
from qmq.protocols.amqp.codec.methods import encode_method, read_ack, read_method, read_nack, read_publish, short_string
from qmq.protocols.amqp.codec.properties import (
    NO_PROPERTIES,
    read_properties,
    read_table,
    without_header,
    write_properties,
)
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode


@given(st.text(max_size=60), st.text(max_size=60), st.booleans(), st.booleans())
def test_publish_is_read_as_pamqp_writes_it(exchange: str, key: str, mandatory: bool, immediate: bool) -> None:
    method = commands.Basic.Publish(0, "", "", mandatory, immediate)
    method.exchange, method.routing_key = exchange, key
    method.validate = lambda: None  # type: ignore[method-assign]

    assert read_publish(method.marshal()) == (exchange, key, mandatory | immediate << 1)


def test_acks_are_read_as_pamqp_writes_them() -> None:
    assert read_ack(commands.Basic.Ack(9, True).marshal()) == (9, True)
    assert read_nack(commands.Basic.Nack(1 << 40, False, True).marshal()) == (1 << 40, False, True)
    assert read_nack(commands.Basic.Nack(2, True, False).marshal()) == (2, True, False)


@pytest.mark.parametrize("read", [read_publish, read_ack, read_nack])
@given(data=st.binary(max_size=12))
def test_bad_arguments_are_a_syntax_error(read: object, data: bytes) -> None:
    try:
        read(data)  # type: ignore[operator]
    except AmqpRefusal as refusal:
        assert refusal.reply is ReplyCode.SYNTAX_ERROR


@given(st.sampled_from([(50, 10), (60, 20), (10, 11), (40, 10), (10, 31), (50, 20)]), st.binary(max_size=60))
def test_any_arguments_are_a_method_or_a_syntax_error(kind: tuple[int, int], data: bytes) -> None:
    try:
        read_method(Command(1, *kind, data))
    except AmqpRefusal as refusal:
        assert refusal.reply is ReplyCode.SYNTAX_ERROR


def test_an_unknown_method_is_command_invalid() -> None:
    with pytest.raises(AmqpRefusal, match="no method 99 of the class 60") as caught:
        read_method(Command(1, 60, 99, b""))
    assert caught.value.reply is ReplyCode.COMMAND_INVALID


def test_a_method_survives_its_encoding() -> None:
    data = encode_method(commands.Queue.Declare(queue="jobs", durable=True, arguments={"x-expires": 5}))

    method = read_method(Command(1, 50, 10, data[4:]))

    assert isinstance(method, commands.Queue.Declare)
    assert (method.queue, method.durable, method.arguments) == ("jobs", True, {"x-expires": 5})


def test_a_deprecated_method_is_read_without_a_warning() -> None:
    method = read_method(Command(1, 60, 100, b"\x01"))

    assert isinstance(method, commands.Basic.RecoverAsync)
    assert method.requeue is True


def test_properties_survive_as_bytes() -> None:
    block = write_properties(commands.Basic.Properties(priority=3, headers={"a": [1, {"b": True}]}, reply_to="q"))

    assert write_properties(read_properties(block)) == block
    assert read_properties(block).headers == {"a": [1, {"b": True}]}


@given(st.binary(max_size=80))
def test_any_properties_are_read_or_refused(block: bytes) -> None:
    try:
        read_properties(block)
    except AmqpRefusal as refusal:
        assert refusal.reply is ReplyCode.SYNTAX_ERROR


def test_tables_that_are_nested_too_deeply_are_refused() -> None:
    table = b""
    for _ in range(3000):
        table = b"\x01aF" + len(table).to_bytes(4, "big") + table

    with pytest.raises(AmqpRefusal, match="a table cannot be read"):
        read_table(len(table).to_bytes(4, "big") + table)


def test_a_text_that_is_too_long_is_cut_between_characters() -> None:
    assert short_string("x" + "é" * 200) == bytes([255]) + ("x" + "é" * 127).encode()
    assert short_string("é" * 200) == bytes([254]) + ("é" * 127).encode()


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x00",
        b"\x00\x01",
        b"\x80\x00\x05abc",
        b"\x80\x00\x01ab",
        b"\x20\x00\x00\x00\x00\x09\x01aS\x00\x00\x00\xffx",
        b"\x20\x00\x00\x00\x00\x03\x01aQ",
        b"\x20\x00\x00\x00\x00\x02\x01a",
    ],
)
def test_properties_that_are_not_whole_are_refused(block: bytes) -> None:
    with pytest.raises(AmqpRefusal, match="cannot be read"):
        read_properties(block)


VALUES = st.recursive(
    st.booleans() | st.integers(-(1 << 31), (1 << 31) - 1) | st.text(max_size=8) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), VALUES, max_size=4), st.integers(0, 255))
def test_whole_properties_of_all_kinds_are_read(table: dict[str, object], number: int) -> None:
    properties = commands.Basic.Properties(headers=table, priority=number, message_id="m")  # type: ignore[arg-type]

    found = read_properties(properties.marshal())

    assert (found.headers or {}, found.priority, found.message_id) == (table, number, "m")


def test_one_header_is_taken_out_of_properties_and_every_other_byte_stays() -> None:
    # 16-bit and 8-bit numbers, a decimal, void, and bytes: pamqp would write some of them otherwise.
    entries = [
        b"\x01s" + b"s\x00\x07",
        b"\x01u" + b"u\x00\x07",
        b"\x01d" + b"D\x02\x00\x00\x00\x05",
        b"\x01v" + b"V",
        b"\x01x" + b"x\x00\x00\x00\x02\xff\x00",
        b"\x03BCC" + b"A\x00\x00\x00\x06S\x00\x00\x00\x01k",
        b"\x04BCC2" + b"F\x00\x00\x00\x06\x03BCCt\x01",
        b"\x03bcc" + b"t\x01",
    ]

    def block(*kept: bytes) -> bytes:
        table = b"".join(kept)
        # content_type, headers, priority.
        return b"\xa8\x00\x03a/b" + len(table).to_bytes(4, "big") + table + b"\x07"

    without = [one for one in entries if not one.startswith(b"\x03BCC")]

    read_properties(block(*entries))
    assert without_header(block(*entries), "BCC") == block(*without)
    assert without_header(block(*entries[::-1]), "BCC") == block(*without[::-1])
    assert without_header(block(entries[5]), "BCC") == block()
    assert without_header(block(*without), "BCC") == block(*without)
    assert without_header(b"\x80\x00\x03a/b", "BCC") == b"\x80\x00\x03a/b"
    assert without_header(NO_PROPERTIES, "BCC") == NO_PROPERTIES


VALUES = st.recursive(
    st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aBC", max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text("aBC", max_size=3), VALUES, max_size=5), st.sampled_from(["a", "BCC", ""]))
def test_a_header_is_taken_out_of_any_table(table: dict[str, object], name: str) -> None:
    block = write_properties(commands.Basic.Properties(headers=table, priority=3))

    left = read_properties(without_header(block, name))

    assert (left.headers or {}) == {key: value for key, value in table.items() if key != name}
    assert left.priority == 3
