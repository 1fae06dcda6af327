"""A service that decides logins: its answers, its outages, and servers that misbehave."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from qmq.access.rules import Principal
from qmq.auth import callback
from qmq.auth.callback import ANSWER_BYTES_MAX, HttpAuthenticator
from qmq.auth.credentials import GROUPS_MAX, Credentials, Grant
from qmq.errors import AuthenticationUnavailable, LoginRefused

ANN = Credentials("ann", "pass", address="10.0.0.1", node="a", tls_names=frozenset({"b", "a"}))

Answer = Callable[[socket.socket], None]


class Service:
    """A server on loopback that serves each connection by `answer`; `requests` are what came, as text."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.answer: Answer = lambda connected: None
        self.tls: ssl.SSLContext | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://localhost:{self.port}/check"

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                with connected, suppress(OSError):
                    self._one(connected)

    def _one(self, connected: socket.socket) -> None:
        if self.tls is not None:
            connected = self.tls.wrap_socket(connected, server_side=True)
        data = b""
        while b"\r\n\r\n" not in data:
            data += connected.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l"))
        while len(body) < length:
            body += connected.recv(65536)
        self.requests.append((head + b"\r\n\r\n" + body).decode())
        self.answer(connected)
        connected.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


def says(body: object, status: str = "200 OK", *headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", *headers, "", ""]
    return lambda connected: connected.sendall("\r\n".join(lines).encode() + data)


def ask(service: Service, shown: Credentials = ANN, timeout_seconds: float = 5.0) -> Grant | None:
    return HttpAuthenticator(service.url, None, timeout_seconds).authenticate(shown, 0)


def outage(service: Service, timeout_seconds: float = 5.0) -> str:
    with pytest.raises(AuthenticationUnavailable) as unavailable:
        ask(service, timeout_seconds=timeout_seconds)
    return str(unavailable.value)


def test_the_service_gets_what_the_client_showed_and_gives_its_groups(service: Service) -> None:
    service.answer = says({"allow": True, "groups": ["billing", "client"], "more": 1})

    assert ask(service) == Grant(Principal("ann", frozenset({"billing", "client"})), "http")

    head, _, body = service.requests[0].partition("\r\n\r\n")
    assert head.startswith("POST /check HTTP/1.1\r\n")
    assert json.loads(body) == {
        "login": "ann",
        "passcode": "pass",
        "address": "10.0.0.1",
        "node": "a",
        "tls_names": ["a", "b"],
    }


def test_an_answer_in_chunks_is_read(service: Service) -> None:
    text = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{"allow"\r\n7\r\n: true}\r\n0\r\n\r\n'
    service.answer = lambda connected: connected.sendall(text.encode())

    assert ask(service) == Grant(Principal("ann"), "http")


def test_a_denied_login_is_refused(service: Service) -> None:
    service.answer = says({"allow": False})

    with pytest.raises(LoginRefused) as refused:
        ask(service)
    assert (refused.value.authenticator, refused.value.code) == ("http", "login-failed")


@pytest.mark.parametrize("login", [None, "", "a\nb", "x" * 129])
def test_a_client_without_a_name_is_left_to_the_next_authenticator(service: Service, login: str | None) -> None:
    assert ask(service, Credentials(login, "p", "a.b.c")) is None
    assert service.requests == []


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_not_followed(service: Service, status: str) -> None:
    service.answer = says({"allow": True}, status, f"Location: {service.url}/elsewhere")

    assert outage(service) == f"its answer has status {status[:3]}"
    assert len(service.requests) == 1


@pytest.mark.parametrize("status", ["201 Created", "204 No Content", "401 Unauthorized", "403 No", "500 Broken"])
def test_another_status_decides_nothing(service: Service, status: str) -> None:
    service.answer = says({"allow": True}, status)

    assert outage(service) == f"its answer has status {status[:3]}"


@pytest.mark.parametrize(
    "body", [b"", b"true", b"[]", b"<html>", b"\xff", b"null", b"[" * 50_000, b'{"allow": true', b'"allow"']
)
def test_what_is_no_json_object_decides_nothing(service: Service, body: bytes) -> None:
    service.answer = says(body)

    assert outage(service) == "its answer is not HTTP with a JSON object"


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"allow": 1},
        {"allow": "true"},
        {"allow": None},
        {"allow": True, "groups": "a"},
        {"allow": True, "groups": None},
        {"allow": True, "groups": [1]},
        {"allow": True, "groups": [""]},
        {"allow": True, "groups": [["a"]]},
        {"allow": True, "groups": ["a"] * (GROUPS_MAX + 1)},
    ],
)
def test_an_answer_without_a_clear_decision_decides_nothing(service: Service, facts: dict[str, Any]) -> None:
    service.answer = says(facts)

    assert outage(service).startswith("its answer has ")


