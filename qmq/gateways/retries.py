"""SENDs that may be there already: which ones a session cannot decide at once, and how they are answered.

A SEND whose message this node knows by its dedup id is receipted and not appended. One that says that it is tried
again (`redelivered:true`) is not decided before peers were asked: the gateway stops in front of it, the session asks
about all that follow in the same read with one question, tells `answered`, and goes on. So a client's frames keep their
order.

What was asked about counts until the read is done; whatever came meanwhile is seen because this node's own knowledge is
looked at again.
"""

from collections.abc import Collection

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.receipt_levels import FSYNC
from qmq.errors import Refused
from qmq.gateways.send_plans import SendPlan, SendPlans
from qmq.wire.stomp import Frame

Marks = tuple[tuple[str, str], ...]

HERE: Marks = (("duplicate", "true"),)
"""In the RECEIPT of a SEND whose message is on this node's disk."""

ELSEWHERE: Marks = (("duplicate", "true"), ("receipt-level", "fsync"), ("copies", "1"))
"""A peer has it, and its record has not come in time."""


class Repeats:
    """For one session."""

    __slots__ = ("_broker", "_plans", "_session_id", "asked")

    def __init__(self, session_id: int, broker: Broker, plans: SendPlans) -> None:
        self._session_id = session_id
        self._broker = broker
        self._plans = plans
        self.asked: dict[bytes, bool] = {}
        """Keys that peers were asked about for this read, and whether only they have the message."""

    def is_first(self, key: bytes, is_retry: bool, now_us: int) -> bool:
        """Whether a SEND with this key may be appended now."""
        if self._broker.dedup.find(key, now_us) is not None:
            return False
        elsewhere = self.asked.get(key)
        if elsewhere is None:
            return not (is_retry or self._broker.dedup.was_asked(key))
        return not elsewhere

    def of_commit(self, frame: Frame, now_us: int) -> list[bytes]:
        """The keys that peers must be asked about before this COMMIT. None for a transaction that is not there."""
        session = self._broker.sessions[self._session_id]
        held = session.transactions.get(frame.head.headers.get("transaction", ""), ())
        return [
            one.envelope.key
            for one in held
            if one.envelope is not None
            and one.envelope.key is not None
            and self._is_unsure(one.envelope.key, one.is_retry, now_us)
        ]

    def unsure(self, frames: list[Frame], now_us: int) -> list[bytes] | None:
        """What peers must be asked about before `frames` go on, of all SENDs that they begin with; perhaps nothing.

        None when they begin with a question to a control destination.
        """
        if frames[0].head.command == "COMMIT":
            return self.of_commit(frames[0], now_us)
        keys: list[bytes] = []
        for number, frame in enumerate(frames):
            plan = self._plan(frame)
            if plan is None:
                return keys if number else None
            if plan.key is not None and plan.transaction is None:
                if self._is_unsure(plan.key, plan.is_retry, now_us):
                    keys.append(plan.key)
        return keys

    def answered(self, keys: Collection[bytes], elsewhere: Collection[bytes]) -> None:
        """Peers were asked about `keys`; only they have `elsewhere`."""
        self.asked.update((key, key in elsewhere) for key in keys)

    def answer(self, frames: list[Frame], now_us: int, out: Outcome) -> list[Frame]:
        """Receipt the SENDs that `frames` begin with and that are appended already; returns what follows them.

        Their receipts wait for everything decided before, so for their messages too. `out` is theirs alone.
        """
        for number, frame in enumerate(frames):
            plan = self._plan(frame)
            if plan is None or plan.key is None or plan.transaction is not None:
                return frames[number:]
            if self._broker.dedup.find(plan.key, now_us) is not None:
                marks, level = HERE, max(plan.level, FSYNC)
            elif self.asked.get(plan.key):
                marks, level = ELSEWHERE, FSYNC
            else:
                return frames[number:]
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

    def _is_unsure(self, key: bytes, is_retry: bool, now_us: int) -> bool:
        dedup = self._broker.dedup
        return key not in self.asked and (is_retry or dedup.was_asked(key)) and dedup.find(key, now_us) is None

    def _plan(self, frame: Frame) -> SendPlan | None:
        if frame.head.command != "SEND":
            return None
        try:
            return self._plans.of(frame.head)
        except Refused:
            return None  # said again, and answered, when its turn comes
