"""How far a topic or fanout subscription may fall behind: the headers of SUBSCRIBE that say so.

`buffer-bytes`, `buffer-messages` and `overflow` are QMQ's own words; `activemq.maximumPendingMessageLimit` is taken as
ActiveMQ means it: so many messages beyond what the connection holds, the oldest dropped first, a negative number for
no bound. QMQ's words win where both are there. A subscription that says nothing has no Buffer and the node's default.
"""

from collections.abc import Mapping

from qmq.broker.consumers.buffer import MESSAGES_UNBOUNDED, OVERFLOWS, Buffer, Overflow
from qmq.broker.messages.destination import DestinationKind
from qmq.errors import Refused

OWN_WORDS = ("buffer-bytes", "buffer-messages", "overflow")
PENDING_LIMIT = "activemq.maximumPendingMessageLimit"

DIGITS_MAX = 15


def buffer_of(headers: Mapping[str, str], kind: DestinationKind, bytes_max: int) -> Buffer | None:
    """The buffer that a SUBSCRIBE declares, its bytes cut to `bytes_max`; None when it declares none."""
    own = [name for name in OWN_WORDS if name in headers]
    if kind is DestinationKind.QUEUE:
        if own:
            raise Refused(
                "bad-buffer", f"The header {own[0]} is for topics and fanouts; a queue is held back by its prefetch."
            )
        return None
    if not own:
        return _as_activemq(headers, bytes_max)
    overflow = OVERFLOWS.get(headers.get("overflow", "disconnect"))
    if overflow is None:
        raise Refused("bad-buffer", f"The header overflow is one of {', '.join(OVERFLOWS)}.")
    size = _count(headers, "buffer-bytes", bytes_max)
    return Buffer(min(size, bytes_max), _count(headers, "buffer-messages", MESSAGES_UNBOUNDED), overflow)


def _as_activemq(headers: Mapping[str, str], bytes_max: int) -> Buffer | None:
    text = headers.get(PENDING_LIMIT)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > DIGITS_MAX:
        raise Refused("bad-buffer", f"The header {PENDING_LIMIT} is a whole number of messages; below 0: no bound.")
    if text != digits:
        return None
    return Buffer(bytes_max, int(digits), Overflow.DROP_OLDEST)


def _count(headers: Mapping[str, str], name: str, default: int) -> int:
    text = headers.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX or not int(text):
        raise Refused("bad-buffer", f"The header {name} is a whole number, at least 1 and of at most 15 digits.")
    return int(text)
