"""Where a table and its files are: a directory, or a prefix of an object store.

An object store is opened as deltalake does it, for the log and for files alike: with what the environment says
(`AWS_…`, `GOOGLE_…`, `AZURE_…`). So one address and one set of keys is enough, and no file of ours has keys. Files of
an object store appear when they are complete, and are durable then.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from qmq.address import is_table_address, table_place
from qmq.spark.reading.options import BadOption

UNSAFE: Final = {"AWS_S3_ALLOW_UNSAFE_RENAME": ("true", "1"), "AWS_CONDITIONAL_PUT": ("disabled",)}
"""With these, of two commits at once the later one would replace the earlier one."""
SETTINGS: Final = ("AWS_", "GOOGLE_", "AZURE_")
"""How the names of variables begin that say how object stores are opened."""
Settings: TypeAlias = tuple[tuple[str, str], ...]
ICEBERG_METADATA: Final = "_iceberg"
"""Directory of an archive with a table of Iceberg. `vacuum` of Delta leaves alone what begins with an underscore."""


def place_of(table: str) -> str:
    """The path or address of a table, as deltalake takes it. Raises BadOption."""
    try:
        place = table_place(table)
    except ValueError as error:
        raise BadOption(f"the table: its place {error}") from None  # which is not shown: it may have keys
    for name, values in UNSAFE.items() if is_table_address(place) else ():
        if os.environ.get(name, "").lower() in values:
            raise BadOption(
                f"{name} is {os.environ[name]!r}: then one archiver could overwrite the commit of another one"
            )
    return place


def directory_of(table: str) -> Path | None:
    """None for a table in an object store."""
    return None if is_table_address(table) else Path(table)


def files_of(table: str) -> fs.FileSystem:
    """The files of a table, by their paths in it."""
    if is_table_address(table):
        return _store(table, settings())
    return fs.SubTreeFileSystem(str(Path(table).absolute()), fs.LocalFileSystem())


@lru_cache(8)
def _store(table: str, said: Settings) -> fs.FileSystem:
    """Other keys make another one: a worker of Spark may work for several users."""
    return fs.PyFileSystem(DeltaStorageHandler(table, dict(said)))


def settings() -> Settings:
    """What the environment says of object stores. It has keys: it is not for logs, and not for errors."""
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(SETTINGS)))


@contextmanager
def with_settings(said: Settings) -> Iterator[None]:
    """Have `settings` of another process, such as those of the driver in a worker, which may have a machine of its own.

    Afterwards the environment is as it was: the next task of this worker may be that of another user.
    """
    before = {name: os.environ.get(name) for name, _ in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def names_in(table: str) -> list[str]:
    """What is directly at the place of a table."""
    found = files_of(table).get_file_info(fs.FileSelector("", allow_not_found=True))
    return sorted(one.base_name for one in found)


def create(table: str, path: str) -> Any:
    """A new file to write; its `close` completes it."""
    directory = directory_of(table)
    if directory is not None:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
    return files_of(table).open_output_stream(path)


def make_durable(table: str, path: str) -> None:
    """Of a file that is closed. Those of an object store are."""
    directory = directory_of(table)
    if directory is not None:
        with open(directory / path, "rb") as file:
            os.fsync(file.fileno())


def remove(table: str, path: str) -> None:
    """Idempotent."""
    directory = directory_of(table)
    if directory is None:
        files_of(table).delete_file(path)
    else:
        (directory / path).unlink(missing_ok=True)
