"""Whole nodes under simulation: their disks, starts and ends.

`Member` is one node of the peers file through all its runs. A run ends in a fixed order: first the network, in the same
instant what the pending disk calls still do, then the power cut of the disk, and only then its tasks are cancelled. So
no other node or client sees what a dying node does.
"""

import random
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import trio

from qmq.access.rules import ACTIONS, ANONYMOUS
from qmq.broker.messages.send_options import times_of
from qmq.config import (
    Address,
    LimitSettings,
    ListenerSettings,
    MeshSettings,
    NodeSettings,
    Peer,
    PeersFile,
    PermissionSettings,
    StorageSettings,
    User,
)
from qmq.config.node import MEMORY
from qmq.errors import DiskFull, LogBroken
from qmq.model.dots import Dot, Origin, Vector
from qmq.node.node import Node
from qmq.node.reload import Reloader
from qmq.protocols.beanstalk.listener import BeanstalkListenerSettings
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.format.settings import StoreSettings as StoreSettings
from qmq.storage.store import Store
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store
from tests.simulation.operations import GUARDED, HASH, READER
from tests.simulation.pauses import HOST, Pauses
from tests.simulation.plan import Family, Plan
from tests.simulation.reports.trace import Trace
from tests.support.defined import defined
from tests.support.network import Fabric
from tests.support.world import SimulatedWorld

CLIENT_PORT = 61613
MESH_PORT = 61614
AMQP_PORT = 5672
BEANSTALK_PORT = 11300
SECRET = "simulated-mesh-secret"

WORK_SECONDS_MAX = 0.5

RESERVE_BYTES = 32 << 20
"""What a full disk keeps for settles: more than a simulation writes."""

START_BYTES = 1 << 20
"""A node is not started with less room than that: what it writes to its databases then would end it."""

MESH = MeshSettings(
    redial_seconds_min=0.05,
    redial_seconds_max=1.0,
    beat_seconds=0.4,
    suspicion_seconds=1.5,
    redeliver_after_seconds=4.0,
    takeover_after_seconds=2.0,
)


def host_of(name: str, nodes: tuple[str, ...]) -> str:
    """The address of a node; loopback, because only there a mesh may use a secret."""
    return f"127.0.1.{nodes.index(name) + 1}"


def peers_of(plan: Plan, *, is_grown: bool = False) -> PeersFile:
    """The file at the beginning, or the next version, which names the newcomer too."""
    return PeersFile(
        mesh="simulated",
        version=2 if is_grown else 1,
        secret=SECRET,
        nodes=tuple(
            Peer(
                name=name,
                client=Address(host_of(name, plan.nodes), CLIENT_PORT),
                mesh=Address(host_of(name, plan.nodes), MESH_PORT),
                memory=name == plan.forgetful,
            )
            for name in plan.nodes
            if is_grown or name != plan.newcomer
        ),
    )


def _access(plan: Plan, address: Address) -> dict[str, Any]:
    """The listeners, and the permissions there. With operators there is a user with few rights, whom they change."""
    if plan.family is Family.GATEWAYS:
        return {
            "stomp": (ListenerSettings(address=address),),
            "amqp": (ListenerSettings(address=Address(address.host, AMQP_PORT)),),
            "beanstalk": (BeanstalkListenerSettings(address=Address(address.host, BEANSTALK_PORT)),),
        }
    if plan.family is not Family.OPERATORS:
        return {"stomp": (ListenerSettings(address=address),)}
    everything = tuple(action.value for action in ACTIONS)
    return {
        "stomp": (ListenerSettings(address=address, anonymous=True),),
        "users": (User(name=READER, password_hash=HASH),),
        "permissions": (
            PermissionSettings(user=ANONYMOUS.name, allow=everything, destinations=("/*",)),
            PermissionSettings(user=READER, allow=("send", "subscribe"), destinations=(GUARDED,)),
        ),
    }


