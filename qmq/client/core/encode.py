"""The client's frames, and the one answer that is read for its content: a node's status.

Every frame that can be refused carries a receipt, because the receipt is what an ERROR names it by.
"""

import json
from collections.abc import Mapping

from qmq import __version__
from qmq.client.core.feed import AckMode, Feed, FeedKind
from qmq.client.core.vectors import parse_progress
from qmq.wire.stomp import Version, encode_frame

PRODUCT = f"qmq.client {__version__}"

OWN_HEADERS = frozenset({"content-length", "destination", "receipt", "transaction"})
"""Headers of a SEND that the client writes itself."""

Headers = Mapping[str, str]
Send = tuple[str, bytes, Headers]
"""Destination, body, headers."""


def encode_connect(host: str, login: str | None, passcode: str | None, beat_ms: int, client_id: str = "") -> bytes:
    """`on-error:keep-open`: a full queue must not cost the connection, and with it what all others have in flight."""
    headers = [
        ("accept-version", Version.V12.text),
        ("host", host),
        ("heart-beat", f"{beat_ms},{beat_ms}"),
        ("on-error", "keep-open"),
    ]
    said = ("login", login), ("passcode", passcode), ("client-product", PRODUCT)
    headers += [(name, value) for name, value in said if value is not None]
    if client_id:
        headers.append(("client-id", client_id))
    return encode_frame("CONNECT", headers, version=Version.V10)  # CONNECT is never escaped


def encode_send(
    client: str,
    receipt: str,
    destination: str,
    body: bytes,
    headers: Headers,
    transaction: str | None = None,
    *,
    again: bool = False,
) -> bytes:
    """A SEND. `dedup-id` names the message over all attempts; the caller may bring its own. `again`: not the first one.

    Raises ValueError for a header that is not the caller's, LocalProtocolError for one that STOMP cannot carry.
    """
    own = OWN_HEADERS.intersection(headers)
    if own:
        raise ValueError(f"the client writes these headers itself: {', '.join(sorted(own))}")
    lines = [("destination", destination), ("receipt", receipt)]
    if transaction is not None:
        lines.append(("transaction", transaction))
    if again:
        lines.append(("redelivered", "true"))
    lines += headers.items()
    if "dedup-id" not in headers:
        lines.append(("dedup-id", f"{client}-{receipt}"))
    return encode_frame("SEND", lines, body)


def encode_transaction(
    client: str, name: str, sends: list[Send], settles: list[tuple[str, bool, str]], *, again: bool = False
) -> bytes:
    """All frames of a transaction; its frames have the receipts `NAME.1`, `NAME.2`, …, and COMMIT has `NAME`.

    `settles` are (ack id, is ack, level or ""). Raises as `encode_send`.
    """
    frames = [encode_frame("BEGIN", [("transaction", name)])]
    for destination, body, headers in sends:
        frames.append(encode_send(client, f"{name}.{len(frames)}", destination, body, headers, name, again=again))
    for ack_id, is_ack, level in settles:
        lines = [("id", ack_id), ("receipt", f"{name}.{len(frames)}"), ("transaction", name)]
        if is_ack and level:
            lines.append(("ack-level", level))
        frames.append(encode_frame("ACK" if is_ack else "NACK", lines))
    frames.append(encode_frame("COMMIT", [("transaction", name), ("receipt", name)]))
    return b"".join(frames)


def encode_settle(ack_id: str, is_ack: bool, receipt: str | None, level: str = "", *, requeue: bool = True) -> bytes:
    lines = [("id", ack_id)] if receipt is None else [("id", ack_id), ("receipt", receipt)]
    if is_ack and level and receipt is not None:
        lines.append(("ack-level", level))
    if not is_ack and not requeue:
        lines.append(("requeue", "false"))
    return encode_frame("ACK" if is_ack else "NACK", lines)


def encode_subscribe(feed: Feed) -> bytes:
    """SUBSCRIBE for `feed` in its present state: a fanout continues after what it has seen."""
    lines = [("id", feed.wire_id), ("destination", feed.destination), ("receipt", feed.wire_id)]
    if feed.kind is FeedKind.QUEUE:
        mode = AckMode.CLIENT_INDIVIDUAL if feed.ack is AckMode.AUTO else feed.ack
        lines += [("ack", mode.value), ("prefetch-count", str(feed.prefetch))]
        if feed.durable:
            lines.append(("durable-subscription-name", feed.durable))
            # Only for the first SUBSCRIBE that the mesh receives; after that its cursor counts.
            begins_after = feed.start == "resume"
            lines.append(("qmq-resume", feed.seen.header()) if begins_after else ("x-stream-offset", feed.start))
    elif feed.kind is FeedKind.FANOUT:
        if feed.start == "next":
            lines.append(("x-stream-offset", "next"))
        else:
            # An empty vector begins at the first kept message too, and the node reports its position.
            lines.append(("qmq-resume", feed.seen.header()))
    return encode_frame("SUBSCRIBE", [*lines, *feed.headers.items()])


def encode_undo(command: str, header: str, value: str) -> bytes:
    """UNSUBSCRIBE or ABORT: what takes back, and cannot be refused for what it asks."""
    return encode_frame(command, [(header, value)])


def encode_leave(receipt: str) -> bytes:
    return encode_frame("DISCONNECT", [("receipt", receipt)])


def encode_status_request(receipt: str, fanout: str) -> bytes:
    """Asks for the position at which `fanout` goes on."""
    return encode_frame("SEND", [("destination", "/control/status"), ("receipt", receipt), ("about", fanout)])


def vector_of(status: str) -> str | None:
    """The position that a node's status names; None when it names none (it is cut when it grows too long).

    >>> vector_of('{"vector": {"a-000000000000001f": 7}}'), vector_of('{"vector": {}, "cut": true}')
    ('a-000000000000001f=7', None)
    """
    try:
        found = json.loads(status)
        vector = found["vector"]
        if not vector and found.get("cut"):
            return None
        text = ",".join(f"{origin}={sequence}" for origin, sequence in vector.items())
        parse_progress(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return text
