"""The kind `archive`: tables that archivers of the mesh fill, on whichever machine they run.

A node only passes them on: a reader of its journal gets them with the first message (`/system/journal`). How far the
archivers are is known from what these report there.
"""

from collections.abc import Collection, Mapping
from typing import Final

from qmq.config.archives import ArchiveSettings
from qmq.config.definition_values import archive_values, read_archive
from qmq.settings.definitions.kinds import SimpleKind, Value, checked_by
from qmq.settings.definitions.live import LiveDefinitions

ARCHIVE: Final = "archive"


class ArchiveDefinitions:
    """Archives of the mesh; adds their kind to the definitions."""

    def __init__(self, definitions: LiveDefinitions) -> None:
        self._definitions = definitions
        definitions.follow(ARCHIVE, SimpleKind(checked_by(read_archive, archive_values), self._changed))
        self._changed(())

    def values(self) -> Mapping[str, Value]:
        """All of them by name, as they were defined."""
        return self._definitions.values(ARCHIVE)

    def _changed(self, names: Collection[str]) -> None:
        self.by_name: Mapping[str, ArchiveSettings] = self._definitions.rows(ARCHIVE, read_archive)
