"""How far the clocks of other nodes are from ours, so that a time which another node noted can be read here.

Frames carry their sender's clock. Ours at their arrival, less that, is how far the clocks are apart plus the way of the
frame; the smallest of the last looks is right but for the fastest way. A new life of a node has a new clock. Pure.

Surprising: times are not moved, the question is: what a message's owner would read now from its own clock. So a `ttl`
and an `expires` mean the same everywhere. And because the way is counted as if nothing had passed, a lent message is
late here only when it is at its owner, too: nothing goes back as late that its owner would lend again.

Our own clock may be in doubt (`qmq.mesh.membership.clock_check`): then nothing expires by it that was there when it
began.

For messages that this node serves for another, how far the clocks are apart is settled when it begins (`serve`):
queues remember until when they have looked, and a distance that moved could hide what became due in between.
"""

from typing import Final

from qmq.broker.messages.message import Message
from qmq.model.dots import Origin

WINDOW_US: Final = 8_000_000
"""Looks older than twice this do not count while there are newer ones: clocks are corrected, slowly."""


class _Known:
    __slots__ = ("before_us", "began_us", "least_us", "origin")

    def __init__(self, origin: Origin, began_us: int, apart_us: int) -> None:
        self.origin = origin
        self.began_us = began_us
        self.least_us = self.before_us = apart_us


class PeerClocks:
    """One entry per peer that was heard of."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self.served_us: dict[str, int] = {}
        """Nodes that are served here → how far our clock counts as ahead of theirs, where that is not 0."""
        self.in_doubt_us = 0
        """How far our own clock may be ahead of the time at which it began: what was there before is not late yet."""
        self._began_us = 0
        self._is_silent = False

    def doubt(self, began_us: int, ahead_us: int, *, is_silent: bool) -> None:
        """Our clock, which began at `began_us`, may be `ahead_us` ahead. `is_silent`: peers hear no time of it."""
        self._began_us, self.in_doubt_us, self._is_silent = began_us, ahead_us, is_silent

    def believe(self) -> None:
        """Our clock is right."""
        self.doubt(0, 0, is_silent=False)

    def shown_time(self, now_us: int) -> int:
        """What peers hear of our clock; 0: nothing."""
        return 0 if self._is_silent else now_us

    def serve(self, node: str) -> None:
        """This node hands out the messages of `node` from now on."""
        apart_us = self.apart_us(node)
        if apart_us:
            self.served_us[node] = apart_us

    def cease(self, node: str) -> None:
        """It does so no more."""
        self.served_us.pop(node, None)

    def due(self, message: Message) -> int:
        """From when on by our clock a message that is served here may be delivered; 0: at once."""
        options = message.envelope.options
        due_us = 0 if options is None else options.due(message.timestamp_us)
        return due_us + self.served_us.get(message.origin.node, 0) if due_us and self.served_us else due_us

    def expiry(self, message: Message) -> int:
        """From when on by our clock a message that is served here is too late; 0: never."""
        options = message.envelope.options
        if options is None:
            return 0
        late_us = options.expiry(message.timestamp_us)
        if late_us and message.origin.node in self.served_us:
            return late_us + self.served_us[message.origin.node]
        if late_us and self.in_doubt_us and (options.expires_us or message.timestamp_us < self._began_us):
            return late_us + self.in_doubt_us
        return late_us

    def heard(self, peer: Origin, theirs_us: int, now_us: int) -> bool:
        """A frame of `peer` says what its clock was when it was sent; 0: it says nothing. Whether it is the first."""
        apart_us = now_us - theirs_us
        known = self._known.get(peer.node)
        if known is None or known.origin != peer:
            # Of a new incarnation that says nothing, the clock of an earlier one says nothing either.
            self._known.pop(peer.node, None)
            if theirs_us:
                self._known[peer.node] = _Known(peer, now_us, apart_us)
            return theirs_us != 0
        if not theirs_us:
            return False
        if now_us - known.began_us >= WINDOW_US:
            known.before_us = known.least_us if now_us - known.began_us < 2 * WINDOW_US else apart_us
            known.began_us, known.least_us = now_us, apart_us
        known.least_us = min(known.least_us, apart_us)
        return False

    def apart_us(self, node: str) -> int | None:
        """How far our clock is ahead of that of `node`; None when that was never heard."""
        known = self._known.get(node)
        return None if known is None else min(known.least_us, known.before_us)

    def time_at(self, node: str, now_us: int) -> int:
        """What the clock of `node` shows when ours shows `now_us`; taken to be the same when it was never heard."""
        return now_us - (self.apart_us(node) or 0)

    def has_expired(self, message: Message, now_us: int) -> bool:
        """Whether a message that its owner has lent us is late by its owner's clock. Not if that was never heard, or
        if another serves it: the lender has looked itself, and would lend again what we return."""
        options = message.envelope.options
        if options is None or not options.is_timed or message.owner != message.origin.node:
            return False
        apart_us = self.apart_us(message.owner)
        if apart_us is None:
            return False
        return 0 < options.expiry(message.timestamp_us) <= now_us - apart_us
