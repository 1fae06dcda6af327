"""The last value of a topic, for later subscribers.

A message sent with `retain:set` (or to a topic whose policy retains) is kept as its topic's last value until the next
one, `retain:remove`, or the end of the last node: values live in memory only. Every node of a mesh has all of them
(`qmq.broker.topics.retained_sync`). Where two nodes took values for one topic, the later one stays everywhere: by the
time stamp, then by origin, then by sequence. A node that takes a value stamps it later than the one it replaces, so
that a wrong clock never makes a client's own newer value lose against what its node already had.

Surprising: a removed value leaves a mark, or a peer that was away would bring it back. Marks are bounded; beyond
REMOVED_MAX the oldest is forgotten, and what it removed may then come back from a peer that was away all that time.

`change` numbers what happens here, so that a subscriber that gets the values page by page (`page`) is not sent
again what reached it live meanwhile. Pure.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from qmq.broker.messages.destination import DestinationKind, is_pattern
from qmq.broker.messages.message import Envelope, Message, Retain
from qmq.broker.topics.patterns import Pattern
from qmq.broker.topics.retained_sync import RetainedSync, RetainedTable, RetainedValue
from qmq.errors import Refused
from qmq.model.dots import Dot, Origin

REMOVED_MAX = 16_384
"""Marks of removed values."""

EARLY_MAX = 4096
"""Values that peers sent before their message came live; at the bound all are forgotten."""

UNKEPT_MAX = 4096
"""Topics whose value found no room; at the bound all are forgotten, and a peer may offer one again."""

SCAN_MAX = 500
"""Names looked at for one page: about 2 ms of a pattern that matches none of them."""

SCAN_VISITS_MAX = 5_000
"""Or fewer names, where the pattern is one that costs much to match."""

STAMP_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RetainedStatistics:
    """Topics with a value, the bytes of all values, and values of peers that found no room."""

    topics: int
    bytes: int
    left_out: int


class RetainedValues(RetainedTable):
    """The values of one node. `bytes` counts names, headers and bodies of values, not of marks."""

    def __init__(self, topics_max: int, bytes_max: int) -> None:
        super().__init__()
        self.topics_max = topics_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self.change = 0
        self.spreads: dict[str, RetainedSync] = {}
        """What each connected peer has not been sent yet."""
        self.left_out = 0
        """Values of peers that found no room here."""
        self._unkept: dict[str, tuple[int, Origin, int]] = {}
        """The version of each of these, by topic, because a peer offers it again on each new link."""
        self._removed: dict[str, None] = {}
        self._early: dict[Dot, None] = {}

    @property
    def topics(self) -> int:
        """How many topics have a value."""
        return len(self.values) - len(self._removed)

    def statistics(self) -> RetainedStatistics:
        """A frozen snapshot."""
        return RetainedStatistics(self.topics, self.bytes, self.left_out)

    # Clients

    def check(self, sends: list[tuple[Envelope, int]]) -> None:
        """Refuse values, given by envelope and bytes of body, that together find no room; nothing changes."""
        if not self._has_room(sends):
            raise Refused(
                "too-many-retained",
                f"The node keeps the last values of at most {self.topics_max} topics, {self.bytes_max} bytes in all.",
            )

    def _has_room(self, sends: list[tuple[Envelope, int]]) -> bool:
        topics, size = self.topics, self.bytes
        sizes: dict[str, int] = {}
        for envelope, body_bytes in sends:
            name = envelope.destination
            before = sizes.get(name)
            if before is None:
                before = self._size_of(name)
                if not before:
                    topics += 1
            sizes[name] = _size(envelope, body_bytes)
            size += sizes[name] - before
        # A bound may have become less: what does not add to that is accepted.
        return topics <= max(self.topics_max, self.topics) and size <= max(self.bytes_max, self.bytes)

    def put(self, message: Message) -> None:
        """A client of this node sent a value, or removes it. Its time stamp is raised above what it replaces."""
        known = self.values.get(message.envelope.destination)
        if known is not None and known.message.timestamp_us >= message.timestamp_us:
            message.timestamp_us = min(known.message.timestamp_us + 1, STAMP_MAX)
        self._keep(message)

    def audience(self, interested: tuple[str, ...], name: str) -> tuple[str, ...]:
        """The peers that a message which was just put goes to: all of them, also those without interest."""
        for spread in self.spreads.values():
            spread.sent(name)
        return tuple({**dict.fromkeys(interested), **dict.fromkeys(self.spreads)})

    # Peers

    def hear(self, message: Message) -> bool:
        """A peer forwards what its client sent; True when local subscribers are to get it.

        They get it once, and nothing older of the same origin after it.
        """
        dot = message.dot
        if dot in self._early:
            del self._early[dot]
            return False
        known = self.values.get(message.envelope.destination)
        if self._merge(message, message.origin.node) or known is None:
            return True
        return known.message.origin != message.origin

    def learn(self, message: Message, peer: str) -> bool:
        """`peer` says what it knows of a topic; True when it is news for local subscribers."""
        if not self._merge(message, peer):
            return False
        if len(self._early) >= EARLY_MAX:
            self._early.clear()
        self._early[message.dot] = None
        return True

    def _merge(self, message: Message, peer: str) -> bool:
        """Keep what is later than what is known, and pass it on to peers that may not hear it themselves."""
        name = message.envelope.destination
        known = self.values.get(name)
        if known is not None and _version(known.message) >= _version(message):
            return False
        is_set = message.envelope.retain is Retain.SET
        if is_set and not self._has_room([(message.envelope, len(message.body))]):
            if name in self._unkept and self._unkept[name] >= _version(message):
                return False
            if len(self._unkept) >= UNKEPT_MAX:
                self._unkept.clear()
            self._unkept[name] = _version(message)
            self.left_out += 1
            # Later subscribers must not get what this one replaces.
            if known is not None and not known.is_removed:
                self._forget(name)
            return True
        self._keep(message)
        for other, spread in self.spreads.items():
            if other != peer:
                spread.pass_on(name, message.origin)
        return True

    # Subscribers

    def page(self, pattern: Pattern, position: str, since: int, bytes_max: int) -> tuple[list[Message], str | None]:
        """Values that `pattern` matches, in the order of their names from behind `position` ("" at first) on.

        Only those that stood before the change after `since`. About `bytes_max` at once, at least one if there is
        one; the second is where to go on, None at the end.
        """
        names = self.names
        found: list[Message] = []
        index = bisect_right(names, position) if position else bisect_left(names, pattern.literal)
        end = min(len(names), index + max(1, min(SCAN_MAX, SCAN_VISITS_MAX // pattern.visits)))
        size = 0
        while index < end and size < bytes_max:
            name = names[index]
            if not name.startswith(pattern.literal):
                return found, None
            index += 1
            position = name
            message = self.older(name, since)
            if message is not None and pattern.matches(name):
                size += _size(message.envelope, len(message.body))
                found.append(message)
        return found, position if index < len(names) else None

    def older(self, name: str, since: int) -> Message | None:
        """The value of `name` if there is one and it stood before the change after `since`."""
        value = self.values.get(name)
        if value is None or value.change > since or value.is_removed:
            return None
        return value.message

    # Inside

    def _keep(self, message: Message) -> None:
        envelope = message.envelope
        name = envelope.destination
        self.bytes -= self._size_of(name)
        if name not in self.values:
            insort(self.names, name)
        self.change += 1
        if envelope.retain is Retain.REMOVE:
            kept = _mark(name, message.origin, message.sequence, message.timestamp_us)
            self._removed.pop(name, None)
            self._removed[name] = None
        else:
            # A message of its own: the one that is delivered now will carry its encoding, which must not stay.
            kept = Message(envelope, message.body, message.origin, message.sequence, message.timestamp_us)
            self._removed.pop(name, None)
        self.values[name] = RetainedValue(kept, self.change)
        self.bytes += self._size_of(name)
        if len(self._removed) > REMOVED_MAX:
            self._forget(next(iter(self._removed)))

    def _forget(self, name: str) -> None:
        self.bytes -= self._size_of(name)
        self._removed.pop(name, None)
        del self.values[name]
        del self.names[bisect_left(self.names, name)]

    def _size_of(self, name: str) -> int:
        value = self.values.get(name)
        if value is None or value.is_removed:
            return 0
        return _size(value.message.envelope, len(value.message.body))


def _size(envelope: Envelope, body_bytes: int) -> int:
    return len(envelope.destination) + len(envelope.headers) + body_bytes


def _version(message: Message) -> tuple[int, Origin, int]:
    """Which of two values stays: the greater. Memory-only messages are numbered downwards."""
    return message.timestamp_us, message.origin, -message.sequence


def _mark(name: str, origin: Origin, sequence: int, timestamp_us: int) -> Message:
    envelope = Envelope(name, DestinationKind.TOPIC, b"", False)
    envelope.retain = Retain.REMOVE
    return Message(envelope, b"", origin, sequence, timestamp_us)


def pattern_for(destination: str) -> Pattern | None:
    """The pattern that a subscription's values are paged by; None for one name, which `older` answers."""
    return Pattern(destination) if is_pattern(destination) else None
