"""Messages as server-sent events: ids, gaps, marks, and where a stream begins."""

import json

import pytest

from qmq.errors import Refused
from qmq.model.dots import Origin, Vector
from qmq.protocols.http.codec import HttpConnection, HttpLimits
from qmq.protocols.http.gateway.events import (
    HEARTBEAT,
    SHARED_BYTES_MAX,
    UNKNOWN_ORIGINS_MAX,
    EventData,
    EventEncoder,
    subscribe_of,
)
from qmq.protocols.http.gateway.responses import HttpEncoder
from tests.protocols.http.gateway.support import request_of
from tests.protocols.http.gateway.test_responses import ORIGIN, message

OTHER = Origin("b", 2)
F = "/fanout/f"


def stream(vector: Vector | None, data: EventData | None = None) -> EventEncoder:
    """The encoder of a stream whose request was read."""
    http = HttpConnection(HttpLimits())
    http.receive(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    http.next_request()
    requests = HttpEncoder(http)
    requests.begin()
    return EventEncoder(http, requests, data or EventData(), vector)


def fields(event: bytes) -> dict[str, str]:
    assert event.endswith(b"\n\n") and event.count(b"\n\n") == 1
    return dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))


def test_the_id_of_an_event_is_what_the_client_has_after_it() -> None:
    one = stream({OTHER: 5})

    first, second = one.tails([message(3, b"1"), message(4, b"2")])

    assert fields(first)["id"] == f"{OTHER}=5,{ORIGIN}=3"
    assert fields(second)["id"] == f"{OTHER}=5,{ORIGIN}=4"
    assert json.loads(fields(first)["data"])["body"] == "1"


def test_an_event_of_a_topic_has_no_id() -> None:
    (event,) = stream(None).tails([message(-3)])

    assert fields(event).keys() == {"data"}


def test_a_gap_is_an_event_of_its_own_and_moves_the_id_behind_it() -> None:
    one = stream({ORIGIN: 3})

    (gap,) = one.tails([message(-1, b"", F, **{"qmq-gap": f"{ORIGIN}=4-9,{OTHER}=1-2"})])
    (after,) = one.tails([message(10, b"x", F)])

    assert fields(gap)["event"] == "gap"
    assert fields(gap)["id"] == f"{ORIGIN}=9,{OTHER}=2"
    assert json.loads(fields(gap)["data"]) == {"destination": F, "missing": f"{ORIGIN}=4-9,{OTHER}=1-2"}
    assert fields(after)["id"] == f"{ORIGIN}=10,{OTHER}=2"


def test_a_gap_that_is_behind_the_client_does_not_move_it_back() -> None:
    (gap,) = stream({ORIGIN: 30}).tails([message(-1, b"", F, **{"qmq-gap": f"{ORIGIN}=4-9"})])

    assert fields(gap)["id"] == f"{ORIGIN}=30"


@pytest.mark.parametrize(
    ("name", "value", "shown"), [("dropped", "5", 5), ("retained", "true", True), ("a", 'b"', 'b"')]
)
def test_a_mark_is_a_member_of_its_event(name: str, value: str, shown: object) -> None:
    one = stream({})
    (event,) = one.tails([message(3, b'data: {"x": 1}')])

    facts = json.loads(fields(one.marked(event, name, value))["data"])

    assert facts[name] == shown
    assert facts["body"] == 'data: {"x": 1}'


def test_headers_of_the_node_are_not_shown() -> None:
    one = message(3, b"x", F, **{"content-type": "a/b", "colour": "red", "persistent": "true", "dedup-sender": "s"})
    one.envelope.headers = b"qmq-copies-left:5\n" + one.envelope.headers

    (event,) = stream(None).tails([one])
    facts = json.loads(fields(event)["data"])

    assert facts["content_type"] == "a/b"
    assert facts["headers"] == {"colour": "red"}


