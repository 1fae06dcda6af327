"""An archive as a table of Iceberg: the same Parquet files, registered in a catalog. What the archive has, Delta says.

A registration gives the Iceberg table the files of one version of the Delta table, in one commit that adds what it
lacks and removes what was rewritten. So it does not matter which commits came in between, from which process, and what
a kill has left undone. The version is noted in the snapshot: an archiver that looked earlier takes nothing back.

The catalog, and keys for it, are those of the environment (`PYICEBERG_CATALOG__…`) or of `.pyiceberg.yaml`.
"""

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from deltalake import DeltaTable
from pyarrow import fs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform

from qmq.spark.archive.files import COLUMNS, PARTITION
from qmq.spark.archive.live_files import live_files
from qmq.spark.archive.losses import losses_to_json
from qmq.spark.archive.storage import ICEBERG_METADATA, directory_of, files_of, place_of, remove
from qmq.spark.archive.table import COMMIT_TRIES, LOST, ArchiveError, lost_of, open_table
from qmq.spark.reading.views import arrow_schema

ARCHIVE: Final = "qmq.archive"
"""Property of the Iceberg table: the id of the Delta table whose files it has."""
VERSION: Final = "qmq.version"
"""Of each snapshot: the version of the Delta table."""
SNAPSHOT_HOURS: Final = 24
"""Of those that are not the last one: an archiver makes 1,440 a day, and each commit writes a list of all."""
METADATA_HOURS: Final = 168
"""Files of metadata that no snapshot needs any more stay as long as the data: a reader may be at them."""
PROPERTIES: Final = {
    "commit.retry.num-retries": "0",  # a commit of another archiver may have the same files: it is looked at again
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
STORE: Final = {
    "AWS_ENDPOINT_URL": "s3.endpoint",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_REGION": "s3.region",
}
"""What the environment has for deltalake, as pyiceberg calls it: one set of keys does for both."""

_PASSWORD: Final = re.compile(r"//[^/@\s]*@")


class IcebergTable:
    """One archive in a catalog. Used by one thread."""

    def __init__(self, name: str, table: str) -> None:
        """`name`: CATALOG.NAMESPACE.TABLE. Nothing is opened yet."""
        self._name = name
        self._catalog_name, _, self._identifier = name.partition(".")
        self._table = place_of(table)
        directory = directory_of(self._table)
        self._uri = self._table.rstrip("/") if directory is None else f"file://{directory.absolute()}"
        self._catalog: Catalog | None = None
        self._known: tuple[int | None, set[str]] = (None, set())
        """The files of a snapshot: those of the last one are read again only to remove some."""

    def register(self) -> int:
        """Give the Iceberg table the files that the archive has now; returns how many were added and removed.

        Makes it if it is not there. Raises ArchiveError when there is no archive, when the name is of another table, or
        when the catalog or the store fails.
        """
        for _ in range(COMMIT_TRIES):
            # Another archiver may be first: look again.
            with self._failures(), suppress(CommitFailedException):
                return self._register_once(open_table(self._table))
        raise ArchiveError(f"{self._name}: others change it all the time")

    def vacuum(self, *, snapshot_hours: float = SNAPSHOT_HOURS, metadata_hours: float = METADATA_HOURS) -> int:
        """Forget old snapshots, and remove files of metadata that nothing needs; returns how many. Raises as
        `register`.
        """
        with self._failures():
            table = self._open_catalog().load_table(self._identifier)
            old = datetime.now(UTC) - timedelta(hours=snapshot_hours)
            last = _snapshot_id(table)
            if any(one.timestamp_ms < old.timestamp() * 1000 and one.snapshot_id != last for one in table.snapshots()):
                table.maintenance.expire_snapshots().older_than(old).commit()
                table.refresh()
            needed = {name.rpartition("/")[2] for name in _metadata_files(table)}
            there = files_of(self._table).get_file_info(fs.FileSelector(ICEBERG_METADATA, allow_not_found=True))
            oldest = time.time() - metadata_hours * 3600
            unused = [one for one in there if one.base_name not in needed and one.mtime.timestamp() < oldest]
            for one in unused:
                remove(self._table, one.path)
            return len(unused)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """In one line, and without a password that an address has. The next try opens the catalog again."""
        try:
            yield
        except ArchiveError:
            raise
        except Exception as error:  # those of pyiceberg have no base, nor have those of catalogs
            self._catalog = None
            raise ArchiveError(f"{self._name}: {' '.join(_PASSWORD.sub('//', str(error)).split())}") from error

    def _register_once(self, delta: DeltaTable) -> int:
        """Raises CommitFailedException when the table has changed since it was looked at."""
        table = self._opened(delta)
        snapshot = table.current_snapshot()
        done = -1 if snapshot is None or snapshot.summary is None else int(snapshot.summary.get(VERSION, -1))
        if done >= delta.version():
            return 0
        seen, have = self._known
        if seen is None or seen != _snapshot_id(table):
            have = set(_files(table))
        want = {f"{self._uri}/{file.path}" for file in live_files(delta)}
        new, removed = sorted(want - have), have - want
        if not new and not removed:
            return 0
        files = _files(table) if removed else {}
        added = [parquet_file_to_data_file(table.io, table.metadata, path) for path in new]
        said = {VERSION: str(delta.version()), LOST: losses_to_json(lost_of(delta))}
        with table.transaction() as transaction:
            update = transaction.update_snapshot(said)
            # An append is what readers of changes understand.
            with update.overwrite() if removed else update.merge_append() as producer:
                for path in removed:
                    producer.delete_data_file(files[path])
                for file in added:
                    producer.append_data_file(file)
        self._known = (_snapshot_id(table), want)
        return len(new) + len(removed)

    def _opened(self, delta: DeltaTable) -> Table:
        """The Iceberg table of this archive, made if there is none. Raises ArchiveError for one of something else."""
        archive = str(delta.metadata().id)
        try:
            table = self._open_catalog().load_table(self._identifier)
        except NoSuchTableError:
            table = self._made(archive)
        if table.properties.get(ARCHIVE) != archive:
            raise ArchiveError(f"{self._name} is there, and is not of this archive: {self._table}")
        lacking = {name: value for name, value in PROPERTIES.items() if table.properties.get(name) != value}
        if lacking:
            with table.transaction() as transaction:
                transaction.set_properties(lacking)
        return table

    def _open_catalog(self) -> Catalog:
        if self._catalog is None:
            logging.getLogger("pyiceberg").setLevel(logging.ERROR)
            said = {key: os.environ[name] for name, key in STORE.items() if os.environ.get(name)}
            self._catalog = load_catalog(self._catalog_name, **said)
        return self._catalog

    def _made(self, archive: str) -> Table:
        catalog, schema = self._open_catalog(), arrow_schema("messages", COLUMNS)
        catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        said = {**PROPERTIES, ARCHIVE: archive, "write.metadata.path": f"{self._uri}/{ICEBERG_METADATA}"}
        try:
            with catalog.create_table_transaction(self._identifier, schema, self._uri, properties=said) as transaction:
                with transaction.update_spec() as spec:
                    spec.add_field("timestamp", DayTransform(), PARTITION)
                names = transaction.table_metadata.schema().name_mapping
                transaction.set_properties({"schema.name-mapping.default": names.model_dump_json()})
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # another archiver was first
        return catalog.load_table(self._identifier)


def _snapshot_id(table: Table) -> int | None:
    snapshot = table.current_snapshot()
    return None if snapshot is None else snapshot.snapshot_id


def _files(table: Table) -> dict[str, DataFile]:
    """Those of the last snapshot, by their addresses."""
    return {task.file.file_path: task.file for task in table.scan().plan_files()}


def _metadata_files(table: Table) -> Iterable[str]:
    """Everything that the table needs, but for its data."""
    yield table.metadata_location
    for entry in table.metadata.metadata_log:
        yield entry.metadata_file
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            yield manifest.manifest_path
