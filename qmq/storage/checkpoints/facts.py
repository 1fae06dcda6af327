"""What the catalog holds besides extents, in memory: checkpoints change it here first and then commit the changes."""

from qmq.definitions.table import DefinitionTable
from qmq.model.cursors import Cursor, Move, Name
from qmq.storage.catalog.facts import stable_of
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.fanouts.open_logs import FanoutLogs
from qmq.storage.format.delete_record import deletions_of
from qmq.storage.format.interfaces import Catalog
from qmq.storage.format.lost_record import lost_of
from qmq.storage.format.term_record import StoredTerms


class CheckpointFacts:
    """Cursors, terms, collected incarnations, lost ranges, deletions and definitions, as the catalog has them."""

    def __init__(self, catalog: Catalog, logs: FanoutLogs) -> None:
        self._catalog = catalog
        self._logs = logs
        self.reload()

    def reload(self) -> None:
        """Read the catalog again: what was changed here and not committed is undone."""
        self.cursors = self._catalog.cursors()
        self.terms = StoredTerms.of(self._catalog.terms())
        facts = self._catalog.facts()
        self.seals = Seals.of(facts)
        self.lost = lost_of(facts)
        self.deletions = self._logs.deletions = deletions_of(facts)
        self._definitions: DefinitionTable | None = None

    @property
    def definitions(self) -> DefinitionTable:
        """The definitions of the mesh; read when a checkpoint first needs them."""
        if self._definitions is None:
            self._definitions = DefinitionTable(self._catalog.definitions(), stable_of(self._catalog.facts()))
        return self._definitions

    def move_cursors(self, moves: list[Move]) -> list[Cursor]:
        """Apply `moves`; return the cursors that they change."""
        changed: dict[Name, Cursor] = {}
        for move in moves:
            cursor = self.cursors.get(move.name)
            if cursor is None:
                cursor = self.cursors[move.name] = Cursor(move.name)
            cursor.apply(move)
            changed[move.name] = cursor
        return list(changed.values())