def test_streams_share_data_up_to_a_bound() -> None:
    data = EventData()
    one, other = stream({}, data), stream({OTHER: 1}, data)
    sent = message(3)

    assert data.of(sent) is data.of(sent)
    assert one.tails([sent])[0].endswith(data.of(sent)) and other.tails([sent])[0].endswith(data.of(sent))
    large = [message(n, b"x" * (1 << 20)) for n in range(20)]
    for each in large:
        data.of(each)
    assert data._bytes <= SHARED_BYTES_MAX + 2 * (1 << 20)


def test_a_stream_begins_once_with_its_id() -> None:
    one = stream({ORIGIN: 7})

    head = one.receipts(["events"])

    assert b"content-type: text/event-stream" in head and b"content-length" not in head
    assert head.endswith(f"id: {ORIGIN}=7\n\n".encode())
    assert one.receipts(["events"]) == b""
    assert stream(None).receipts(["events"]).endswith(b"\r\n\r\n" + HEARTBEAT)


def test_an_error_is_a_response_before_the_beginning_and_an_event_after_it() -> None:
    assert stream({}).error(Refused("not-allowed", "")).startswith(b"HTTP/1.1 403")
    one = stream({})
    one.receipts(["events"])

    event = fields(one.error(Refused("kicked", "an operator")))

    assert event["event"] == "error"
    assert json.loads(event["data"]) == {"code": "kicked", "message": "an operator"}


@pytest.mark.parametrize(
    ("query", "headers", "resume"),
    [
        ("", {}, f"{ORIGIN}=7"),
        ("?from=next", {}, f"{ORIGIN}=7"),
        ("?from=first", {}, ""),
        (f"?after={OTHER}%3D3", {}, f"{OTHER}=3"),
        (f"?from=first&after={OTHER}%3D3", {"last_event_id": f"{OTHER}=5"}, f"{OTHER}=5"),
        ("?from=first", {"last_event_id": ""}, ""),
    ],
)
def test_a_stream_continues_where_its_client_says(query: str, headers: dict[str, str], resume: str) -> None:
    now = {ORIGIN: 7}

    frame, vector = subscribe_of(request_of("GET", f"/{query}", **headers), F, now)

    assert frame.head.command == "SUBSCRIBE" and frame.receipt is not None
    assert frame.head.headers["qmq-resume"] == resume
    assert vector is not None and vector is not now


def test_options_of_a_stream_are_headers_of_subscribe() -> None:
    query = "selector=a%3D1&buffer_messages=5&buffer_bytes=6&overflow=drop-oldest&access_token=secret"

    frame, vector = subscribe_of(request_of("GET", f"/?{query}"), "/topic/t", {})

    assert vector is None
    assert frame.head.headers.items() >= {
        ("selector", "a=1"),
        ("buffer-messages", "5"),
        ("buffer-bytes", "6"),
        ("overflow", "drop-oldest"),
    }
    assert "secret" not in frame.head.headers.values()


@pytest.mark.parametrize(
    ("destination", "query"), [(F, "from=last"), (F, "start=first"), ("/topic/t", "from=next"), ("/topic/t", "after=x")]
)
def test_a_query_that_makes_no_sense_is_refused(destination: str, query: str) -> None:
    with pytest.raises(Refused) as refused:
        subscribe_of(request_of("GET", f"/?{query}"), destination, {})
    assert refused.value.code == "bad-query"


def test_a_client_cannot_make_ids_long_with_origins_that_the_node_has_nothing_of() -> None:
    said = {Origin("x", number): 1 for number in range(500)}
    after = ",".join(f"{origin}={last}" for origin, last in {ORIGIN: 3, **said, OTHER: 5}.items())

    frame, vector = subscribe_of(request_of("GET", "/", last_event_id=after), F, {ORIGIN: 9})

    assert vector is not None and len(vector) == 1 + UNKNOWN_ORIGINS_MAX
    assert vector[ORIGIN] == 3 and vector[OTHER] == 5
    assert frame.head.headers["qmq-resume"].count("=") == len(vector)
