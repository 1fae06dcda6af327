"""Checks of files that other users of the machine must not read: private keys, and a peers file with a secret. A node
file with hashes of passcodes is noted.

A group may read a file that root owns: on many systems, a service that does not run as root gets its keys in this way.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigError
from .node import NodeSettings
from .peers import PeersFile


def check_secrecy(settings: NodeSettings | None, peers: PeersFile | None, peers_file: Path | None) -> list[str]:
    """Errors for files that other users can read, with what to do; empty if there are none."""
    found = [_diagnostic(key, "private key") for key in dict.fromkeys(_keys(settings))]
    if peers is not None and peers.secret is not None and peers_file is not None:
        found.append(_diagnostic(peers.secret_file or peers_file, "secret of the mesh"))
    return [one for one in found if one is not None]


def readable_hashes(settings: NodeSettings) -> str | None:
    """A note about a node file whose hashes of passcodes other users can read, to guess at; None for others."""
    path = Path(settings.source)
    users = [user.get("password_hash") for user in settings.definitions.get("user", {}).values()]
    if not any(users) or not is_open_to_others(path):
        return None
    return f"{path}: contains hashes of passcodes, and other users can read or write it: chmod 600 {path}"


def draw_secret(path: Path) -> None:
    """Write a file with a secret that no other mesh has, for this user alone. Raises ConfigError."""
    try:
        with open(path, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be written for the secret of the mesh: {error.strerror}"]) from error


def is_open_to_others(path: Path) -> bool:
    """Whether other users may read or write the file. A missing file is another error."""
    try:
        found = path.stat()
    except OSError:
        return False
    group = stat.S_IWGRP if found.st_uid == 0 else stat.S_IRGRP | stat.S_IWGRP
    return bool(found.st_mode & (group | stat.S_IROTH | stat.S_IWOTH))


def _keys(settings: NodeSettings | None) -> Iterator[Path]:
    if settings is not None:
        yield from (listener.tls.key for listener in settings.listeners if listener.tls is not None)
        if settings.mesh.tls is not None:
            yield settings.mesh.tls.key


def _diagnostic(path: Path, what: str) -> str | None:
    if not is_open_to_others(path):
        return None
    return f"{path}: contains the {what}, and other users can read or write it: chmod 600 {path}"
