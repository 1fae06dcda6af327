"""The request that opens a WebSocket (RFC 6455, 4.2). Extensions are never accepted, so none is in use."""

import base64
import binascii
import hashlib
from collections.abc import Sequence

from qmq.protocols.http.codec import HttpRefusal, HttpRequest

ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

UPGRADE_HEADERS = (("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"))


def accept(request: HttpRequest, subprotocols: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """The headers of the response 101, and the first of `subprotocols` that the client offers, or None.

    The caller has checked Host and Origin. A client that offers only other subprotocols gets none, and a browser then
    closes the connection.

    Raises HttpRefusal: 426 for a request that is no WebSocket or has another version, 400 for one that is wrong.
    """
    headers = request.headers
    upgrades = {token.strip().lower() for token in headers.get("upgrade", "").split(",")}
    connection = {token.strip().lower() for token in headers.get("connection", "").split(",")}
    if "websocket" not in upgrades or "upgrade" not in connection:
        raise HttpRefusal(426, "upgrade-required", "this resource is a WebSocket", headers=UPGRADE_HEADERS)
    if request.method != "GET" or request.version != "1.1" or request.body:
        raise HttpRefusal(400, "bad-websocket", "a WebSocket is opened by a GET of HTTP/1.1 without a body")
    if headers.get("sec-websocket-version") != "13":
        raise HttpRefusal(426, "upgrade-required", "the version of WebSocket must be 13", headers=UPGRADE_HEADERS)
    key = headers.get("sec-websocket-key", "")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key:
        raise HttpRefusal(400, "bad-websocket", "sec-websocket-key must be 16 bytes in base64")
    answer = [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode() + ACCEPT_GUID).digest()).decode()),
    ]
    offered = {token.strip() for token in headers.get("sec-websocket-protocol", "").split(",")}
    chosen = next((name for name in subprotocols if name in offered), None)
    if chosen is not None:
        answer.append(("sec-websocket-protocol", chosen))
    return tuple(answer), chosen
