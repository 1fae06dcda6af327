"""Server-sent events: a subscription of a topic or fanout as a stream that a browser reads with `EventSource`.

The id of an event of a fanout is the vector that the client has after it. So `Last-Event-ID` continues exactly there,
on any node (WHATWG HTML, "Server-sent events"). Messages of topics have no id, because nothing keeps them.
"""

import json
from typing import Final

from qmq.broker.consumers.light_subscriptions import LightSubscriptions
from qmq.broker.fanouts.gap_notice import GAP_HEADER
from qmq.broker.messages.message import Message
from qmq.errors import ProtocolError, Refused
from qmq.gateways.encoder import Lines, NoMessages
from qmq.gateways.headers import parse_vector
from qmq.model.dots import Vector
from qmq.protocols.http.codec import HttpConnection, HttpRequest
from qmq.protocols.http.gateway.messages import facts_of
from qmq.protocols.http.gateway.responses import HttpEncoder, error_facts
from qmq.wire.stomp import Frame, Head, Version

SUBSCRIPTION: Final = "events"
RECEIPT: Final = "events"

HEARTBEAT: Final = b":\n\n"
"""A comment: it says nothing, and shows both sides that the connection lives."""

STARTS: Final = ("next", "first")
OPTIONS: Final = {
    "selector": "selector",
    "buffer_messages": "buffer-messages",
    "buffer_bytes": "buffer-bytes",
    "overflow": "overflow",
}
"""Names in the query → headers of SUBSCRIBE."""

UNKNOWN_ORIGINS_MAX: Final = 32
"""In the vector of a client, of origins of which this node has nothing: the last ones, which the client heard of last.
The others ended long ago, or never were, and each event would carry them in its id.
"""

DATA: Final = b"data: {"

SHARED_MESSAGES_MAX: Final = 1024
SHARED_BYTES_MAX: Final = 4 << 20
"""Data of events that other streams may need next; at either bound all of it is forgotten."""


class EventData:
    """The data of messages as events, written once for all streams of the node."""

    def __init__(self) -> None:
        self._known: dict[Message, bytes] = {}
        self._bytes = 0

    def of(self, message: Message) -> bytes:
        """The lines of the event, without an id."""
        data = self._known.get(message)
        if data is None:
            facts = facts_of(message)
            gap = facts["headers"].get(GAP_HEADER)
            text = json.dumps(facts if gap is None else {"destination": facts["destination"], "missing": gap})
            data = b"%bdata: %b\n\n" % (b"" if gap is None else b"event: gap\n", text.encode())
            if len(self._known) >= SHARED_MESSAGES_MAX or self._bytes > SHARED_BYTES_MAX:
                self._known.clear()
                self._bytes = 0
            self._known[message] = data
            self._bytes += len(data)
        return data


class EventEncoder(NoMessages):
    """`Encoder` of one stream. `vector` is what the client has of a fanout; None for a topic."""

    protocol = "HTTP/1.1 events"

    def __init__(self, http: HttpConnection, requests: HttpEncoder, data: EventData, vector: Vector | None) -> None:
        self._http = http
        self._requests = requests
        self._data = data
        self._vector = vector
        self._texts = {} if vector is None else {origin: f"{origin}={last}" for origin, last in vector.items()}
        self._has_begun = False

    def listener_prefix(self, listener: LightSubscriptions, topic: str) -> bytes:
        # Events have no prefix, but an empty one would mean that the client does not hear the topic any more.
        return HEARTBEAT if topic in listener.ids else b""

    def tails(self, messages: list[Message]) -> list[bytes]:
        of = self._data.of
        if self._vector is None:
            return [of(message) for message in messages]
        return [b"id: %b\n%b" % (self._after(message).encode(), of(message)) for message in messages]

    def _after(self, message: Message) -> str:
        """The vector of the client once it has `message`."""
        vector, texts = self._vector, self._texts
        assert vector is not None
        if message.sequence > 0:
            vector[message.origin] = message.sequence
            texts[message.origin] = f"{message.origin}={message.sequence}"
        else:
            for origin, last in _gap_of(message).items():
                vector[origin] = max(last, vector.get(origin, 0))
                texts[origin] = f"{origin}={vector[origin]}"
        return ",".join(texts.values())

    def marked(self, tail: bytes, name: str, value: str) -> bytes:
        shown = value if value.isdigit() or value == "true" else json.dumps(value)
        return tail.replace(DATA, b'%b"%b": %b, ' % (DATA, name.encode(), shown.encode()), 1)

    def receipts(self, receipts: list[str], lines: Lines = (), level: int = 0) -> bytes:
        if self._has_begun or not receipts:
            return b""
        self._has_begun = True
        self._requests.is_due = False
        self._requests.on_response()
        headers = [("content-type", "text/event-stream"), ("cache-control", "no-store"), *self._requests.cors]
        # Buffering proxies would hold events back.
        head = self._http.begin_stream(200, [*headers, ("x-accel-buffering", "no")])
        # An id by itself is no event, but a client that has got none yet continues there.
        return head + (HEARTBEAT if not self._texts else b"id: %b\n\n" % ",".join(self._texts.values()).encode())

    def response(self, receipt: str, lines: Lines, body: bytes) -> bytes:
        raise AssertionError("a stream makes no control request")

    def error(
        self, error: ProtocolError | Refused, receipt: str | None = None, subscription: str | None = None
    ) -> bytes:
        if not self._has_begun:
            return self._requests.error(error)
        return b"event: error\ndata: %b\n\n" % json.dumps(error_facts(error)).encode()


def _gap_of(message: Message) -> Vector:
    """What a gap notice says is missing, up to where; nothing for another message."""
    text: str = facts_of(message)["headers"].get(GAP_HEADER, "")
    ranges = [part.partition("=") for part in text.split(",") if part]
    return parse_vector(",".join([f"{origin}={through.rpartition('-')[2]}" for origin, _, through in ranges]))


def subscribe_of(request: HttpRequest, destination: str, now: Vector) -> tuple[Frame, Vector | None]:
    """The SUBSCRIBE of a stream, and the vector that its client has. `now` is what this node has. Raises Refused."""
    headers = {"destination": destination, "id": SUBSCRIPTION, "ack": "auto"}
    for name, value in request.query.items():
        if name in OPTIONS:
            headers[OPTIONS[name]] = value
        elif name not in ("from", "after", "access_token"):
            raise Refused("bad-query", f"The query has no {name!r}; it has {', '.join(['from', 'after', *OPTIONS])}.")
    vector: Vector | None = None
    if destination.startswith("/fanout/"):
        # A browser that connects again sends the header, and its first address again with it.
        after = request.headers.get("last-event-id") or request.query.get("after")
        start = request.query.get("from", "next")
        if start not in STARTS:
            raise Refused("bad-query", f"The query from is one of {', '.join(STARTS)}.")
        if after:
            vector = parse_vector(after, "Last-Event-ID")
            for origin in [one for one in vector if one not in now][:-UNKNOWN_ORIGINS_MAX]:
                del vector[origin]
        else:
            vector = dict(now) if start == "next" else {}
        headers["qmq-resume"] = ",".join(f"{origin}={last}" for origin, last in vector.items())
    elif "from" in request.query or "after" in request.query:
        raise Refused("bad-query", "A topic keeps no messages: from and after are for fanouts.")
    return Frame(Head("SUBSCRIBE", headers, Version.V12), b"", RECEIPT), vector
