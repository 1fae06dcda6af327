"""The blocking client of the commands, and how they reach a node: an error ends the command with one line."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from ..address import Address
from ..blocking import TIMEOUT_SECONDS as TIMEOUT_SECONDS
from ..blocking import BlockingClient, Headers, error_of
from ..wire.stomp import Frame
from .output import Failed

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
        self.code, said, self.detail = error_of(frame)
        super().__init__(f"{address}: {said}" + (f" ({self.code})" if self.code else ""))


class CommandClient(BlockingClient):
    """Raises Failed and ServerError where a BlockingClient raises NotConnected and Refused."""

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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One node, as the options of a command name it: its address, or the path of its Unix socket."""

    address: Address | Path
    login: Login
    patience_seconds: float

    def connect(self) -> CommandClient:
        """A connection that is logged in. Raises Failed or ServerError."""
        login = self.login
        return CommandClient(
            self.address,
            login=login.name,
            passcode=login.passcode,
            tls=login.tls,
            timeout_seconds=self.patience_seconds,
        )
