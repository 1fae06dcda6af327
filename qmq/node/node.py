"""One node: starts and stops its parts, in order.

Start: open and recover the store, draw an incarnation and make it durable, restore owned queue messages. Then the
commit task starts, the mesh, and last the client listeners. Stop (SIGTERM): accept no connections, let clients finish
and leave (`draining`), close links, checkpoint, close the store. A failed append or fsync ends the process: the
exception leaves `run`, because the decisions are not what the disk has (docs/guarantees.md).

`NodeParts` (`qmq.node.parts`) builds the parts.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from qmq.config import NodeSettings, PeersFile
from qmq.config.node import in_memory
from qmq.engine.restore import restore
from qmq.engine.runtime.local_socket import LocalListener
from qmq.environment import Environment
from qmq.errors import DiskFull
from qmq.mesh.peers.dedup_query import replay_ids
from qmq.node.parts import NodeParts
from qmq.protocols import PROTOCOLS
from qmq.sessions.clients.access import note_openness
from qmq.storage.catalog.facts import UNSEEN
from qmq.storage.log.quarantine import in_words
from qmq.storage.store import Store

LOCAL: Final = "stomp"
"""The protocol of the Unix socket."""


class Node(NodeParts):
    """A broker node. `store` is opened by the caller and closed by `run`.

    `local_socket` is the path of its Unix socket; None for none.
    """

    def __init__(
        self,
        settings: NodeSettings,
        peers: PeersFile | None,
        store: Store,
        environment: Environment,
        *,
        trusts_clock: bool = False,
        forces_definitions: bool = False,
        local_socket: Path | None = None,
    ) -> None:
        super().__init__(settings, peers, store, environment, trusts_clock=trusts_clock)
        self._forces_definitions = forces_definitions
        self._local_socket = local_socket
        self._restore()
        self._load_protocols()

    def _load_protocols(self) -> None:
        """Before this node has links: peers wait for its answers, and a module of a protocol may take a second."""
        for name in PROTOCOLS:
            if self.settings.listeners_of(name) or (name == LOCAL and self._local_socket is not None):
                self.protocols.of(name)

    def _restore(self) -> None:
        parts = self.settings_parts
        self.use(parts.policy_kind.join(self.settings))
        restore(self.engine)
        replay_ids(self.store.journal, self.broker.dedup, self.broker.deletions, self.environment.now_us())
        if self.membership.peers:
            self.mesh_parts.takeover.begin()
        if self.settings.directory is None:
            self.raise_condition("no-disk", in_memory(self.settings.storage))
        recovered = self.store.recovered
        for message in in_words(recovered.quarantined):
            self.add_event("quarantine", message)
        self.engine.damage.check()
        parts.routing.report()
        parts.schemas.follow()
        if recovered.lost_positions:
            self.add_event("lost-tail", f"the disk lost {recovered.lost_positions} bytes of journal that it had synced")

    # Running

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`. Ready when started: listening, recovered. Raises StorageError when the disk fails."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self.engine.path.run)
                nursery.start_soon(self.beats.run)
                nursery.start_soon(self.system.run)
                nursery.start_soon(self.engine.checkpoints.run)
                nursery.start_soon(self.engine.pager.run, self.engine.path)
                nursery.start_soon(self.engine.deadlines.run, self.engine.path)
                nursery.start_soon(self.mesh_parts.members.run)
                nursery.start_soon(self.mesh_parts.catch_up.run)
                nursery.start_soon(self.mesh_parts.fanout_repair.run)
                nursery.start_soon(self.mesh_parts.row_repair.run)
                nursery.start_soon(self.mesh_parts.incarnation_gc.run)
                nursery.start_soon(self.mesh_parts.quarantine_restore.run)
                nursery.start_soon(self.mesh_parts.adoption.run)
                nursery.start_soon(self.mesh_parts.clock_check.run)
                nursery.start_soon(self.engine.queue_count.run)
                async with trio.open_nursery() as serving:
                    self.mesh_parts.incarnation_gc.wake()
                    if not self.mesh.is_alone:
                        await serving.start(self.mesh.run)
                        serving.start_soon(self.mesh_parts.start_hold.run)
                        serving.start_soon(self.mesh_parts.takeover.run)
                        await self._learn_from_peers()
                    self.has_asked_peers = True
                    listeners: list[Callable[[], None]] = []
                    if not self.is_stopping:
                        parts = self.settings_parts
                        await parts.file_definitions.apply(self.settings, is_forced=self._forces_definitions)
                        serving.start_soon(self.settings_parts.file_definitions.run)
                        parts.deleted_queues.begin()
                        parts.declared_queues.begin()
                        listeners += await self._listen_locally(serving)
                        listeners += await self._listen_for_clients(serving)
                        if self.certificates.expiries():
                            serving.start_soon(self.certificate_expiry.run)
                        self.is_listening = True
                        note_openness(self.settings, parts.users.users)
                    task_status.started()
                    await self._stop.wait()
                    self.is_listening = False
                    for close in listeners:
                        close()
                    await self._drain()
                    serving.cancel_scope.cancel()
                self.session_parts.login_path.refusals.close()
                # So that the next start has little to replay. While commits still run: messages that expire meanwhile
                # wait for their commit, and a checkpoint waits for that.
                await self.engine.checkpoints.bring_up()
                await self.mesh_parts.clock_check.note()
                if self.broker.queues.paging.leaves_unseen(
                    await self.environment.run_blocking(self.store.queues.origins)
                ):
                    with suppress(DiskFull):
                        await self.environment.run_blocking(self.store.catalog.set_facts, {UNSEEN: ""})
                self.engine.commits.stop()
                await self.engine.path.flushed()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self.environment.run_blocking(self.store.close)
            self.ended.set()

    async def _learn_from_peers(self) -> None:
        """Learn from peers what clients need: interest and definitions at the same time, each for a bounded time.

        Ends at `stop`, because a majority may say that this node is retired.
        """
        async with trio.open_nursery() as until_stop:
            until_stop.start_soon(self._cancel_at_stop, until_stop.cancel_scope)
            async with trio.open_nursery() as learning:
                learning.start_soon(self.mesh_parts.reports.learn_interest, self.settings.mesh.interest_confirm_seconds)
                learning.start_soon(self.settings_parts.sync.before_clients)
            until_stop.cancel_scope.cancel()

    async def _cancel_at_stop(self, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        scope.cancel()

    async def _listen_for_clients(self, nursery: trio.Nursery) -> list[Callable[[], None]]:
        closes: list[Callable[[], None]] = []
        for name in PROTOCOLS:
            for listener in self.settings.listeners_of(name):
                protocol = self.protocols.of(name)
                if name not in self.addresses:
                    protocol.served()
                address, close = await nursery.start(self.session_parts.listeners.listen, listener, protocol)
                self.addresses.setdefault(name, []).append(address)
                closes.append(close)
        return closes

    async def _listen_locally(self, nursery: trio.Nursery) -> list[Callable[[], None]]:
        """Serve the Unix socket. A file system that cannot have one does not keep the node from its other clients."""
        if self._local_socket is None:
            return []
        try:
            listener = await self.environment.run_blocking(LocalListener, self._local_socket)
        except OSError as error:
            self.raise_condition("local-socket", f"{error.strerror}; `qmq … --data` does not reach this node")
            return []
        _, close = await nursery.start(self.session_parts.listeners.serve, listener, None, self.protocols.of(LOCAL))
        return [close]

    async def _drain(self) -> None:
        """Let clients finish and leave, then send peers the records they are missing; until a second call of `stop`."""
        with self._draining:
            await self.session_parts.draining.finish()
        # Also after a second call of `stop`: a full disk must not keep the node from stopping.
        self.engine.commits.stop_waiting_for_space()
