"""Damage that readers of the stores have found: reports each once, and schedules its repair."""

from collections.abc import Callable

from qmq.engine.runtime.contexts import Reporting
from qmq.storage.store import Store


class DamageReport:
    """One event for each place, however often it is read."""

    def __init__(self, store: Store, reports: Reporting) -> None:
        self._store = store
        self._reports = reports
        self._reported: set[str] = set()
        self._rows = 0
        self._repairs: list[Callable[[], None]] = []
        self._row_repairs: list[Callable[[], None]] = []

    def follow(self, schedule: Callable[[], None], *, of_rows: bool = False) -> None:
        """Call `schedule` when something is found; with `of_rows` also for rows of the queue store."""
        self._repairs.append(schedule)
        if of_rows:
            self._row_repairs.append(schedule)

    def check(self) -> None:
        """Report what was found since the last call."""
        met = self._store.queues.damage.met
        if met > self._rows:
            self._rows = met
            for schedule in self._row_repairs:
                schedule()
        for what in self._store.damage():
            if what not in self._reported:
                self._reported.add(what)
                for schedule in self._repairs:
                    schedule()
                text = f"{what}; the records are requested from peers and not reported as missing"
                self._reports.add_event("damage", text)
