"""What stock clients put on the wire, in their own shapes: header order, line ends, versions, and their quirks."""

import pytest

from qmq.wire.stomp import Connection, Role, Version
from tests.wire.support import fed, pieces_of

# Per client: its bytes, the version that is agreed, and per frame the command, some of its headers, body, receipt.
Expected = tuple[str, dict[str, str], bytes, str | None]
CLIENTS: dict[str, tuple[bytes, Version, list[Expected]]] = {
    "stomp.py, 1.1: command STOMP, no host, no LF after NUL": (
        b"STOMP\naccept-version:1.1\nheart-beat:0,0\nlogin:ann\npasscode:secret\n\n\0"
        b"SEND\ncontent-length:5\ndestination:/queue/a\nreceipt:0b6c\n\nhello\0"
        b"SUBSCRIBE\nack:client-individual\ndestination:/queue/a\nid:1\n\n\0"
        b"ACK\nmessage-id:T_a-1\nsubscription:1\n\n\0"
        b"DISCONNECT\nreceipt:9f\n\n\0",
        Version.V11,
        [
            ("STOMP", {"accept-version": "1.1", "passcode": "secret"}, b"", None),
            ("SEND", {"destination": "/queue/a"}, b"hello", "0b6c"),
            ("SUBSCRIBE", {"id": "1", "ack": "client-individual"}, b"", None),
            ("ACK", {"message-id": "T_a-1", "subscription": "1"}, b"", None),
            ("DISCONNECT", {}, b"", "9f"),
        ],
    ),
    "@stomp/stompjs: no host, ACK with id and subscription, content-length on SEND, LF heart-beats": (
        b"CONNECT\naccept-version:1.0,1.1,1.2\nheart-beat:10000,10000\n\n\0\n\n"
        b"SUBSCRIBE\nack:client\nid:sub-0\ndestination:/topic/\\c\n\n\0"
        b"SEND\ndestination:/topic/a\ncontent-length:2\n\n\xc3\xa4\0\n"
        b"ACK\nsubscription:sub-0\nid:17\n\n\0",
        Version.V12,
        [
            ("CONNECT", {"heart-beat": "10000,10000"}, b"", None),
            ("SUBSCRIBE", {"destination": "/topic/:"}, b"", None),
            ("SEND", {"destination": "/topic/a"}, "\u00e4".encode(), None),
            ("ACK", {"subscription": "sub-0", "id": "17"}, b"", None),
        ],
    ),
    "stompit: ACK with id, message-id and subscription, no content-length": (
        b"CONNECT\naccept-version:1.0,1.1,1.2\nhost:/\nheart-beat:5000,5000\n\n\0\n"
        b"SEND\ndestination:/queue/a\ncontent-type:text/plain\n\nhello\0\n"
        b"ACK\nsubscription:1\nmessage-id:m-1\nid:a-1\n\n\0\n"
        b"ACK\nsubscription:1\nmessage-id:m-2\nid:a-2\n\n\0\n"
        b"ACK\nsubscription:1\nmessage-id:m-3\nid:a-3\n\n\0\n",
        Version.V12,
        [
            ("CONNECT", {"host": "/"}, b"", None),
            ("SEND", {"content-type": "text/plain"}, b"hello", None),
            ("ACK", {"subscription": "1", "message-id": "m-1", "id": "a-1"}, b"", None),
            ("ACK", {"subscription": "1", "message-id": "m-2", "id": "a-2"}, b"", None),
            ("ACK", {"subscription": "1", "message-id": "m-3", "id": "a-3"}, b"", None),
        ],
    ),
    "Ruby stomp: content-length:0 and content-type on every frame, escaped colons": (
        b"CONNECT\naccept-version:1.0,1.1,1.2\nhost:localhost\nlogin:ann\n"
        b"content-type:text/plain; charset=UTF-8\ncontent-length:0\n\n\0\n"
        b"SUBSCRIBE\ndestination:/queue/a\nack:client\nid:4f\\c1\n"
        b"content-type:text/plain; charset=UTF-8\ncontent-length:0\n\n\0\n"
        b"ACK\nid:m\\c1\ncontent-type:text/plain; charset=UTF-8\ncontent-length:0\n\n\0\n"
        b"ACK\nid:m\\c2\ncontent-type:text/plain; charset=UTF-8\ncontent-length:0\n\n\0\n"
        b"ACK\nid:m\\c3\ncontent-type:text/plain; charset=UTF-8\ncontent-length:0\n\n\0\n"
        b"DISCONNECT\nreceipt:77\ncontent-length:0\n\n\0\n",
        Version.V12,
        [
            ("CONNECT", {"host": "localhost"}, b"", None),
            ("SUBSCRIBE", {"id": "4f:1"}, b"", None),
            ("ACK", {"id": "m:1"}, b"", None),
            ("ACK", {"id": "m:2"}, b"", None),
            ("ACK", {"id": "m:3"}, b"", None),
            ("DISCONNECT", {}, b"", "77"),
        ],
    ),
    "Perl Net::Stomp: 1.0, no accept-version, no subscription id, raw colons, ACK by message-id alone": (
        b"CONNECT\nlogin:ann\npasscode:se:cret\n\n\0\n"
        b"SUBSCRIBE\nack:client\ndestination:/queue/a\n\n\0\n"
        b"SEND\ncontent-length:3\ndestination:/queue/a\nsource:host:61613\n\nx\0y\0\n"
        b"ACK\nmessage-id:ID:host-1:2:3\n\n\0\n"
        b"ACK\nmessage-id:ID:host-1:2:4\n\n\0\n"
        b"ACK\nmessage-id:ID:host-1:2:5\n\n\0\n",
        Version.V10,
        [
            ("CONNECT", {"passcode": "se:cret"}, b"", None),
            ("SUBSCRIBE", {"destination": "/queue/a", "ack": "client"}, b"", None),
            ("SEND", {"source": "host:61613"}, b"x\0y", None),
            ("ACK", {"message-id": "ID:host-1:2:3"}, b"", None),
            ("ACK", {"message-id": "ID:host-1:2:4"}, b"", None),
            ("ACK", {"message-id": "ID:host-1:2:5"}, b"", None),
        ],
    ),
    "PHP stomp: 1.0, ACK echoes all headers of the MESSAGE": (
        b"CONNECT\nlogin:\npasscode:\n\n\0"
        b"ACK\nmessage-id:m:1\ndestination:/queue/a\nsubscription:1\ntimestamp:1\ncontent-length:0\n\n\0"
        b"ACK\nmessage-id:m:2\ndestination:/queue/a\nsubscription:1\ntimestamp:2\ncontent-length:0\n\n\0",
        Version.V10,
        [
            ("CONNECT", {"login": "", "passcode": ""}, b"", None),
            ("ACK", {"message-id": "m:1", "timestamp": "1"}, b"", None),
            ("ACK", {"message-id": "m:2", "timestamp": "2"}, b"", None),
        ],
    ),
    "Java StompConnection: 1.0, body ends at NUL": (
        b"CONNECT\nlogin:ann\npasscode:secret\n\n\0"
        b"SEND\ndestination:/queue/a\n\nhello\0"
        b"SEND\ndestination:/queue/a\n\nworld\0"
        b"SEND\ntransaction:tx1\ndestination:/queue/a\n\n\0",
        Version.V10,
        [
            ("CONNECT", {"login": "ann"}, b"", None),
            ("SEND", {"destination": "/queue/a"}, b"hello", None),
            ("SEND", {"destination": "/queue/a"}, b"world", None),
            ("SEND", {"transaction": "tx1"}, b"", None),
        ],
    ),
    "a person with telnet: CRLF everywhere": (
        b"\r\nCONNECT\r\naccept-version:1.2\r\nhost:a\r\n\r\n\0\r\n"
        b"SEND\r\ndestination:/queue/a\r\nreceipt:1\r\n\r\nhello\r\n\0\r\n\r\n"
        b"SEND\r\ndestination:/queue/a\r\nreceipt:2\r\n\r\nhello\r\n\0\r\n",
        Version.V12,
        [
            ("CONNECT", {"host": "a"}, b"", None),
            ("SEND", {"destination": "/queue/a"}, b"hello\r\n", "1"),
            ("SEND", {"destination": "/queue/a"}, b"hello\r\n", "2"),
        ],
    ),
}


@pytest.mark.parametrize("size", [1, 3, 64, 100_000])
@pytest.mark.parametrize("client", CLIENTS)
def test_client_is_understood(client: str, size: int) -> None:
    stream, version, expected = CLIENTS[client]
    connection = Connection(Role.SERVER)

    frames = fed(connection, pieces_of(stream, size))

    assert connection.error is None
    assert connection.version is version
    assert [(f.head.command, f.body, f.receipt) for f in frames] == [(c, b, r) for c, _, b, r in expected]
    for frame, (_, headers, _, _) in zip(frames, expected, strict=True):
        assert headers.items() <= frame.head.headers.items()
