"""A service that decides logins, asked over HTTP: POST of a JSON object, answered with one.

    {"login": "ann", "passcode": "…", "address": "10.0.0.1", "node": "a", "tls_names": []}
    {"allow": true, "groups": ["billing"]}

Only status 200 with such an answer decides. A redirect is not followed, because the passcode would go to another
place. Whatever else happens (no connection, no answer in time, another status, other content) is an outage, and refuses
the login. The whole exchange has one deadline, and its answer one bound, so a server that sends byte by byte gains
nothing.
"""

import io
import json
import socket
import ssl
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from qmq.access.rules import Principal
from qmq.auth.credentials import GROUPS_MAX, HTTP, Credentials, Grant, is_name
from qmq.errors import AuthenticationUnavailable, LoginRefused

ANSWER_BYTES_MAX: Final = 64 << 10
"""The status line, the headers and the body together."""


class HttpAuthenticator:
    """One service. It knows every client that names a login."""

    name = HTTP

    def __init__(self, url: str, ca: Path | None, timeout_seconds: float) -> None:
        """`url` was checked by the configuration. Raises OSError for a `ca` that cannot be used."""
        parts = urlsplit(url)
        assert parts.hostname is not None, "the configuration was checked"
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._path = parts.path or "/"
        self._tls = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        self._timeout_seconds = timeout_seconds

    def problem(self) -> str | None:
        return None

    def refresh(self) -> None:
        """It has no files."""

    def authenticate(self, credentials: Credentials, now_us: int) -> Grant | None:
        if not is_name(credentials.login):
            return None
        assert credentials.login is not None
        question = {
            "login": credentials.login,
            "passcode": credentials.passcode,
            "address": credentials.address,
            "node": credentials.node,
            "tls_names": sorted(credentials.tls_names),
        }
        try:
            answer = self._exchange(json.dumps(question).encode())
        except TimeoutError as error:
            raise AuthenticationUnavailable(f"no answer within {self._timeout_seconds:g} s") from error
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationUnavailable("its certificate is not trusted") from error
        except (HTTPException, ValueError, RecursionError) as error:
            raise AuthenticationUnavailable("its answer is not HTTP with a JSON object") from error
        except OSError as error:
            raise AuthenticationUnavailable(f"no connection: {error.strerror or 'TLS failed'}") from error
        groups = answer.get("groups", [])
        if answer.get("allow") is False:
            raise LoginRefused(HTTP, "the service denies it")
        if answer.get("allow") is not True or not isinstance(groups, list) or len(groups) > GROUPS_MAX:
            raise AuthenticationUnavailable('its answer has no "allow", or no list "groups"')
        if not all(map(is_name, groups)):
            raise AuthenticationUnavailable("its answer has a group with a bad name")
        return Grant(Principal(credentials.login, frozenset(groups)), HTTP)

    def _exchange(self, question: bytes) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout_seconds
        connected = socket.create_connection((self._host, self._port), self._timeout_seconds)
        wire = _Wire(connected, deadline)
        try:
            if self._tls is not None:
                connected.settimeout(_left(deadline))
                wire.socket = self._tls.wrap_socket(connected, server_hostname=self._host)
            connection = HTTPConnection(self._host, self._port)
            connection.sock = wire
            headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
            connection.request("POST", self._path, question, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise AuthenticationUnavailable(f"its answer has status {response.status}")
            # Never more than the bound, because memory is taken for as much as the server announces.
            body = response.read(ANSWER_BYTES_MAX + 1)
            if response.length:
                raise HTTPException("shorter than announced")
            answer = json.loads(body)
        finally:
            wire.socket.close()
        if not isinstance(answer, dict):
            raise ValueError("not an object")
        return answer


class _Wire:
    """What HTTPConnection uses of a socket, with a deadline for all of it."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self.socket = connected
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self.socket.settimeout(_left(self._deadline))
        self.socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReads(self.socket, self._deadline))

    def close(self) -> None:
        """Nothing: HTTPConnection calls it before the answer is read, because that ends with the connection."""


class _BoundedReads(io.RawIOBase):
    """Reads of a socket: until a deadline, and so many bytes."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline
        self._bytes_left = ANSWER_BYTES_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._bytes_left <= 0:
            raise AuthenticationUnavailable(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
        self._socket.settimeout(_left(self._deadline))
        count = self._socket.recv_into(memoryview(buffer)[: self._bytes_left])
        self._bytes_left -= count
        return count


def _left(deadline: float) -> float:
    """Seconds until then. Raises TimeoutError when it is past."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
