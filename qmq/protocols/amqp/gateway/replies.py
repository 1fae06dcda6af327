"""What a refusal of the broker is in AMQP: a reply code, which ends the channel or the connection."""

from collections.abc import Mapping
from typing import Final

from qmq.errors import ProtocolError, Refused
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode

CODES: Final[Mapping[str, ReplyCode]] = {
    "not-allowed": ReplyCode.ACCESS_REFUSED,
    "login-failed": ReplyCode.ACCESS_REFUSED,
    "login-required": ReplyCode.ACCESS_REFUSED,
    "unknown-destination": ReplyCode.NOT_FOUND,
    "unknown-definition": ReplyCode.NOT_FOUND,
    "resource-locked": ReplyCode.RESOURCE_LOCKED,
    "declared-otherwise": ReplyCode.PRECONDITION_FAILED,
    "exchange-differs": ReplyCode.PRECONDITION_FAILED,
    "exchange-in-use": ReplyCode.PRECONDITION_FAILED,
    "has-consumers": ReplyCode.PRECONDITION_FAILED,
    "not-empty": ReplyCode.PRECONDITION_FAILED,
    "not-supported": ReplyCode.ACCESS_REFUSED,
    "stopping": ReplyCode.CONNECTION_FORCED,
    "kicked": ReplyCode.CONNECTION_FORCED,
    "node-paused": ReplyCode.CONNECTION_FORCED,
}
"""Code of a refusal → that of the reply. All others are PRECONDITION_FAILED on a channel."""

REPLACE: Final = " See replace:true."

LATE: Final = "unknown-ack"
"""A delivery was taken back before its ack came: nothing is wrong with the client."""

NACKED: Final = frozenset(
    {
        "queue-full",
        "queue-paused",
        "user-full",
        "disk-full",
        "memory-full",
        "too-few-copies",
        "too-many-destinations",
        "too-many-copies",
    }
)
"""Refusals of a publish that end nothing: the publisher gets a basic.nack, if it asked for confirms."""


def of_channel(error: ProtocolError | Refused) -> AmqpRefusal:
    """How a refusal ends its channel."""
    if isinstance(error, AmqpRefusal):
        return error
    # STOMP's way to declare otherwise is none of AMQP's.
    message = error.message.removesuffix(REPLACE)
    return AmqpRefusal(CODES.get(error.code, ReplyCode.PRECONDITION_FAILED), message)


def of_connection(error: ProtocolError | Refused) -> AmqpRefusal:
    """How a refusal ends its connection."""
    if isinstance(error, AmqpRefusal):
        return error
    code = CODES.get(error.code, ReplyCode.CONNECTION_FORCED)
    return AmqpRefusal(
        code if code is not ReplyCode.PRECONDITION_FAILED else ReplyCode.CONNECTION_FORCED, error.message
    )
