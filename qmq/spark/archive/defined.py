"""The archive that a mesh has defined: which table it is and what it is to have, as nodes say to readers of journals.

What opens the table, such as keys of an object store, is no part of the definition: each archiver has it itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from qmq.errors import NotConnected, Refused
from qmq.spark.archive.table import ArchiveError
from qmq.spark.reading.options import Options
from qmq.spark.reading.status import defined_archives

LOOK_SECONDS: Final = 60.0
"""Between two looks at whether it has changed."""


class Found(NamedTuple):
    """A table, what it is to have, and its name in a catalog of Iceberg."""

    table: str
    options: Options
    iceberg: str | None


class DefinedArchive:
    """The definition with the name of `options`, which say where the nodes are."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._value: Mapping[str, Any] = {}
        self._looked_at = float("-inf")

    def find(self) -> Found:
        """What the mesh says now.

        Raises NotConnected or Refused, and ArchiveError when the mesh has no archive of this name.
        """
        name = self._options.name
        found = defined_archives(self._options).get(name)
        if found is None:
            raise ArchiveError(f"the mesh has no archive {name}: give a TABLE, or define one with `qmq archives set`")
        self._value = found
        destinations = found.get("destinations")
        chosen = None if destinations is None else frozenset(destinations)
        return Found(str(found["table"]), replace(self._options, destinations=chosen), found.get("iceberg"))

    def has_changed(self, now: float) -> bool:
        """Whether another definition has this name now, or none. Looks at most once in `LOOK_SECONDS`; False if no node
        answers.
        """
        if now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        try:
            return defined_archives(self._options).get(self._options.name) != self._value
        except (NotConnected, Refused):
            return False
