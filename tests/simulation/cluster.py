"""Whole nodes under simulation: their disks, lives and deaths.

`Member` is one node of the peers file through all its lives. What ends a life has an order: the network first, in
the same instant what its pending disk calls still do, then the power cut of the disk, and only then its tasks are
cancelled; so nothing that a dying node does can be seen by anybody.
"""

import random
from pathlib import Path

import trio

from qmq.config import (
    Address,
    LimitSettings,
    ListenerSettings,
    MeshSettings,
    NodeSettings,
    Peer,
    PeersFile,
    StorageSettings,
)
from qmq.dots import Vector
from qmq.errors import LogBroken
from qmq.server.node import Node
from qmq.storage.memory import MemoryDisk
from qmq.storage.ports import StorageSettings as StoreSettings
from qmq.storage.store import Store, open_memory_store
from tests.simulation.faults import Plan
from tests.simulation.trace import Trace
from tests.support.network import Fabric
from tests.support.world import SimulatedWorld

CLIENT_PORT = 61613
MESH_PORT = 61614
SECRET = "simulated-mesh-secret"

WORK_SECONDS_MAX = 0.5

MESH = MeshSettings(
    redial_seconds_min=0.05,
    redial_seconds_max=1.0,
    beat_seconds=0.4,
    suspicion_seconds=1.5,
    redeliver_after_seconds=4.0,
)


def host_of(name: str, nodes: tuple[str, ...]) -> str:
    """The address of a node; loopback, because only there a mesh may use a secret."""
    return f"127.0.1.{nodes.index(name) + 1}"


def peers_of(plan: Plan) -> PeersFile:
    return PeersFile(
        mesh="simulated",
        version=1,
        secret=SECRET,
        nodes=tuple(
            Peer(
                name=name,
                client=Address(host_of(name, plan.nodes), CLIENT_PORT),
                mesh=Address(host_of(name, plan.nodes), MESH_PORT),
            )
            for name in plan.nodes
        ),
    )


class Member:
    """One node. `node` and `store` are those of the present life, or of the last one."""

    def __init__(self, name: str, plan: Plan, peers: PeersFile, fabric: Fabric, trace: Trace) -> None:
        self.name = name
        self.host = host_of(name, plan.nodes)
        self.disk = MemoryDisk()
        self.lives = 0
        self.up = False
        self.node: Node | None = None
        self.store: Store | None = None
        self.escaped: list[Exception] = []
        """What left `Node.run` and is not what an injected fault explains."""
        self.disk_is_told_to_fail = False
        self.is_stopping = False
        self._plan = plan
        self._chance = random.Random(f"deaths/{plan.seed}/{name}")
        self._peers = peers
        self._fabric = fabric
        self._trace = trace
        self._skew_us = plan.skews_us[plan.nodes.index(name)]
        self._world: SimulatedWorld | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._settings = NodeSettings(
            name=name,
            data=Path("unused"),
            stomp=(ListenerSettings(address=Address(self.host, CLIENT_PORT), anonymous=True),),
            storage=StorageSettings(checkpoint_bytes=plan.checkpoint_bytes, journal_keep_bytes=plan.journal_keep_bytes),
            limits=LimitSettings(
                subscriber_buffer_bytes_default=plan.subscriber_buffer_bytes,
                commit_pending_bytes_max=plan.commit_pending_bytes,
            ),
            mesh=MESH,
        )

    def start(self, nursery: trio.Nursery) -> None:
        """Begin a life. It serves clients a few virtual milliseconds later."""
        assert not self.up
        self.lives += 1
        plan = self._plan
        self._fabric.revive(self.host)
        chance = random.Random(f"{plan.seed}/{self.name}/{self.lives}")
        self._world = SimulatedWorld(
            self._fabric.network(self.host), self.disk, chance, self._skew_us, plan.disk_seconds
        )
        self.store = open_memory_store(
            self.disk,
            node=self.name,
            settings=StoreSettings(segment_bytes_max=plan.segment_bytes, journal_keep_bytes=plan.journal_keep_bytes),
        )
        self.node = Node(self._settings, self._peers, self.store, self._world.world)
        self.up = True
        self.is_stopping = False
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._trace.note(f"{self.name} starts as {self.node.origin}")
        nursery.start_soon(self._live, self.node, self._world)

    async def _live(self, node: Node, world: SimulatedWorld) -> None:
        try:
            with self._scope:
                await node.run()
        except Exception as error:
            self._judge(error, world)
        if not world.dead:
            self._trace.note(f"{self.name} has ended")
            self._fabric.kill(self.host, silently=False)
            world.dead = True
            if self.disk_is_told_to_fail:
                # The machine is repaired, and what the disk had not synced is gone.
                self.disk.crash(self._chance)
                self.disk_is_told_to_fail = False
        self.up = False
        self._ended.set()

    def _judge(self, error: Exception, world: SimulatedWorld) -> None:
        if world.dead:
            return  # what the unwinding of a dead process meets is nobody's business
        if not (self.disk_is_told_to_fail and _only_broken_log(error)):
            self.escaped.append(error)

    async def crash(self, *, silently: bool, wipe: bool = False) -> None:
        """End this life at once, as `kill -9` or a power cut does."""
        if not self.up or self._world is None:
            return
        self._trace.note(f"{self.name} {'loses power' if silently else 'is killed'}{' and its disk' if wipe else ''}")
        self._fabric.kill(self.host, silently)
        self._world.die(self._chance)
        if wipe:
            self.disk.wipe()
            self.store = None
        else:
            self.disk.crash(self._chance)
        self.disk_is_told_to_fail = False
        self._scope.cancel()
        # Also at the end of the faults: who looks at `up` then must not meet a node that is half dead.
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def be_caught_at_work(self) -> None:
        """Wait until this node uses its disk, and a moment longer; not for ever."""
        if self.up and self._world is not None:
            with trio.move_on_after(WORK_SECONDS_MAX):
                await self._world.disk_asked()
                await trio.sleep(self._chance.random() * self._plan.disk_seconds)

    async def stop(self) -> None:
        """An orderly end."""
        if self.up and self.node is not None:
            self.is_stopping = True
            self._trace.note(f"{self.name} is asked to stop")
            self.node.stop()
            await self._ended.wait()

    async def fail_disk(self) -> None:
        """Let one of the next disk operations fail; returns when the node has ended of it and the disk is well."""
        # A node that is dead takes a moment to unwind; its disk belongs to its next life by then.
        if self.up and self._world is not None and not self._world.dead:
            self._trace.note(f"{self.name}: the disk begins to fail")
            self.disk_is_told_to_fail = True
            self.disk.fail_at(self._chance.randrange(6))
            await self._ended.wait()

    def vector(self) -> Vector:
        """What is on this node's disk, as far as its last life knew."""
        return {} if self.store is None else self.store.journal.vector()


def _only_broken_log(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_only_broken_log(inner) for inner in error.exceptions)
    return isinstance(error, LogBroken)
