"""SENDs that may be there already: which ones a session cannot decide at once, and how they are answered.

A SEND whose message this node knows by its dedup id is confirmed and not appended. If it makes copies, each of them is
known by its own: those that are missing are appended, and it is a duplicate when there are none. A retry
(`redelivered:true`), or a SEND of which a part is known, is not decided before peers were asked: the gateway pauses
before it, the session asks about those that follow in the same read with one query, calls `answered`, and continues. So
a client's frames keep their order.

What was asked about counts until the read is done. This node's own knowledge is looked at again after the query.
"""

from collections.abc import Collection

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.dedup_learning import keys_of, missing_of
from qmq.broker.messages.message import Envelope
from qmq.broker.messages.receipt_levels import FSYNC
from qmq.errors import Refused
from qmq.gateways.paused import Command, Paused, PauseReason
from qmq.gateways.send_plans import SendPlan, SendPlans
from qmq.wire.stomp import Frame

Marks = tuple[tuple[str, str], ...]

HERE: Marks = (("duplicate", "true"),)
"""In the RECEIPT of a SEND whose message is on this node's disk."""

ELSEWHERE: Marks = (("duplicate", "true"), ("receipt-level", "fsync"), ("copies", "1"))
"""A peer has it, and its record has not come in time."""

KEYS_AT_ONCE = 10_000
"""Of one query, and those of the SEND that exceeds them: a SEND can make 1,000 copies."""


class Repeats:
    """For one session."""

    __slots__ = ("_broker", "_plans", "_session_id", "asked")

    def __init__(self, session_id: int, broker: Broker, plans: SendPlans) -> None:
        self._session_id = session_id
        self._broker = broker
        self._plans = plans
        self.asked: dict[bytes, bool] = {}
        """Keys that peers were asked about for this read, and whether only they have the message."""

    def to_append(self, plan: SendPlan, now_us: int) -> Envelope | None:
        """The envelope of what a SEND with this plan, which has a key, must still append; None: it may not be decided
        now, or is a duplicate. In a transaction, COMMIT decides that.
        """
        if plan.transaction is not None or not plan.is_bounded:
            return plan.envelope
        return None if self._unsure(plan.envelope, plan.is_retry, now_us) else self._missing(plan.envelope, now_us)

    def _missing(self, envelope: Envelope, now_us: int) -> Envelope | None:
        return missing_of(envelope, self._broker.dedup, now_us, self.asked)

    def of_commit(self, transaction: str, now_us: int) -> list[bytes]:
        """The keys that peers must be asked about before it is committed. None for one that is not there."""
        held = self._broker.sessions[self._session_id].transactions.get(transaction, ())
        return [
            key
            for one in held
            if one.envelope is not None and one.envelope.key is not None
            for key in self._unsure(one.envelope, one.is_retry, now_us)
        ]

    def pause(self, frames: list[Command], now_us: int) -> Paused:
        """Stop before the first of `frames`, a SEND that may not be appended now, with all keys that peers must be
        asked about; perhaps none.

        After a query in the same read, a duplicate is answered before there is another query: what a query is about
        is decided before it ends.
        """
        if self.asked and not self.unsure(frames[:1], now_us):
            return Paused(PauseReason.DEDUP, frames)
        return Paused(PauseReason.DEDUP, frames, self.unsure(frames, now_us))

    def unsure(self, frames: list[Command], now_us: int) -> list[bytes]:
        """The keys that peers must be asked about, of the SENDs that `frames` begin with: of all, or of many."""
        keys: list[bytes] = []
        for frame in frames:
            plan = self._plan(frame)
            if plan is None or len(keys) >= KEYS_AT_ONCE:
                break
            if plan.key is not None and plan.transaction is None:
                keys += self._unsure(plan.envelope, plan.is_retry, now_us)
        return keys

    def answered(self, keys: Collection[bytes], elsewhere: Collection[bytes]) -> None:
        """Peers were asked about `keys`; only they have `elsewhere`."""
        self.asked.update((key, key in elsewhere) for key in keys)

    def answer(self, frames: list[Command], now_us: int, out: Outcome) -> list[Command]:
        """Receipt the SENDs that `frames` begin with and that are appended already; returns what follows them.

        Their receipts wait for everything decided before, so for their messages too. `out` is theirs alone.
        """
        for number, frame in enumerate(frames):
            plan = self._plan(frame)
            if plan is None or plan.key is None or plan.transaction is not None:
                return frames[number:]
            if self._missing(plan.envelope, now_us) is not None:
                return frames[number:]
            if any([self._broker.dedup.find(key, now_us) is None for key in keys_of(plan.envelope)]):
                marks, level = ELSEWHERE, FSYNC
            else:
                marks, level = HERE, max(plan.level, FSYNC)
            if out.repeats and out.marks is not marks:
                return frames[number:]
            out.repeats = True
            out.marks = marks
            if frame.receipt is not None:
                out.receipt(frame.receipt, level)
        self.forget()
        return []

    def forget(self) -> None:
        """The read is done."""
        if self.asked:
            self.asked = {}

    def _unsure(self, envelope: Envelope, is_retry: bool, now_us: int) -> list[bytes]:
        """The keys of a SEND that peers must be asked about before it is decided. That a part is known makes it one
        that is tried again."""
        dedup = self._broker.dedup
        keys = keys_of(envelope)
        unknown = [key for key in keys if dedup.find(key, now_us) is None]
        is_retry = is_retry or len(unknown) < len(keys)
        return [key for key in unknown if key not in self.asked and (is_retry or dedup.was_asked(key))]

    def _plan(self, frame: Command) -> SendPlan | None:
        if not isinstance(frame, Frame) or frame.head.command != "SEND":
            return None
        try:
            return self._plans.of(frame.head)
        except Refused:
            return None  # said again, and answered, when its turn comes
