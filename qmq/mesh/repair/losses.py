"""Records that no member has any more: what a node decides about them, and how its readers learn it."""

from collections.abc import Callable

from qmq.broker.consumers.outcome import Outcome
from qmq.engine.parts import EngineParts
from qmq.model.dots import Origin
from qmq.storage.format.lost_record import LostRange, pack_lost
from qmq.storage.format.record import RecordKind


class Losses:
    """`add_event`: for the operator."""

    def __init__(self, engine: EngineParts, add_event: Callable[[str, str], None]) -> None:
        self._engine = engine
        self._add_event = add_event

    def accept_gap(self, origin: Origin, through: int) -> None:
        """No reachable peer keeps the records of `origin` up to `through`: this node goes on without them."""
        engine, broker = self._engine, self._engine.broker
        self._add_event("gap", f"records of {origin} up to {through} are no longer kept by any reachable peer")
        now_us = engine.environment.now_us()
        out = Outcome(now_us=now_us)
        broker.note_gap(origin, through, now_us, out)
        broker.durable_subscriptions.give_up(origin, through)
        received = engine.path.received_vector()
        received[origin] = max(through, received.get(origin, 0))
        engine.path.submit(out)

    def note_lost(self, missing: LostRange, out: Outcome) -> None:
        """No member has all of it any more. Fanout readers are notified from now on, and by later runs once `out` is
        durable.
        """
        origin, first, last = missing
        broker = self._engine.broker
        self._add_event("gap", f"of the records {first} to {last} of {origin} no member has all any more")
        broker.note_fact(RecordKind.GONE, pack_lost(missing), out.now_us, out)
        broker.durable_subscriptions.lost_ranges.add(origin, last)
        out.lost_ranges.append((origin, first - 1, last))