class Member:
    """One node. `node` and `store` are those of the present life, or of the last one."""

    def __init__(self, name: str, plan: Plan, peers: PeersFile, fabric: Fabric, pauses: Pauses, trace: Trace) -> None:
        self.name = name
        self.host = host_of(name, plan.nodes)
        self.is_forgetful = name == plan.forgetful
        """It has no disk."""
        self.before_it_forgets: Callable[[], None] = lambda: None
        """Called in the instant in which all that it has goes."""
        self.disk = MemoryDisk()
        self.lives = 0
        self.up = False
        self.node: Node | None = None
        self.store: Store | None = None
        self.damaged: set[Dot] = set()
        """What its journal may lack, because it was damaged after a checkpoint had it."""
        self.gone: set[Dot] = set()
        """What its disk has lost since it was up: `vector` counts it still."""
        self.born_at = 0.0
        """When the present or last life began."""
        self.escaped: list[Exception] = []
        """What left `Node.run` and is not what an injected fault explains."""
        self.disk_is_made_to_fail = False
        self.is_stopping = False
        self._plan = plan
        self._rng = random.Random()
        """How this life ends; of each life its own."""
        self._peers = peers
        """The file as it is now."""
        self._loaded = peers
        """The file that the present life goes by, or is about to."""
        self._fabric = fabric
        self._pauses = pauses
        self._trace = trace
        self._disk_seconds = 0.0 if self.is_forgetful else plan.disk_seconds
        self._skew_us = plan.skews_us[plan.nodes.index(name)]
        self._environment: SimulatedWorld | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._settings = NodeSettings(
            name=name,
            data=MEMORY if self.is_forgetful else Path("unused"),
            **defined(**_access(plan, Address(self.host, CLIENT_PORT))),
            storage=StorageSettings(
                checkpoint_bytes=plan.checkpoint_bytes,
                journal_keep_bytes=plan.journal_keep_bytes,
                journal_bytes_max=plan.journal_bytes_max,
                disk_reserve_bytes=RESERVE_BYTES,
            ),
            limits=LimitSettings(
                subscriber_buffer_bytes_default=plan.subscriber_buffer_bytes,
                commit_pending_bytes_max=plan.commit_pending_bytes,
            ),
            mesh=MESH,
        )

    @property
    def is_alive(self) -> bool:
        """Whether it is up, and not dead and only taking a moment to unwind: its disk belongs to its next life then."""
        return self.up and self._environment is not None and not self._environment.dead

    def has_read(self, version: int) -> bool:
        return self._peers.version >= version

    async def read(self, peers: PeersFile) -> None:
        """There is a new peers file, and the node is signalled, if it runs. Otherwise it finds it when it starts."""
        self._peers = peers
        # A node that has begun with the old file hears no signal yet.
        while self.is_alive and self.node is not None and not self.node.addresses:  # noqa: ASYNC110
            await trio.sleep(0.01)
        if self.is_alive and self.node is not None and self._loaded != peers and not self.is_stopping:
            before, self._loaded = self._loaded, peers
            self._trace.note(f"{self.name} is told to read version {peers.version} of the peers file")
            self.node.spawn(Reloader(self.node, self._settings, before, lambda: (self._settings, peers)).reload)

    def start(self, nursery: trio.Nursery) -> None:
        """Begin a life. It serves clients a few virtual milliseconds later."""
        assert not self.up
        self.lives += 1
        self.gone.clear()
        if self.disk.free_bytes() < START_BYTES:
            self.set_full_disk(None)
        plan = self._plan
        self._rng = random.Random(f"deaths/{plan.seed}/{self.name}/{self.lives}")
        self._fabric.revive(self.host)
        rng = random.Random(f"{plan.seed}/{self.name}/{self.lives}")
        self._environment = SimulatedWorld(
            self._fabric.network(self.host), self.disk, rng, self._skew_us, self._disk_seconds
        )
        self._environment.lone_at_once = 0.5
        self.store = open_memory_store(
            self.disk,
            node=self.name,
            settings=StoreSettings(
                times_of=times_of,
                segment_bytes_max=plan.segment_bytes,
                journal_keep_bytes=plan.journal_keep_bytes,
                journal_bytes_max=plan.journal_bytes_max,
                reserve_bytes=RESERVE_BYTES,
            ),
        )
        self._loaded = self._peers
        self.node = Node(self._settings, self._peers, self.store, self._environment.environment)
        self.up = True
        self.is_stopping = False
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.born_at = trio.current_time()
        self._trace.note(f"{self.name} starts as {self.node.origin}")
        nursery.start_soon(self._live, self.node, self._environment)

    async def _live(self, node: Node, environment: SimulatedWorld) -> None:
        HOST.set(self.host)
        try:
            with self._scope:
                await node.run()
        except Exception as error:
            self._judge(error, environment)
        if not environment.dead:
            self._trace.note(f"{self.name} has ended")
            self._fabric.kill(self.host, silently=False)
            environment.dead = True
            if self.disk_is_made_to_fail:
                # The machine is repaired, and what the disk had not synced is gone.
                self.disk.crash(self._rng)
                self.disk_is_made_to_fail = False
            if self.is_forgetful:
                self._forget()
        self.up = False
        self._ended.set()

    def _forget(self) -> None:
        self.before_it_forgets()
        self.disk.wipe()
        self.store = None

    def _judge(self, error: Exception, environment: SimulatedWorld) -> None:
        if environment.dead:
            return  # what the unwinding of a dead process meets does not matter
        if self.disk_is_made_to_fail and _is_only(LogBroken, error):
            return
        if self.is_stopping and _is_only(DiskFull, error):
            return  # A node that stops waits for no space: what it has not appended, no client has an answer to.
        self.escaped.append(error)

    async def crash(self, *, silently: bool, wipe: bool = False) -> None:
        """End this life at once, as `kill -9` or a power cut does."""
        if not self.up or self._environment is None:
            return
        self._trace.note(f"{self.name} {'loses power' if silently else 'is killed'}{' and its disk' if wipe else ''}")
        self._fabric.kill(self.host, silently)
        self._environment.die(self._rng)
        if self.is_forgetful:
            self._forget()
        elif wipe:
            self.disk.wipe()
            self.store = None
            self.damaged.clear()
        else:
            self.disk.crash(self._rng)
        self.disk_is_made_to_fail = False
        self._scope.cancel()
        self._pauses.end(self.host)  # the dead unwind; nothing that they do is seen any more
        # Also at the end of the faults: a reader of `up` must not meet a node that is half dead.
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    def lose(self, records: Iterable[Dot]) -> None:
        """The node is down, and these are not on its disk any more."""
        self.gone.update(records)

    async def be_caught_at_work(self) -> None:
        """Wait until this node uses its disk, and a moment longer; not for ever."""
        if self.up and self._environment is not None:
            with trio.move_on_after(WORK_SECONDS_MAX):
                await self._environment.disk_asked()
                await trio.sleep(self._rng.random() * self._plan.disk_seconds)

    async def stop(self) -> None:
        """An orderly end."""
        if self.up and self.node is not None:
            self.is_stopping = True
            self._trace.note(f"{self.name} is asked to stop")
            self.node.stop()
            await self._ended.wait()

    async def fail_disk(self) -> None:
        """Let one of the next disk operations fail; returns when the node has ended of it and the disk is well."""
        if self.is_alive:
            self._trace.note(f"{self.name}: the disk begins to fail")
            self.disk_is_made_to_fail = True
            self.disk.fail_at(self._rng.randrange(6))
            await self._ended.wait()

    def step_clock(self, seconds: float) -> None:
        """Let the wall clock jump; it stays wrong."""
        self._skew_us += int(seconds * 1_000_000)
        if self._environment is not None:
            self._environment.skew_us = self._skew_us

    def slow_disk(self, seconds: float | None) -> None:
        """From now on a disk call takes up to `seconds`; None: what the plan says. Memory is never slow."""
        if self.is_forgetful:
            return
        self._disk_seconds = self._plan.disk_seconds if seconds is None else seconds
        if self._environment is not None:
            self._environment.disk_seconds = self._disk_seconds

    def set_full_disk(self, left_bytes: int | None) -> None:
        """A disk on which only so much is left, the file of the reserve included; or, None, one with room again."""
        disk = self.disk
        if left_bytes is None:
            disk.capacity_bytes = 1 << 40
        else:
            disk.reserved_bytes = min(disk.reserved_bytes, left_bytes)
            disk.capacity_bytes = disk.used_bytes() + left_bytes

    def forgotten(self) -> Collection[Origin]:
        """Dead incarnations of which this node remembers the name and nothing else: all members had all of them."""
        return () if self.store is None else Seals.of(self.store.catalog.facts()).forgotten

    def vector(self) -> Vector:
        """What is on this node's disk, as far as its last life knew."""
        return {} if self.store is None else self.store.journal.vector()


def _is_only(kind: type[Exception], error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_only(kind, inner) for inner in error.exceptions)
    return isinstance(error, kind)
