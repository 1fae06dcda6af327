"""The blocking client of the commands: an error ends the command with one line."""

from ..blocking import TIMEOUT_SECONDS as TIMEOUT_SECONDS
from ..blocking import BlockingClient, Headers, error_of
from ..wire.stomp import Frame
from .output import Failed

__all__ = ["TIMEOUT_SECONDS", "CommandClient", "Headers", "ServerError"]


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
