"""Reply codes of AMQP 0-9-1 (1.1, "Constants"), and the error that carries one."""

from enum import IntEnum
from typing import Final

from qmq.errors import RemoteProtocolError

TEXT_BYTES_MAX: Final = 255
"""Of a short string, as a reply text is."""


class ReplyCode(IntEnum):
    """Why a channel or a connection ends."""

    CONTENT_TOO_LARGE = 311
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


ENDS_CHANNEL: Final = frozenset(
    {
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)
"""Codes that end the channel. The others end the connection."""


class AmqpRefusal(RemoteProtocolError):
    """The client asked for what is not allowed, or broke the protocol: its channel or connection ends."""

    def __init__(self, reply: ReplyCode, message: str) -> None:
        super().__init__(reply.name.lower().replace("_", "-"), message)
        self.reply = reply

    @property
    def text(self) -> str:
        """The reply text, as RabbitMQ writes it: the name of the code first."""
        return short_text(f"{self.reply.name} - {self.message}")

    @property
    def ends_channel(self) -> bool:
        """Whether the connection continues."""
        return self.reply in ENDS_CHANNEL


def short_text(text: str) -> str:
    """As much of `text` as a short string has room for."""
    return text.encode()[:TEXT_BYTES_MAX].decode("utf-8", "ignore")
