"""The blocking client of the commands, and how they reach a node: an error ends the command with one line."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
