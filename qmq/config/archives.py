"""Archives of the mesh: the tables that `qmq archive` fills, as definitions have them.

Only the place of a table is here. What opens it, such as keys of an object store, is in the environment or in files of
each archiver, and never in a definition, which every node keeps, exports and backs up.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta

from qmq.address import is_table_address, table_place
from qmq.section import Section

_ICEBERG_NAME: Final = re.compile(r"[^\s.:/@]+(?:\.[^\s.:/@]+){2,}")


def read_iceberg_name(value: object) -> str:
    """Raises ValueError for what is no table in a catalog of Iceberg."""
    if not isinstance(value, str) or not _ICEBERG_NAME.fullmatch(value):
        raise ValueError("must be CATALOG.NAMESPACE.TABLE, such as lake.qmq.messages")
    return value


def _read_table(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("must be text in quotes")
    try:
        place = table_place(value)
    except ValueError as error:
        raise ValueError(f"must be a path or an address: it {error}") from None
    if not is_table_address(place) and not place.startswith("/"):
        raise ValueError("must be an absolute path, such as /data/archive: archivers run in any directory")
    return value


def _read_destination(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(("/queue/", "/fanout/")):
        raise ValueError("must be a queue or a fanout, such as /queue/orders")
    return value


class ArchiveSettings(Section):
    """One archive. Its name is the name of the definition, and of the reader of the journal that fills it."""

    name: str
    table: Annotated[str, _read_table]
    """A directory that all archivers can reach, or an address of an object store."""
    destinations: tuple[Annotated[str, _read_destination], ...] = ()
    """None: all queues and fanouts. It stays as it was when the table was begun."""
    iceberg: Annotated[str, read_iceberg_name] | None = None
    """The same files as a table of Iceberg. What opens the catalog is not here, as with the table."""
    behind_seconds_max: Annotated[int, Meta(ge=10)] = 900
    """The condition `archive-behind` is raised beyond it. Journals keep at least 1 GiB: hours, in most meshes."""

    @classmethod
    def before(cls, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        if values.get("destinations") == []:
            raise ValueError("must have at least one of destinations, or be without them for all")
        return values, {}
