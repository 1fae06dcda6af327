"""STOMP headers that QMQ understands, in the words that people already use, turned into what the broker knows.

Everything that is wrong here is refused with what would be right (design section 7: headers understood).
"""

from collections.abc import Mapping

from qmq.broker.subscription import ACK_MODES, Ack
from qmq.dots import Vector, parse_origin
from qmq.errors import Refused

PREFETCH_HEADERS = ("prefetch-count", "prefetch", "activemq.prefetchSize", "credit")

OWN_HEADERS = frozenset(
    {
        "ack",
        "content-length",
        "delivery-count",
        "destination",
        "message-id",
        "persistent",
        "receipt",
        "redelivered",
        "subscription",
        "transaction",
    }
)
"""Headers of a SEND that are the broker's business: they do not travel, or are the broker's to set on MESSAGE."""

STARTS = ("first", "next")

VECTOR_ENTRIES_MAX = 1024


def required(headers: Mapping[str, str], name: str, command: str) -> str:
    """The value of a header that the command cannot do without."""
    value = headers.get(name)
    if not value:
        raise Refused("missing-header", f"{command} needs the header {name}.")
    return value


def ack_mode(headers: Mapping[str, str]) -> Ack:
    """`ack`, `auto` when absent (STOMP 1.2, SUBSCRIBE ack Header)."""
    text = headers.get("ack", "auto")
    mode = ACK_MODES.get(text)
    if mode is None:
        raise Refused("bad-ack-mode", f"The header ack is one of {', '.join(ACK_MODES)}.")
    return mode


def prefetch(headers: Mapping[str, str], default: int, most: int) -> int:
    """The credit a queue subscription asks for, cut to `most`. Raises Refused for what is no positive number."""
    for name in PREFETCH_HEADERS:
        text = headers.get(name)
        if text is None:
            continue
        # `credit` may carry a byte count after a comma, which has no meaning here.
        count = text.partition(",")[0].strip()
        if not (count.isascii() and count.isdigit()) or int(count[:10]) < 1:
            raise Refused("bad-prefetch", f"The header {name} is a whole number of messages, at least 1.")
        return min(int(count[:10]), most)
    return default


def is_persistent(headers: Mapping[str, str]) -> bool:
    """`persistent:false` asks for memory only; anything but true and false is refused."""
    text = headers.get("persistent")
    if text is None or text == "true":
        return True
    if text == "false":
        return False
    raise Refused("bad-header", "The header persistent is true or false.")


def fanout_start(headers: Mapping[str, str]) -> str | Vector:
    """Where a fanout subscription begins: a vector to resume after, or one of STARTS (`first` when nothing is said)."""
    resume = headers.get("qmq-resume")
    if resume is not None:
        return parse_vector(resume)
    start = headers.get("x-stream-offset", "first")
    if start not in STARTS:
        raise Refused("bad-offset", f"The header x-stream-offset is one of {', '.join(STARTS)}.")
    return start


def parse_vector(text: str) -> Vector:
    """`ORIGIN=SEQUENCE,…` as the client put it together from the message-ids it has seen."""
    vector: Vector = {}
    entries = [entry for entry in text.split(",") if entry.strip()]
    if len(entries) > VECTOR_ENTRIES_MAX:
        raise Refused("bad-resume", f"The header qmq-resume has at most {VECTOR_ENTRIES_MAX} entries.")
    for entry in entries:
        origin, _, sequence = entry.strip().partition("=")
        try:
            if not (sequence.isascii() and sequence.isdigit() and len(sequence) <= 19):
                raise ValueError(sequence)
            vector[parse_origin(origin)] = int(sequence)
        except ValueError:
            raise Refused(
                "bad-resume", "The header qmq-resume is ORIGIN=SEQUENCE, with commas between, as in message-id."
            ) from None
    return vector
