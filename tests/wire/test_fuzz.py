"""A short run of the fuzzer on each codec, and that it notices what it looks for."""

from unittest.mock import patch

import pytest

from qmq.protocols.amqp.codec import frames
from qmq.protocols.amqp.codec.frames import AmqpReader
from qmq.protocols.beanstalk.codec import reader
from qmq.protocols.beanstalk.codec.reader import BeanstalkReader
from tests.wire.fuzz import amqp, beanstalk
from tests.wire.fuzz.figures import Connection, feed

FRAMES = 20_000


@pytest.mark.parametrize("connection", [amqp.connection, beanstalk.connection], ids=["amqp", "beanstalk"])
def test_mistakes_of_clients_are_declared_errors_and_hold_little(connection: Connection) -> None:
    figures = feed(connection, FRAMES, seed=0)

    assert figures.frames >= FRAMES
    assert sum(figures.results.values()) > FRAMES / 2
    assert figures.held_bytes_max > 1000 or connection is beanstalk.connection


def test_the_fuzzer_finds_an_error_that_is_not_declared() -> None:
    with patch("qmq.protocols.amqp.codec.methods.BAD", (KeyError,)), pytest.raises(Exception, match=".") as caught:
        feed(amqp.connection, FRAMES, seed=0)

    assert caught.value.__notes__[0].startswith("again: --seed 0 --first ")


def test_the_fuzzer_finds_that_cuts_matter() -> None:
    def receive(found: AmqpReader, data: bytes, receive=AmqpReader.receive) -> list[frames.Command]:  # type: ignore[no-untyped-def]
        return receive(found, data[:-1] if len(data) == 3 else data)  # type: ignore[no-any-return]

    with patch.object(AmqpReader, "receive", receive), pytest.raises(AssertionError, match="cuts of reads"):
        feed(amqp.connection, FRAMES, seed=0)


def test_the_fuzzer_finds_what_is_held_without_a_bound() -> None:
    with patch.object(reader, "LINE_BYTES_MAX", 1 << 20), pytest.raises(AssertionError, match="bytes are held"):
        feed(beanstalk.connection, FRAMES, seed=0)
    assert BeanstalkReader(1).unfinished_bytes == 0
