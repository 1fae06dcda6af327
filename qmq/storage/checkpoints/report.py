"""What one checkpoint did, for the log and for the parts that follow it."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from qmq.definitions.table import Obsolete
from qmq.model.deletions import Deletion
from qmq.model.dots import Origin, Vector
from qmq.storage.catalog.incarnations import Seal

_NOT_LOGGED: Final = frozenset({"vector", "position", "forgotten", "released", "obsolete", "obsolete_definitions"})


class CheckpointReport(NamedTuple):
    """What one checkpoint did. Bytes are bytes of files."""

    position: int
    read_bytes: int
    queue_rows_added: int
    queue_rows_deleted: int
    fanout_records: int
    dropped_bytes: int
    """Of the journal."""
    sealed: int
    """Journal segments that got their index."""
    vector: Vector
    """What is in the stores now: unsettled messages up to it are in the queue store."""
    retention_due_us: int = 0
    """When the next part of the fanout logs becomes too old to be kept; 0: they are empty."""
    forgotten: tuple[Origin, ...] = ()
    """Dead incarnations that have left the vectors."""
    released: tuple[Seal, ...] = ()
    """Dead incarnations of which this node stores nothing any more and has not yet said so to the mesh."""
    obsolete: Mapping[str, Collection[Deletion]] = {}
    """Deletions of fanouts that are no longer remembered."""
    obsolete_definitions: Obsolete = Obsolete()
    """Tombstones of definitions that are no longer remembered."""

    def __str__(self) -> str:
        """For the log: what the checkpoint did, without the vector."""
        facts = {name: value for name, value in self._asdict().items() if value and name not in _NOT_LOGGED}
        return ", ".join(f"{name} {value}" for name, value in facts.items()) or "nothing to do"