@pytest.mark.parametrize(
    "text", ["", "HTTP/1.1 200 OK\r\n", "hello\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{}"]
)
def test_a_broken_answer_decides_nothing(service: Service, text: str) -> None:
    service.answer = lambda connected: connected.sendall(text.encode())

    assert outage(service) == "its answer is not HTTP with a JSON object"


@pytest.mark.parametrize("part", [b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 90, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_answer_without_an_end_is_cut(service: Service, part: bytes) -> None:
    sent = 0

    def flood(connected: socket.socket) -> None:
        nonlocal sent
        connected.sendall(part)
        while True:
            sent += connected.send(b" " * 65536)

    service.answer = flood

    assert outage(service) in (
        f"its answer has more than {ANSWER_BYTES_MAX} bytes",
        "its answer is not HTTP with a JSON object",
    )


def test_a_long_body_is_cut_at_the_bound(service: Service) -> None:
    service.answer = says(b" " * (ANSWER_BYTES_MAX + 1000) + b"{}")

    assert outage(service) == f"its answer has more than {ANSWER_BYTES_MAX} bytes"


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_a_server_that_sends_byte_by_byte_does_not_get_more_time(
    service: Service, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in a tenth of the time that is left, by the clock of the client."""
    now = 0.0
    monkeypatch.setattr(callback, "time", SimpleNamespace(monotonic=lambda: now))

    def drip(connected: socket.socket) -> None:
        nonlocal now
        connected.sendall(begin)
        while True:
            now += 1.0
            connected.sendall(b"x")

    service.answer = drip

    assert outage(service, 20.0) in ("no answer within 20 s", "its answer is not HTTP with a JSON object")


def test_a_server_that_says_nothing_is_left_in_time(service: Service) -> None:
    until = threading.Event()
    service.answer = lambda connected: (until.wait(), None)[1]

    assert outage(service, 0.05) == "no answer within 0.05 s"
    until.set()


def test_a_server_that_is_away_decides_nothing(service: Service) -> None:
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()

    with pytest.raises(AuthenticationUnavailable, match="^no connection: Connection refused$"):
        HttpAuthenticator(f"http://127.0.0.1:{port}/", None, 5.0).authenticate(ANN, 0)


def test_the_certificate_of_the_service_is_checked(service: Service, tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    service.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(service.tls)
    service.answer = says({"allow": True})
    for name, one in (("right", authority), ("wrong", other)):
        one.cert_pem.write_to_path(str(tmp_path / name))

    assert HttpAuthenticator(service.url, tmp_path / "right", 5.0).authenticate(ANN, 0) is not None
    for url, ca in ((service.url, "wrong"), (service.url.replace("localhost", "127.0.0.1"), "right")):
        with pytest.raises(AuthenticationUnavailable, match="^its certificate is not trusted$"):
            HttpAuthenticator(url, tmp_path / ca, 5.0).authenticate(ANN, 0)
    assert len(service.requests) == 1


def test_no_passcode_is_in_an_outage(service: Service) -> None:
    service.answer = says(b"pass")

    with pytest.raises(AuthenticationUnavailable) as unavailable:
        ask(service)
    assert "pass" not in str(unavailable.value)
