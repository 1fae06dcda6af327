"""What the sender of a queue message asks for it: priority, when it is due, when it expires, how long an ACK may take.

The options are read from the message's own header block, which travels unchanged to every node and into every store, so
nothing about a message has to be remembered beside it. Times on the wire are milliseconds (`ack-timeout`: seconds);
inside they are microseconds of wall clock, as everywhere. A time relative to the message counts from its acceptance.

Two readings of one table: `check_options` refuses what is wrong when a message is accepted, `options_of` reads what was
accepted, perhaps by a later version, and takes what it does not understand as not said.
"""

import re
from typing import Final

from qmq.errors import Refused
from qmq.model.levels import EXACT_LEVEL, exact_number

PRIORITY_DEFAULT: Final = 4
PRIORITY_MAX: Final = 9
MILLISECONDS_MAX: Final = 100 * 366 * 86_400_000
"""A hundred years: more is a mistake in the unit."""

GROUP_BYTES_MAX: Final = 255

_ASKED = re.compile(
    rb"^(priority|expires|expiration|ttl|delay|AMQ_SCHEDULED_DELAY|ack-timeout|JMSXGroupID|message_group):([^\n]*)$",
    re.MULTILINE,
)


class SendOptions:
    """What one header block asks for. Zero means not asked, but for `priority` and `level`."""

    __slots__ = ("ack_timeout_us", "delay_us", "exact", "expires_us", "group", "level", "priority", "ttl_us")

    def __init__(self) -> None:
        self.priority = PRIORITY_DEFAULT
        self.level = PRIORITY_DEFAULT
        """See `qmq.model.levels`."""
        self.exact = 0
        self.ttl_us = 0
        self.expires_us = 0
        self.delay_us = 0
        self.ack_timeout_us = 0
        self.group = b""

    @property
    def is_timed(self) -> bool:
        """Whether `due` or `expiry` of a message with these options is not 0."""
        return bool(self.ttl_us or self.expires_us or self.delay_us)

    def due(self, timestamp_us: int) -> int:
        """From when on a message accepted at `timestamp_us` may be delivered; 0: at once."""
        return timestamp_us + self.delay_us if self.delay_us else 0

    def expiry(self, timestamp_us: int) -> int:
        """From when on it must not be delivered any more; 0: never. A delay does not prolong a `ttl`."""
        relative = timestamp_us + self.ttl_us if self.ttl_us else 0
        if relative and self.expires_us:
            return min(relative, self.expires_us)
        return relative or self.expires_us


def options_of(headers: bytes) -> SendOptions | None:
    """The options in a block of STOMP 1.2 header lines; None when it has none."""
    found = _ASKED.findall(headers)
    if not found:
        return None
    options = _read(found, is_strict=False)
    options.level = options.priority
    if any([name == b"priority" for name, _ in found]):
        options.exact = exact_number(headers, options.priority)
    if options.exact:
        options.level += EXACT_LEVEL
    return options


def check_options(headers: bytes) -> None:
    """Raises Refused for a value that means nothing, saying what would."""
    found = _ASKED.findall(headers)
    if found:
        _read(found, is_strict=True)


def times_of(headers: bytes, timestamp_us: int) -> tuple[int, int]:
    """(due, expiry) in µs of a message accepted at `timestamp_us` with these headers; 0 where it has none."""
    options = options_of(headers)
    return (0, 0) if options is None else (options.due(timestamp_us), options.expiry(timestamp_us))


def read_seconds(text: str, name: str) -> int:
    """Seconds, with a fraction if need be, as µs. Raises Refused for what is no time from 1 ms to a hundred years."""
    whole, dot, fraction = text.strip().partition(".")
    digits = whole + fraction
    if digits.isascii() and digits.isdigit() and len(whole) <= 12 and len(fraction) <= 9 and (whole or fraction):
        found = int(whole or "0") * 1_000_000 + int((fraction + "000000")[:6])
        if found == 0 or 1000 <= found <= MILLISECONDS_MAX * 1000:
            return found
    raise Refused("bad-header", f"The header {name} is a number of seconds, such as 30 or 0.5; 0 for none.")


def _read(found: list[tuple[bytes, bytes]], is_strict: bool) -> SendOptions:
    options = SendOptions()
    seen: set[bytes] = set()
    for name, value in found:
        if name in seen:
            continue  # The first of repeated headers counts (STOMP 1.2, "Repeated Header Entries").
        seen.add(name)
        try:
            _take(options, name.decode(), value.decode("utf-8", "replace"))
        except Refused:
            if is_strict:
                raise
    return options


def _take(options: SendOptions, name: str, text: str) -> None:
    if name == "priority":
        if len(text) != 1 or not "0" <= text <= "9":
            raise Refused("bad-priority", f"The header priority is a whole number from 0 to {PRIORITY_MAX}.")
        options.priority = int(text)
    elif name in ("JMSXGroupID", "message_group"):
        group = text.encode()
        if len(group) > GROUP_BYTES_MAX:
            raise Refused("bad-header", f"The header {name} has at most {GROUP_BYTES_MAX} bytes.")
        options.group = options.group or group
    elif name == "ack-timeout":
        options.ack_timeout_us = read_seconds(text, name)
    else:
        if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > MILLISECONDS_MAX:
            raise Refused("bad-header", f"The header {name} is a whole number of milliseconds; 0 for none.")
        microseconds = int(text) * 1000
        if name == "expires":
            options.expires_us = microseconds
        elif name in ("expiration", "ttl"):
            options.ttl_us = options.ttl_us or microseconds
        else:
            options.delay_us = options.delay_us or microseconds
