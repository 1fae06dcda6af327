"""Removes what a node remembers and needs no longer: dead incarnations, deleted subscriptions, deleted fanouts and
definitions.

The checkpointer calls it, one call at a time. An incarnation is collected in steps: `collectable` reports those of
which this node stores nothing; when no member stores anything, `forget_dead` removes them from vectors and facts.
"""

import threading
from collections.abc import Collection, Mapping
from typing import Final

from qmq.definitions.table import Obsolete
from qmq.definitions.tombstones import TombstoneRounds
from qmq.model.cursors import surplus_deletions
from qmq.model.deletions import Deletion
from qmq.model.dots import Origin, Vector
from qmq.storage.catalog.facts import stable_fact
from qmq.storage.catalog.incarnations import Seal
from qmq.storage.checkpoints.facts import CheckpointFacts
from qmq.storage.checkpoints.retention import LogRetention
from qmq.storage.fanouts.open_logs import FanoutLogs
from qmq.storage.format.delete_record import deletion_facts
from qmq.storage.format.interfaces import SEQUENCE_MAX, Catalog, CheckpointState
from qmq.storage.format.lost_record import lost_facts
from qmq.storage.format.queue_store import QueueStore
from qmq.storage.format.settings import StoreSettings
from qmq.storage.log.journal import Journal

POLL_AGAIN_SECONDS: Final = 60
"""Time between two checks for records of dead incarnations, when some were found."""
_SECOND_US: Final = 1_000_000


class Cleanup:
    """`lock` guards the open fanout logs."""

    def __init__(
        self,
        catalog: Catalog,
        queues: QueueStore,
        journal: Journal,
        logs: FanoutLogs,
        facts: CheckpointFacts,
        retention: LogRetention,
        settings: StoreSettings,
        lock: threading.RLock,
    ) -> None:
        self._catalog = catalog
        self._queues = queues
        self._journal = journal
        self._logs = logs
        self._facts = facts
        self._retention = retention
        self._settings = settings
        self._lock = lock
        self._next_look_us = 0
        self._rounds = TombstoneRounds(settings.journal_age_seconds_max * _SECOND_US)

    def forget_dead(self, members: set[str]) -> tuple[Origin, ...]:
        """Remove the dead incarnations of which no member stores anything. Returns them.

        The names are stored first. If a crash interrupts the other steps, the next opening completes them.
        """
        facts = self._facts
        dead = self._dropped(facts.seals.forgettable(members))
        if dead:
            facts.lost.forget(dead)
            deleted = deletion_facts(facts.deletions, facts.deletions.forget_origins(dead))
            self._catalog.set_facts(facts.seals.forget(dead) | lost_facts(facts.lost, dead) | deleted)
            state = CheckpointState(self._logs.state.position, facts.seals.without(self._logs.state.vector))
            changed = [cursor for cursor in facts.cursors.values() if cursor.forget_origins(facts.seals.forgotten)]
            self._catalog.commit_checkpoint(state, {}, changed)
            self._logs.commit(state, {})
            base = self._catalog.base()
            self._catalog.set_base(CheckpointState(base.position, facts.seals.without(base.vector)))
            self._journal.forget(facts.seals.without)
        return tuple(dead)

    def _dropped(self, sealed: Vector) -> list[Origin]:
        """Those of which the journal holds nothing any more."""
        base = self._journal.base() if sealed else {}
        return [origin for origin, last in sealed.items() if base.get(origin, 0) >= last]

    def collectable(self, sealed: Vector, now_us: int) -> tuple[Seal, ...]:
        """Those of which this node stores nothing at all. Reads fanout logs, so it runs only at intervals."""
        found = self._dropped(sealed)
        if not found or now_us < self._next_look_us:
            return ()
        found = [origin for origin in found if not self._queues.unsettled(origin, 0, SEQUENCE_MAX, 1)]
        missing_origins = {missing.origin for missing in self._queues.missing_ranges()} if found else set()
        found = [origin for origin in found if origin not in missing_origins]
        waiting = len(found)
        for destination, extent in list(self._logs.extents.items()):
            if not found:
                break
            if extent.records:
                with self._lock:
                    chain = self._logs.hold(destination).chain
                    for segment in chain.segments:
                        kept = chain.contents(segment)[0]
                        found = [origin for origin in found if origin not in kept]
                    self._logs.release()
        if len(found) < waiting:
            # Retention will remove the other records later; check again after a while.
            self._next_look_us = now_us + POLL_AGAIN_SECONDS * _SECOND_US
        return tuple(Seal(origin, sealed[origin], True) for origin in found)

    def forget_subscriptions(self, now_us: int) -> None:
        """Forget deleted durable subscriptions when no older record can arrive, or when there are too many."""
        facts = self._facts
        oldest_us = now_us - self._settings.journal_age_seconds_max * _SECOND_US
        old = [
            c for c in facts.cursors.values() if not c.created_us and self._retention.shift.of(c.deleted_us) < oldest_us
        ]
        for cursor in old:
            del facts.cursors[cursor.name]
        surplus = surplus_deletions(facts.cursors.values())
        for cursor in surplus:
            del facts.cursors[cursor.name]
        old += surplus
        for cursor in old:
            cursor.deleted_us = 0
        if old:
            self._catalog.commit_checkpoint(self._logs.state, {}, old)

    def forget_fanouts(self, now_us: int, members: Mapping[str, Vector]) -> Mapping[str, Collection[Deletion]]:
        """Forget deletions of fanouts when no message that they delete can arrive. Returns them."""
        facts = self._facts
        if not facts.deletions.by_name:
            return {}
        oldest_us = now_us - self._settings.journal_age_seconds_max * _SECOND_US
        obsolete = facts.deletions.obsolete(members.values(), oldest_us, facts.seals.forgotten)
        if obsolete:
            facts.deletions.forget(obsolete)
            self._catalog.set_facts(deletion_facts(facts.deletions, obsolete))
        return obsolete

    def forget_definitions(self, now_us: int, members: Mapping[str, Vector]) -> Obsolete:
        """Forget tombstones of definitions when no older change can arrive. Returns them.

        None while the clock is in doubt: they may be young, and this node does not drop the messages of queues by then.
        """
        if self._retention.shift.by_us:
            return Obsolete()
        facts = self._facts
        vectors = [*members.values(), self._logs.state.vector]
        tombstones, stable = self._rounds.obsolete(facts.definitions, vectors, now_us, facts.seals.forgotten)
        # Of an origin with lost ranges, this node may lack a change that another member has.
        obsolete = Obsolete(
            tombstones, {origin: last for origin, last in stable.items() if origin not in facts.lost.ends}
        )
        if tombstones:
            table = facts.definitions
            table.forget(obsolete)
            table.stable = facts.seals.without(table.stable)
            # First: a crash in between leaves tombstones, and never a change that comes back.
            self._catalog.set_facts(stable_fact(table.stable))
            self._catalog.remove_definitions([one.key for one in tombstones])
        return obsolete
