"""What a selector sees of a message, parsed once per envelope."""

import pytest

from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.selectors import compile_selector, properties_of, selected, selects
from qmq.broker.selectors.properties import ANSWERS_MAX
from qmq.model.dots import Origin
from qmq.wire.stomp import Version, encode_headers

ORIGIN = Origin("a", 1)


def envelope(headers: bytes = b"n:1\n", *, durable: bool = False) -> Envelope:
    return Envelope("/topic/t", DestinationKind.TOPIC, headers, durable)


def test_the_sender_s_headers_the_destination_and_the_keeping_are_seen() -> None:
    assert properties_of(envelope(b"n:1\nx-y: two\n")) == {
        "n": "1",
        "x-y": " two",
        "destination": "/topic/t",
        "persistent": "false",
    }
    assert properties_of(envelope(durable=True))["persistent"] == "true"


@pytest.mark.parametrize("value", ["a:b", "a\nb", "\\n", "\\\\n", "\\", "\\c:", "\r", "é\\", "", ":"])
def test_escapes_of_the_header_block_are_undone(value: str) -> None:
    block = encode_headers([("na:me", value), ("other", "x")], Version.V12)

    properties = properties_of(envelope(block))

    assert (properties["na:me"], properties["other"]) == (value, "x")


def test_the_first_of_repeated_headers_counts() -> None:
    assert properties_of(envelope(b"n:1\nn:2\n"))["n"] == "1"


@pytest.mark.parametrize("headers", [b"", b"\xff:\xfe\n", b"no colon\n", b"\\", b"\\q:\\\n", b":\n"])
def test_headers_that_a_peer_made_up_do_no_harm(headers: bytes) -> None:
    assert not selects(compile_selector("n = 1"), envelope(headers))


def test_headers_are_parsed_and_asked_once() -> None:
    shared = envelope()
    selector = compile_selector("n = 1")
    assert selects(selector, shared)
    shared.headers = b"n:2\n"

    assert selects(selector, shared)
    assert not selects(compile_selector("n = 2"), shared)


def test_remembered_answers_are_bounded() -> None:
    shared = envelope()

    for number in range(5 * ANSWERS_MAX):
        assert selects(compile_selector(f"n <> {number + 2}"), shared)

    assert shared.answers is not None
    assert len(shared.answers) <= ANSWERS_MAX


def test_selected_keeps_the_order_and_only_what_is_wanted() -> None:
    one, two = envelope(b"n:1\n"), envelope(b"n:2\n")
    messages = [Message(kind, b"", ORIGIN, number, 0) for number, kind in enumerate([one, two, two, one, one], 1)]

    assert [message.sequence for message in selected(compile_selector("n = 1"), messages)] == [1, 4, 5]
    assert selected(compile_selector("n = 3"), messages) == []


def test_an_envelope_that_no_selector_looks_at_is_not_parsed() -> None:
    assert envelope().properties is None and envelope().answers is None
