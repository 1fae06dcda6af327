"""What SUBSCRIBE may say about how far it may fall behind."""

import pytest

from qmq.broker.consumers.buffer import MESSAGES_UNBOUNDED, Overflow
from qmq.broker.messages.destination import DestinationKind
from qmq.errors import Refused
from qmq.gateways.subscribe_frames import buffer_of

MOST = 1000


def asked(headers: dict[str, str], kind: DestinationKind = DestinationKind.TOPIC) -> tuple[int, int, Overflow] | None:
    buffer = buffer_of(headers, kind, MOST)
    return None if buffer is None else (buffer.bytes_max, buffer.messages_max, buffer.overflow)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"ack": "auto"}, None),
        ({"buffer-bytes": "10"}, (10, MESSAGES_UNBOUNDED, Overflow.DISCONNECT)),
        ({"buffer-bytes": "1001"}, (MOST, MESSAGES_UNBOUNDED, Overflow.DISCONNECT)),
        ({"buffer-messages": "5", "overflow": "drop-oldest"}, (MOST, 5, Overflow.DROP_OLDEST)),
        ({"overflow": "drop-newest"}, (MOST, MESSAGES_UNBOUNDED, Overflow.DROP_NEWEST)),
        ({"activemq.maximumPendingMessageLimit": "7"}, (MOST, 7, Overflow.DROP_OLDEST)),
        ({"activemq.maximumPendingMessageLimit": "0"}, (MOST, 0, Overflow.DROP_OLDEST)),
        ({"activemq.maximumPendingMessageLimit": "-1"}, None),
        (
            {"activemq.maximumPendingMessageLimit": "7", "buffer-messages": "5"},
            (MOST, 5, Overflow.DISCONNECT),
        ),
    ],
)
@pytest.mark.parametrize("kind", [DestinationKind.TOPIC, DestinationKind.FANOUT])
def test_the_words_for_a_buffer(
    headers: dict[str, str], expected: tuple[int, int, Overflow] | None, kind: DestinationKind
) -> None:
    assert asked(headers, kind) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"buffer-bytes": "0"},
        {"buffer-bytes": "-1"},
        {"buffer-bytes": "64KiB"},
        {"buffer-bytes": ""},
        {"buffer-messages": "٣"},
        {"buffer-messages": "1" * 16},
        {"overflow": "drop"},
        {"activemq.maximumPendingMessageLimit": "many"},
        {"activemq.maximumPendingMessageLimit": "--1"},
    ],
)
def test_what_means_nothing_is_refused_with_what_is_allowed(headers: dict[str, str]) -> None:
    with pytest.raises(Refused, match="header") as refused:
        asked(headers)

    assert refused.value.code == "bad-buffer"


def test_a_queue_has_its_prefetch_and_says_so() -> None:
    with pytest.raises(Refused, match="prefetch"):
        asked({"buffer-messages": "5"}, DestinationKind.QUEUE)
    assert asked({"activemq.maximumPendingMessageLimit": "5"}, DestinationKind.QUEUE) is None
