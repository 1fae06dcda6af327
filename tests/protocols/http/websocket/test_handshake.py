"""The request that opens a WebSocket is accepted or refused."""

import pytest

from qmq.protocols.http.codec import HttpRefusal
from qmq.protocols.http.websocket import accept
from tests.protocols.http.codec.support import only, request

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
STOMP = ("v12.stomp", "v11.stomp", "v10.stomp")
GOOD = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY}


def opening(line: str = "GET /stomp HTTP/1.1", body: bytes = b"", **changes: str | None) -> bytes:
    headers = GOOD | {name.replace("_", "-"): value for name, value in changes.items()}
    if body:
        headers["Content-Length"] = str(len(body))
    return request(line, *(f"{name}: {value}" for name, value in headers.items() if value is not None), body=body)


def test_key_is_answered_as_in_the_rfc() -> None:
    headers, chosen = accept(only(opening()), STOMP)

    assert headers == (
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
    )
    assert chosen is None


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("v12.stomp", "v12.stomp"),
        ("v10.stomp, v11.stomp", "v11.stomp"),
        ("v10.stomp,mqtt", "v10.stomp"),
        ("mqtt", None),
        ("V12.STOMP", None),
    ],
)
def test_first_subprotocol_of_the_server_that_is_offered_is_chosen(offered: str, chosen: str | None) -> None:
    headers, got = accept(only(opening(Sec_WebSocket_Protocol=offered)), STOMP)

    assert got == chosen
    assert dict(headers).get("sec-websocket-protocol") == chosen


def test_extensions_are_not_negotiated() -> None:
    headers, _ = accept(only(opening(Sec_WebSocket_Extensions="permessage-deflate")), STOMP)

    assert "sec-websocket-extensions" not in dict(headers)


@pytest.mark.parametrize(
    ("upgrade", "connection"), [("WebSocket", "keep-alive, UPGRADE"), ("h2c, websocket", "upgrade")]
)
def test_words_are_found_in_lists_in_any_case(upgrade: str, connection: str) -> None:
    accept(only(opening(Upgrade=upgrade, Connection=connection)), STOMP)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(opening(Upgrade=None), 426, id="no upgrade"),
        pytest.param(opening(Upgrade="h2c"), 426, id="other upgrade"),
        pytest.param(opening(Connection="keep-alive"), 426, id="upgrade not in connection"),
        pytest.param(opening(Sec_WebSocket_Version=None), 426, id="no version"),
        pytest.param(opening(Sec_WebSocket_Version="8"), 426, id="old version"),
        pytest.param(opening(Sec_WebSocket_Version="13, 8"), 426, id="versions"),
        pytest.param(opening(Sec_WebSocket_Key=None), 400, id="no key"),
        pytest.param(opening(Sec_WebSocket_Key="dGhl"), 400, id="short key"),
        pytest.param(opening(Sec_WebSocket_Key="grün" + KEY[4:]), 400, id="key not ASCII"),
        pytest.param(opening(Sec_WebSocket_Key=KEY[:-1] + "!"), 400, id="key not base64"),
        pytest.param(opening("POST /stomp HTTP/1.1"), 400, id="POST"),
        pytest.param(opening("GET /stomp HTTP/1.0"), 400, id="HTTP/1.0"),
        pytest.param(opening(body=b"x"), 400, id="body"),
    ],
)
def test_opening_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(HttpRefusal) as refusal:
        accept(only(data), STOMP)

    assert refusal.value.status == status
    assert ("sec-websocket-version", "13") in refusal.value.headers or status == 400
