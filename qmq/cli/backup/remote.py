"""The files of a node that is asked for them over a connection, for `qmq backup --at`: see `qmq.admin.backups`."""

import base64
import binascii
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from ...section import NODE_NAME
from ...storage.backup_files import DATABASES, LOGS, CopiedFile, ListedFile, write_pieces
from ..client import Endpoint, ask_over, headers_of
from ..output import Failed


class RemoteFiles:
    """An outgoing backup of the node that responds, from the first call to the end of the `with`.

    Satisfies `qmq.storage.backup_files.NodeFiles`; a Failed or ServerError of any call leaves the copy useless.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._client = endpoint.connect()
        try:
            facts = ask_over(self._client, "backup")
            self._read(facts)
        except BaseException:
            self._client.close()
            raise

    def _read(self, facts: dict[str, Any]) -> None:
        try:
            self._id = str(facts["backup"])
            self.node, self.uuid = str(facts["node"]), str(facts["uuid"])
            self.peers = {str(name): str(address) for name, address in facts["peers"].items()}
            self.members = [str(name) for name in facts["members"]]
            files = [ListedFile(str(path), int(size), int(time)) for path, size, time in facts["files"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Failed(f"{self._client.address}: the answer is no list of files; is it a QMQ node?") from error
        # What a node says must not lead out of the folder of its backup.
        if not re.fullmatch(NODE_NAME, self.node) or not all(_is_of_node(one.path) for one in files):
            raise Failed(f"{self._client.address}: names files that no data directory has")
        self._files = {one.path: (number, one) for number, one in enumerate(files)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._client, suppress(*() if kind is None else (Failed,)):
            ask_over(self._client, f"backup/{self._id}")

    def copy_databases(self, into: Path) -> list[CopiedFile]:
        """See `NodeFiles`."""
        return [CopiedFile(name, *self._copied(name, into / name)) for name in DATABASES]

    def _copied(self, path: str, into: Path) -> tuple[int, int, str]:
        size, digest = self.copy(path, into)
        return size, 0, digest

    def logs(self) -> Iterator[ListedFile]:
        """See `NodeFiles`."""
        return (file for _, file in self._files.values() if file.path not in DATABASES)

    def copy(self, path: str, into: Path) -> tuple[int, str]:
        """See `NodeFiles`."""
        number, file = self._files[path]
        return file.size, write_pieces(self._pieces(number, file), into)

    def _pieces(self, number: int, file: ListedFile) -> Iterator[bytes]:
        offset = 0
        while offset < file.size:
            headers = headers_of(file=number, offset=offset)
            try:
                piece = base64.b64decode(ask_over(self._client, f"backup-piece/{self._id}", headers)["data"])
            except (KeyError, TypeError, binascii.Error) as error:
                raise Failed(f"{self._client.address}: sends no bytes of {file.path}") from error
            if not piece or len(piece) > file.size - offset:
                raise Failed(f"{self._client.address}: {file.path} is not what it was when the backup began")
            yield piece
            offset += len(piece)


def _is_of_node(path: str) -> bool:
    parts = PurePosixPath(path).parts
    is_of_log = len(parts) > 1 and parts[0] in LOGS
    return (is_of_log or path in DATABASES or path == f"{DATABASES[1]}.damaged") and ".." not in parts
