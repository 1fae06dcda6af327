"""The catalog in memory, committed on a `MemoryDisk`: see `queue_store`."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from qmq.definitions.definition import Definition, Key
from qmq.model.cursors import Cursor, Name
from qmq.model.dots import Origin, Vector
from qmq.storage.format.interfaces import CheckpointState, DirectoryIdentity, FanoutExtent
from qmq.storage.format.term_record import StoredTerms, TermNote
from tests.fakes.disk import MemoryDisk, commit_tables


class _CatalogState:
    __slots__ = (
        "identity",
        "checkpoint",
        "fanouts",
        "base",
        "incarnations",
        "cursors",
        "given_up",
        "facts",
        "terms",
        "definitions",
    )

    def __init__(self) -> None:
        self.identity: DirectoryIdentity | None = None
        self.checkpoint = CheckpointState(0, {})
        self.fanouts: dict[str, FanoutExtent] = {}
        self.base = CheckpointState(0, {})
        self.incarnations: dict[Origin, int] = {}
        self.cursors: dict[Name, Cursor] = {}
        self.given_up: Vector = {}
        self.facts: dict[str, str] = {}
        self.terms = StoredTerms()
        self.definitions: dict[Key, Definition] = {}


class MemoryCatalog:
    """See `interfaces.Catalog`."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        state = disk.tables.setdefault("catalog", _CatalogState())
        assert isinstance(state, _CatalogState)
        self._state = state

    def identity(self) -> DirectoryIdentity | None:
        return self._state.identity

    def set_identity(self, identity: DirectoryIdentity) -> None:
        commit_tables(self._disk)
        self._state.identity = identity

    def checkpoint(self) -> CheckpointState:
        return CheckpointState(self._state.checkpoint.position, dict(self._state.checkpoint.vector))

    def fanouts(self) -> dict[str, FanoutExtent]:
        return dict(self._state.fanouts)

    def cursors(self) -> dict[Name, Cursor]:
        return {name: cursor.copy() for name, cursor in self._state.cursors.items()}

    def given_up(self) -> Vector:
        return dict(self._state.given_up)

    def terms(self) -> list[TermNote]:
        return list(self._state.terms.values())

    def commit_checkpoint(
        self,
        state: CheckpointState,
        fanouts: Mapping[str, FanoutExtent],
        cursors: Sequence[Cursor] = (),
        given_up: Vector | None = None,
        terms: Sequence[TermNote] = (),
        deleted: Collection[str] = (),
        definitions: Sequence[Definition] = (),
    ) -> None:
        commit_tables(self._disk)
        self._state.checkpoint = CheckpointState(state.position, dict(state.vector))
        self._state.fanouts.update(fanouts)
        for destination in deleted:
            self._state.fanouts.pop(destination, None)
        self._state.given_up.update(given_up or {})
        for note in terms:
            self._state.terms.take(note)
        self._state.definitions.update({one.key: one for one in definitions})
        for cursor in cursors:
            if cursor.created_us or cursor.deleted_us:
                self._state.cursors[cursor.name] = cursor.copy()
            else:
                self._state.cursors.pop(cursor.name, None)

    def base(self) -> CheckpointState:
        return CheckpointState(self._state.base.position, dict(self._state.base.vector))

    def set_base(self, state: CheckpointState) -> None:
        commit_tables(self._disk)
        self._state.base = CheckpointState(state.position, dict(state.vector))

    def incarnations(self) -> dict[Origin, int]:
        return dict(self._state.incarnations)

    def add_incarnation(self, origin: Origin, started_us: int) -> None:
        commit_tables(self._disk)
        self._state.incarnations[origin] = started_us

    def facts(self) -> dict[str, str]:
        return dict(self._state.facts)

    def set_facts(self, facts: Mapping[str, str | None]) -> None:
        commit_tables(self._disk)
        for name, value in facts.items():
            if value is None:
                self._state.facts.pop(name, None)
            else:
                self._state.facts[name] = value

    def definitions(self) -> list[Definition]:
        return list(self._state.definitions.values())

    def remove_definitions(self, keys: Iterable[Key]) -> None:
        commit_tables(self._disk)
        for key in keys:
            self._state.definitions.pop(key, None)

    def close(self) -> None:
        """Nothing to give back: the state belongs to the disk."""
