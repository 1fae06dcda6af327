"""`qmq log search`: whether files of nodes, tables and backups still have some bytes."""

import gzip
import io
import sqlite3
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from .options import json_option
from .output import Failed, counted, print_json, printable

CHUNK_BYTES: Final = 1 << 20
GZIP: Final = b"\x1f\x8b"
PARQUET: Final = b"PAR1"
SQLITE: Final = b"SQLite format 3\0"


@click.command
@click.argument("text")
@click.argument("places", metavar="PATH…", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@json_option
def search(text: str, places: tuple[Path, ...], as_json: bool) -> None:
    """Search files for a text, also in compressed ones.

    Reads every byte below each PATH: data directories, whether the node runs or not, backups, tables and support
    files. Values of Parquet files and databases, and files of gzip, are searched as well, which `grep` cannot do. Exit
    code 1 if a file has the text, or cannot be read.
    """
    needle = text.encode()
    if not needle:
        raise click.UsageError("an empty text is in every file")
    found, unreadable, looked = [], {}, 0
    for path in sorted({file for place in places for file in (place.rglob("*") if place.is_dir() else (place,))}):
        try:
            if path.is_file():
                looked += 1
                if any(_has(pieces, needle) for pieces in _contents(path)):
                    found.append(str(path))
        except FileNotFoundError:
            continue  # a node or an archiver has removed it meanwhile
        except (OSError, EOFError, zlib.error, ValueError, sqlite3.Error) as error:  # ValueError: of pyarrow
            unreadable[str(path)] = str(error)
    if as_json:
        print_json({"files": looked, "found": found, "unreadable": unreadable})
    else:
        for name in found:
            click.echo(printable(name))
        for name, why in unreadable.items():
            click.echo(printable(f"UNREADABLE {name}: {why}"))
        click.echo(f"{len(found)} of {counted(looked, 'file')} {'has' if len(found) == 1 else 'have'} it")
    if found or unreadable:
        sys.exit(1)


def _contents(path: Path) -> Iterator[Iterable[bytes]]:
    """The file as it is, and what it has in another form; each is in pieces that follow each other."""
    with path.open("rb") as file:
        begin = file.read(len(SQLITE))
        file.seek(0)
        yield _chunks(file)
    if begin.startswith(GZIP):
        with gzip.open(path) as unpacked:
            yield _chunks(unpacked)
    elif begin.startswith(PARQUET):
        yield from _parquet(path)
    elif begin == SQLITE:
        yield from _database(path)


def _chunks(file: io.BufferedIOBase) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _has(pieces: Iterable[bytes], needle: bytes) -> bool:
    end = b""
    for piece in pieces:
        if needle in (seen := end + piece):
            return True
        end = seen[len(seen) - len(needle) + 1 :] if len(seen) >= len(needle) else seen
    return False


def _parquet(path: Path) -> Iterator[Iterable[bytes]]:
    """Each buffer of each column."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise Failed(f"{path} is compressed, and this needs pyarrow: pip install 'qmq[archive]'") from None
    with parquet.ParquetFile(path) as file:
        for rows in file.iter_batches(batch_size=8192):
            for column in rows.columns:
                yield from ([buffer.to_pybytes()] for buffer in column.buffers() if buffer is not None)


def _database(path: Path) -> Iterator[Iterable[bytes]]:
    """Each value: a long one is in several pages, which need not follow each other in the file."""
    # Without a log of its writer nothing else is open, and nothing is made beside it: a backup stays as it is.
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as database:
        database.text_factory = bytes
        tables = [name.decode() for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in database.execute(f'SELECT * FROM "{table}"'):
                yield from ([value] for value in row if isinstance(value, bytes))
