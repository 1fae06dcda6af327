"""Files of an operator: read, written for this user alone, never overwritten by mistake, replaced as a whole.

All errors are ConfigError, with the file.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from qmq.errors import ConfigError

T = TypeVar("T")

AUTHORITY: Final = "authority"
"""The folder with the keys that sign certificates, beside those of the nodes."""


def read(file: Path) -> bytes:
    """All of it."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error


def parsed(file: Path, parse: Callable[[bytes], T]) -> T:
    """What the file says. What `parse` says in a ValueError is the error."""
    try:
        return parse(read(file))
    except ValueError as error:
        raise ConfigError([f"{file}: {error}"]) from error


def write_new(file: Path, data: bytes) -> None:
    """For this user alone, in a folder for this user alone. It must not exist yet."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(file, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as written:
            written.write(data)
    except FileExistsError:
        raise ConfigError([f"{file}: exists already, and is not overwritten"]) from None
    except OSError as error:
        raise ConfigError([f"{file}: cannot be written: {error.strerror}"]) from error


def replace(file: Path, data: bytes) -> None:
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    write_new(new, data)
    new.replace(file)
