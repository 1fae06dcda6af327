"""Methods: arguments ↔ objects of pamqp. Those of each message are read and written without it, in a tenth of the time.

Whatever is wrong with the arguments of a method is one error, `SYNTAX_ERROR`, which names the method.
"""

from struct import Struct, error
from typing import Final

from pamqp import base, exceptions
from pamqp import commands as commands

from qmq.protocols.amqp.codec.frames import Command
from qmq.protocols.amqp.codec.refusals import TEXT_BYTES_MAX, AmqpRefusal, ReplyCode, short_text

Method = base.Frame
"""A method with its arguments as attributes."""

BAD: Final = (error, IndexError, KeyError, ValueError, TypeError, OverflowError, RecursionError)
"""What pamqp raises for arguments that are no arguments; UnicodeDecodeError is a ValueError."""

_ACK: Final = Struct(">QB")
_LENGTH: Final = Struct(">B")

MULTIPLE: Final = 1
REQUEUE: Final = 2
MANDATORY: Final = 1
IMMEDIATE: Final = 2


def read_method(command: Command) -> Method:
    """The method of a command. Raises AmqpRefusal: COMMAND_INVALID if it is unknown, SYNTAX_ERROR for bad arguments."""
    kind: type[Method] | None = commands.INDEX_MAPPING.get(command.class_id << 16 | command.method_id)
    if kind is None:
        raise AmqpRefusal(
            ReplyCode.COMMAND_INVALID, f"there is no method {command.method_id} of the class {command.class_id}"
        )
    # Not by its constructor: that of basic.recover-async warns, and every argument is set in the next step.
    method = kind.__new__(kind)
    try:
        method.unmarshal(command.arguments)
    except (*BAD, exceptions.PAMQPException) as problem:
        raise AmqpRefusal(ReplyCode.SYNTAX_ERROR, f"{kind.name} has bad arguments") from problem
    return method


def encode_method(method: Method) -> bytes:
    """Class, number and arguments of a method."""
    return method.index.to_bytes(4, "big") + method.marshal()


def read_publish(arguments: bytes) -> tuple[str, str, int]:
    """Exchange, routing key, and the bits MANDATORY and IMMEDIATE of basic.publish. Raises AmqpRefusal."""
    try:
        at = 3 + arguments[2]
        exchange = arguments[3:at].decode()
        end = at + 1 + arguments[at]
        key = arguments[at + 1 : end].decode()
        return exchange, key, arguments[end]
    except (IndexError, ValueError) as problem:
        raise AmqpRefusal(ReplyCode.SYNTAX_ERROR, "Basic.Publish has bad arguments") from problem


def read_ack(arguments: bytes) -> tuple[int, bool]:
    """Delivery tag and `multiple` of basic.ack. Raises AmqpRefusal."""
    tag, bits = _settling(arguments, "Basic.Ack")
    return tag, bool(bits & MULTIPLE)


def read_nack(arguments: bytes) -> tuple[int, bool, bool]:
    """Delivery tag, `multiple` and `requeue` of basic.nack. Raises AmqpRefusal."""
    tag, bits = _settling(arguments, "Basic.Nack")
    return tag, bool(bits & MULTIPLE), bool(bits & REQUEUE)


def _settling(arguments: bytes, name: str) -> tuple[int, int]:
    try:
        tag, bits = _ACK.unpack(arguments)
    except error as problem:
        raise AmqpRefusal(ReplyCode.SYNTAX_ERROR, f"{name} has bad arguments") from problem
    return tag, bits


def short_string(text: str) -> bytes:
    """A short string, at most 255 bytes; a longer text is cut between two characters."""
    data = text.encode()
    if len(data) > TEXT_BYTES_MAX:
        data = short_text(text).encode()
    return _LENGTH.pack(len(data)) + data
