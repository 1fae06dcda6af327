"""The blocking client of the commands, and how they reach a node: an error ends the command with one line."""

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from ..address import Address
from ..client.connection import TIMEOUT_SECONDS as TIMEOUT_SECONDS
from ..client.connection import Headers, NodeConnection
from ..client.core.failures import error_of
from ..wire.stomp import Frame
from .output import Failed, printable

__all__ = ["TIMEOUT_SECONDS", "CommandClient", "Endpoint", "Headers", "Login", "ServerError", "headers_of"]


def headers_of(**values: str | int | None) -> list[tuple[str, str]]:
    """The headers of a request, with hyphens in their names. None and False are left out; True is `true`."""
    said = [
        (name.replace("_", "-"), value) for name, value in values.items() if value is not None and value is not False
    ]
    return [(name, "true" if value is True else str(value)) for name, value in said]


class ServerError(Failed):
    """The node answered with an ERROR frame and closes the connection."""

    def __init__(self, address: str, frame: Frame) -> None:
        error = error_of(frame)
        self.code, self.detail = error.code, error.detail
        super().__init__(f"{address}: {error.message} ({error.code})")


class CommandClient(NodeConnection):
    """Raises Failed and ServerError where NodeConnection raises NotConnected and Refused."""

    def failure(self, text: str) -> Exception:
        return Failed(text)

    def refusal(self, frame: Frame) -> Exception:
        return ServerError(self.address, frame)


@dataclass(frozen=True, slots=True)
class Login:
    """What a command shows to a node; without `tls` it speaks plain STOMP."""

    name: str | None = None
    passcode: str | None = None
    tls: ssl.SSLContext | None = None


ANSWERS: Final = "/temp-queue/answers"
"""Where a command gets the response to a control request."""

STOPPING: Final = "stopping"
"""The code with which a node that drains refuses a client: others may serve it."""


class Endpoint:
    """One node of some, as the options of a command name it: its address, or the path of its Unix socket."""

    def __init__(self, addresses: Sequence[Address | Path], login: Login, patience_seconds: float) -> None:
        self._addresses = list(addresses)
        self._login = login
        self._patience_seconds = patience_seconds

    def connect(self) -> CommandClient:
        """A connection to the first of the nodes that responds, logged in; later calls begin with that node.

        A line on stderr names nodes that did not respond. A node that refuses the client is asked for no other: the
        login is wrong there, too. Raises Failed or ServerError.
        """
        failures: list[Failed] = []
        for address in list(self._addresses):
            try:
                client = self._connect(address)
            except Failed as failure:
                if isinstance(failure, ServerError) and failure.code != STOPPING:
                    raise
                failures.append(failure)
                continue
            if failures:
                self._addresses.remove(address)
                self._addresses.insert(0, address)
                click.echo(printable(f"qmq: {failures[0].message}; {client.address} responds"), err=True)
            return client
        if len(failures) == 1:
            raise failures[0]
        raise Failed("; ".join(failure.message for failure in failures))

    def at(self, address: Address) -> "Endpoint":
        """Another node, with the same login."""
        return Endpoint([address], self._login, self._patience_seconds)

    def _connect(self, address: Address | Path) -> CommandClient:
        return CommandClient(
            address,
            login=self._login.name,
            passcode=self._login.passcode,
            tls=self._login.tls,
            timeout_seconds=self._patience_seconds,
        )


def ask(
    node: Endpoint, destination: str, headers: Headers = (), body: bytes = b"", *, seconds_min: float = 0.0
) -> dict[str, Any]:
    """The JSON response to a control request, which may take `seconds_min` at least. Raises Failed or ServerError."""
    with node.connect() as client:
        client.timeout_seconds = max(client.timeout_seconds, seconds_min)
        return ask_over(client, destination, headers, body)


def ask_over(client: CommandClient, destination: str, headers: Headers = (), body: bytes = b"") -> dict[str, Any]:
    """The same over a connection, which an ERROR of the node ends."""
    asked = [("destination", f"/control/{destination}"), ("reply-to", ANSWERS), *headers]
    client.write(client.frame("SEND", asked, body))
    frame = client.receive(client.timeout_seconds)
    if frame is None:
        raise Failed(f"{client.address}: no answer within {client.timeout_seconds:g} s")
    try:
        facts = json.loads(frame.body)
    except ValueError as error:
        raise Failed(f"{client.address}: sends no JSON; is it a QMQ node?") from error
    if not isinstance(facts, dict):
        raise Failed(f"{client.address}: sends no facts; is it a QMQ node?")
    return facts
