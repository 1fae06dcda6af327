"""First attempts of messages whose retry is recorded too: they are settled, so that the message is processed once.

A publisher that gets no RECEIPT sends its message again, at any node. If the node of the first attempt could not be
asked, both attempts are recorded under one dedup id (`qmq.broker.messages.dedup`). The rule for queues:

    The node that serves a first attempt settles it when it has the record of a retry. A retry never gives way.

The rule loses no message. The retry to which a first attempt gives way is settled only by what settles any message: a
consumer, its expiry, a dead letter. If the retry is adopted, its copy is a retry too. So the order in which records
arrive does not matter, nor what has become of the retry, nor how many nodes decide at once. A symmetric rule is not
safe: of two equal records each can give way to the other when one of them was adopted under a new dot.

What still doubles a message: two retries, and a first attempt that is with a consumer before the retry is known.

Attempts with more than SECONDS between them, by the clocks of their nodes, are two messages. If the clock of one of
these nodes was never heard, as after a relay brought its record, it counts as equal to ours. If that makes two
messages, they are compared again when a clock is heard for the first time (`take_unjudged`). Dead letters take no part:
dead letters from two queues may have one id in the dead letter queue.
"""

from typing import Final

from qmq.broker.messages.dedup import SECONDS, Dedup, is_dead_letter, is_retry
from qmq.broker.messages.message import Message
from qmq.broker.messages.peer_clocks import PeerClocks
from qmq.model.dots import Dot

WINDOW_US: Final = SECONDS * 1_000_000

UNJUDGED_MAX: Final = 10_000
"""First attempts that wait for a clock; the oldest is given up."""


class FirstAttempts:
    """Those of one node's queues; `dedup` knows the retries."""

    def __init__(self, own: str, dedup: Dedup, clocks: PeerClocks) -> None:
        self._own = own
        self._dedup = dedup
        self._clocks = clocks
        self._unjudged: dict[Dot, None] = {}
        self.unjudged_max = UNJUDGED_MAX

    def is_superseded(self, message: Message) -> bool:
        """Whether a durable queue message that is not settled is a first attempt, and its retry is recorded here."""
        envelope = message.envelope
        retry = None if envelope.key is None else self._dedup.retries.get(envelope.key)
        if retry is None or is_retry(envelope.headers) or is_dead_letter(envelope.headers):
            return False
        if abs(self._here_us(*retry) - self._here_us(message.origin.node, message.timestamp_us)) <= WINDOW_US:
            return True
        if any(node != self._own and self._clocks.apart_us(node) is None for node in (retry[0], message.origin.node)):
            self._unjudged[message.dot] = None
            if len(self._unjudged) > self.unjudged_max:
                del self._unjudged[next(iter(self._unjudged))]
        return False

    def take_unjudged(self) -> list[Dot]:
        """Those that `is_superseded` has let pass although a clock was unknown; it may answer otherwise now."""
        unjudged = list(self._unjudged)
        self._unjudged.clear()
        return unjudged

    def _here_us(self, node: str, stamp_us: int) -> int:
        return stamp_us + (self._clocks.apart_us(node) or 0)
