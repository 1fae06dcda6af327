"""The verbs with which another machine reads a backup of this node: `qmq backup --at`.

One outgoing backup at a time (`qmq.storage.backup_files`), which is removed when its reader says so, or has asked for
nothing for OUTGOING_SECONDS. So a reader that leaves costs the node some disk space for that long.
"""

import base64
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.errors import Refused, StorageError
from qmq.mesh.membership.members import LiveMembership
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.storage.backup_files import ListedFile, LocalFiles, read_piece, set_out, withdraw
from qmq.verbs.nodes import Backup, BackupPiece
from qmq.verbs.verb import VerbRequest

OUTGOING_SECONDS: Final = 120.0


@dataclass(eq=False, slots=True)
class Outgoing:
    """The files of one, and the scope whose end removes it."""

    files: list[ListedFile]
    lease: trio.CancelScope


class BackupVerbs:
    """Responds to them."""

    def __init__(self, node: NodeBasics, engine: EngineParts, members: LiveMembership) -> None:
        self._node = node
        self._environment = engine.environment
        self._members = members
        self._outgoing: dict[str, Outgoing] = {}
        """At most one, by its ID."""
        self._folder = trio.Lock()
        """Of what changes the folder of the outgoing backup."""

    async def begin_or_end(self, asked: VerbRequest[Backup]) -> Facts:
        """The list of files of a new one; or that the one which is named has ended. Raises Refused."""
        data = self._node.settings.directory
        if data is None:
            raise Refused("no-disk", "This node keeps everything in memory: there is nothing to back up.")
        async with self._folder:
            if name := asked.about.removeprefix("/"):
                await self._withdraw(name, data)
                return {}
            if self._outgoing:
                seconds = f"{OUTGOING_SECONDS:.0f} s"
                raise Refused("busy", f"Another backup of this node is being read; if not, try again in {seconds}.")
            reserve = self._node.settings.storage.disk_reserve_bytes
            try:
                # The node cannot stop before its databases are copied.
                found = await self._environment.run_blocking(lambda: (set_out(data, reserve), LocalFiles(data)))
            except (StorageError, OSError) as error:
                raise Refused("no-backup", f"The node cannot be backed up: {error}.") from error
            return self._begun(*found, data)

    def _begun(self, files: list[ListedFile], of: LocalFiles, data: Path) -> Facts:
        name = f"{self._environment.now_us():x}"
        lease = trio.CancelScope(deadline=trio.current_time() + OUTGOING_SECONDS)
        self._outgoing[name] = Outgoing(files, lease)
        self._node.spawn(partial(self._expire, name, lease, data))
        return {
            "backup": name,
            "node": of.node,
            "uuid": of.uuid,
            "peers": {peer: str(address) for peer, address in self._members.addresses("stomp").items()},
            "members": [*self._members.membership.voting_peers, of.node],
            "files": [list(one) for one in files],
        }

    async def piece(self, asked: VerbRequest[BackupPiece]) -> ControlResponse:
        """Bytes of one file. Raises Refused."""
        data, outgoing = self._node.settings.directory, self._outgoing.get(asked.about.removeprefix("/"))
        if data is None or outgoing is None:
            raise Refused("no-backup", "This backup has ended: begin another one.")
        outgoing.lease.deadline = trio.current_time() + OUTGOING_SECONDS
        if asked.options.file >= len(outgoing.files):
            raise Refused("bad-file", f"The backup has {len(outgoing.files)} files, from 0.")
        file = outgoing.files[asked.options.file]
        read = partial(read_piece, data, file, asked.options.offset)
        try:
            piece = await self._environment.run_blocking(read)
        except OSError as error:
            raise Refused("no-backup", f"{file.path} cannot be read: {error.strerror}.") from error
        body = json.dumps({"data": base64.b64encode(piece).decode()}).encode()
        return ControlResponse({"bytes": str(len(piece))}, body)

    async def _expire(self, name: str, lease: trio.CancelScope, data: Path) -> None:
        with lease:
            await trio.sleep_forever()
        async with self._folder:
            await self._withdraw(name, data)

    async def _withdraw(self, name: str, data: Path) -> None:
        if (outgoing := self._outgoing.pop(name, None)) is not None:
            await self._environment.run_blocking(withdraw, data)
            outgoing.lease.cancel()
