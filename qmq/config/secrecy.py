"""Files that other users of the machine must not be able to read: private keys, and a peers file with a secret.

The group may read a file that root owns: so are keys handed to a service, on many systems, that does not run as root.
"""

import stat
from collections.abc import Iterator
from pathlib import Path

from .node import NodeSettings
from .peers import PeersFile


def check_secrecy(settings: NodeSettings | None, peers: PeersFile | None, peers_file: Path | None) -> list[str]:
    """What other users could read, in sentences that say what to do; empty when it is nothing."""
    found = [_mistake(key, "private key") for key in dict.fromkeys(_keys(settings))]
    if peers is not None and peers.secret is not None and peers_file is not None:
        found.append(_mistake(peers_file, "secret of the mesh"))
    return [mistake for mistake in found if mistake is not None]


def is_open_to_others(path: Path) -> bool:
    """Whether users may read or write the file that should not. One that is not there is another mistake."""
    try:
        found = path.stat()
    except OSError:
        return False
    group = stat.S_IWGRP if found.st_uid == 0 else stat.S_IRGRP | stat.S_IWGRP
    return bool(found.st_mode & (group | stat.S_IROTH | stat.S_IWOTH))


def _keys(settings: NodeSettings | None) -> Iterator[Path]:
    if settings is not None:
        yield from (listener.tls.key for listener in settings.stomp if listener.tls is not None)
        if settings.mesh.tls is not None:
            yield settings.mesh.tls.key


def _mistake(path: Path, what: str) -> str | None:
    if not is_open_to_others(path):
        return None
    return f"{path}: the {what} is in it, and other users can read or write it: chmod 600 {path}"
