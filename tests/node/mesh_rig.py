"""A small mesh of whole nodes on one simulated network, for what a client of one node sees of the others."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from qmq.broker.messages.send_options import times_of
from qmq.config import (
    Address,
    DestinationSettings,
    LimitSettings,
    ListenerSettings,
    MeshSettings,
    NodeSettings,
    Peer,
    PeersFile,
)
from qmq.config.node import MEMORY
from qmq.node.node import Node
from qmq.node.reload import Reloader
from qmq.protocols.http.listener import HttpListenerSettings
from qmq.storage.format.settings import StoreSettings
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store
from tests.node.rig import Client, eventually
from tests.simulation.pauses import HOST
from tests.support.defined import defined
from tests.support.network import Fabric
from tests.support.world import SimulatedWorld

CLIENT_PORT = 61613
MESH_PORT = 61614
WEB_PORT = 61680


def host_of(index: int) -> str:
    """Loopback, because only there a mesh may use a secret."""
    return f"127.0.1.{index + 1}"


class MeshRig:
    """The nodes by name; `run` starts them and waits until all links are up."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names or ("a", "b")
        self.fabric = Fabric(random.Random("mesh rig"))
        self.nodes: dict[str, Node] = {}
        self._limits = LimitSettings(**{"farewell_seconds": 1.0, "drain_seconds": 1.0, **settings.pop("limits", {})})
        self._mesh = MeshSettings(**{"redial_seconds_min": 0.05, **settings.pop("mesh", {})})
        self.destinations: dict[str, DestinationSettings] = {}
        """Those of one node, from its next life or reload on."""
        self.files: dict[str, NodeSettings] = {}
        """Node files: what they define counts, from the next life or reload on."""
        self.mesh_changes: dict[str, dict[str, Any]] = {}
        """What of `[mesh]` is otherwise on one node, from its next life on."""
        self._stored = StoreSettings(
            **{"segment_bytes_max": 1 << 20, "times_of": times_of, **settings.pop("stored", {})}
        )
        self._settings = settings
        self.without_disk: set[str] = set()
        """Nodes that keep everything in memory: the test wipes what stands for that. Set it before `peers_file`."""
        self.disks = {name: MemoryDisk() for name in self.names}
        self.peers = self.peers_file(*self.names)
        self._lives: dict[str, int] = {}
        self._worlds: dict[str, SimulatedWorld] = {}
        self.skews_us: dict[str, int] = {}
        """How wrong the wall clock of a node is from its next life on; see `step_clock`."""
        self.tracers: dict[str, Any] = {}
        """What makes the spans of a node, from its next life on."""
        self.trusts_clock: set[str] = set()
        """Nodes that are started with `--trust-clock`."""
        self._ends: dict[str, tuple[trio.CancelScope, trio.Event]] = {}
        self._read: dict[str, PeersFile] = {}
        self._nursery: trio.Nursery | None = None

    def peers_file(self, *names: str, version: int = 1) -> PeersFile:
        """A peers file of the rig's mesh. Names that are new get the next hosts."""
        self.names += tuple(name for name in names if name not in self.names)
        places = {name: host_of(self.names.index(name)) for name in names}
        return PeersFile(
            mesh="rig",
            version=version,
            secret="a secret of the rig",
            nodes=tuple(
                Peer(
                    name=name,
                    client=Address(host, CLIENT_PORT),
                    mesh=Address(host, MESH_PORT),
                    memory=name in self.without_disk,
                )
                for name, host in places.items()
            ),
        )

    def forget_at_end(self, *names: str) -> "MeshRig":
        """These nodes have no disk."""
        self.without_disk.update(names)
        self.peers = self.peers_file(*self.names)
        return self

    @asynccontextmanager
    async def run(self) -> AsyncIterator["MeshRig"]:
        """Start all nodes; at the end stop them in order."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for name in self.names:
                await self.start(name)
            await self.until_linked()
            yield self
            for node in self.nodes.values():
                node.stop()

    @asynccontextmanager
    async def run_apart(self, name: str) -> AsyncIterator["MeshRig"]:
        """As `run`, with one node that hears no other."""
        isolate(self, name)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for each in self.names:
                await self.start(each)
            yield self
            for node in self.nodes.values():
                node.stop()

    async def start(self, name: str, peers: PeersFile | None = None) -> Node:
        """A life of this node begins, with the rig's peers file or another one."""
        assert self._nursery is not None
        self.fabric.revive(host_of(self.names.index(name)))
        self.nodes[name] = node = self._make(name, peers or self.peers)
        await self._nursery.start(self._live, node, self._worlds[name])
        return node

    async def _live(
        self, node: Node, environment: SimulatedWorld, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        HOST.set(node.origin.node)
        scope, ended = self._ends[node.origin.node] = trio.CancelScope(), trio.Event()
        try:
            with scope:
                await node.run(task_status)
        except Exception:
            if not environment.dead:
                raise  # what the unwinding of a dead process meets is nobody's business
        finally:
            ended.set()

    async def kill(self, name: str) -> None:
        """End this life at once, as `kill -9` does: what its disk had not synced may be lost."""
        rng = random.Random(f"death of {name} {self._lives[name]}")
        self.fabric.kill(host_of(self.names.index(name)), False)
        self._worlds[name].die(rng)
        self.disks[name].crash(rng)
        scope, ended = self._ends[name]
        scope.cancel()
        await ended.wait()

    def step_clock(self, name: str, microseconds: int) -> None:
        """Somebody sets the wall clock of a machine."""
        self.skews_us[name] = self.skews_us.get(name, 0) + microseconds
        self._worlds[name].skew_us = self.skews_us[name]

    def sleep_machine(self, name: str, seconds: float) -> None:
        """A node's machine wakes up after so long: its boot clock has gone on, trio's has stood still."""
        self._worlds[name].slept_seconds += seconds

    async def reload(self, name: str, peers: PeersFile) -> bool:
        """This node is told to read its files again, and finds this one."""
        settings = self.settings(name)
        before = self.nodes[name].settings
        reloader = Reloader(self.nodes[name], before, self._read.get(name, self.peers), lambda: (settings, peers))
        is_taken = await reloader.reload()
        if is_taken:
            self._read[name] = peers
        return is_taken

    def slow_disk(self, name: str, seconds: float, *, exactly: bool = False) -> None:
        """From now on a disk call of this node's present life takes up to `seconds`, or `exactly` so long.

        A quarter of it passes after the call has done its work.
        """
        self._worlds[name].disk_seconds = seconds
        self._worlds[name].is_disk_time_drawn = not exactly

    async def stop(self, name: str, *, wipe: bool = False) -> None:
        """It ends in order, and the others have seen it; with `wipe` its next life finds an empty disk."""
        node = self.nodes.pop(name)
        node.stop()
        await node.ended.wait()
        meshes = [other.mesh for other in self.nodes.values()]
        await eventually(lambda: not any(name in mesh.linked() for mesh in meshes))
        if wipe:
            self.disks[name].wipe()

    def settings(self, name: str) -> NodeSettings:
        """What this node is configured to do."""
        file = self.files.get(name)
        settings = NodeSettings(
            name=name,
            data=MEMORY if name in self.without_disk else Path("unused"),
            stomp=(ListenerSettings(address=Address(host_of(self.names.index(name)), CLIENT_PORT)),),
            http=(HttpListenerSettings(address=Address(host_of(self.names.index(name)), WEB_PORT)),),
            limits=self._limits,
            mesh=self._mesh.replace(self.mesh_changes.get(name, {})),
            **defined(
                **{
                    **self._settings,
                    **({"destinations": self.destinations[name]} if name in self.destinations else {}),
                }
            ),
        )
        if file is None:
            return settings
        settings.read_from(Path(file.source), file.old_entries, file.notes)
        return settings.replace({"definitions": file.definitions})

    def _make(self, name: str, peers: PeersFile) -> Node:
        host = host_of(self.names.index(name))
        settings = self.settings(name)
        self._read[name] = peers
        self._lives[name] = self._lives.get(name, -1) + 1
        disk = self.disks.setdefault(name, MemoryDisk())
        environment = self._worlds[name] = SimulatedWorld(
            self.fabric.network(host),
            disk,
            random.Random(f"{name}{self._lives[name] or ''}"),
            self.skews_us.get(name, 0),
            0.002,
            self.tracers.get(name),
        )
        store = open_memory_store(disk, node=name, settings=self._stored)
        return Node(settings, peers, store, environment.environment, trusts_clock=name in self.trusts_clock)

    async def until_linked(self) -> None:
        """Every node has what the others had, and delivers messages."""
        meshes = [node.mesh for node in self.nodes.values()]
        await eventually(
            lambda: all(peer.out_state == "caught-up" for mesh in meshes for peer in mesh.statistics().peers)
        )
        await eventually(lambda: not any(node.broker.queues.held for node in self.nodes.values()))

    def cut(self, one: str, other: str) -> None:
        """From now on nothing gets from one to the other, either way."""
        here, there = host_of(self.names.index(one)), host_of(self.names.index(other))
        self.fabric.cut(here, there)
        self.fabric.cut(there, here)

    def heal(self, one: str, other: str) -> None:
        here, there = host_of(self.names.index(one)), host_of(self.names.index(other))
        self.fabric.heal(here, there)
        self.fabric.heal(there, here)

    def link(self, name: str, peer: str) -> str:
        """The state of the link by which `name` follows `peer`."""
        mesh = self.nodes[name].mesh
        return next(found.out_state for found in mesh.statistics().peers if found.name == peer)

    def topics_via(self, name: str, peer: str) -> str | None:
        """Through whom `name` sends topic messages to `peer`."""
        mesh = self.nodes[name].mesh
        return next(found.topics_via for found in mesh.statistics().peers if found.name == peer)

    async def connect(self, name: str, **headers: str) -> Client:
        """A client that has logged in to this node."""
        client = Client(await self.fabric.dial("10.0.0.1", host_of(self.names.index(name)), CLIENT_PORT))
        await client.log_in(**headers)
        return client

    async def until_wanted(self, name: str, destination: str, peers: int = 1) -> None:
        """The node `name` knows that so many peers have a topic subscriber for `destination`."""
        await eventually(lambda: len(self.nodes[name].broker.interest.match(destination)) >= peers)


def isolate(rig: MeshRig, name: str) -> None:
    """Cut every link of one node."""
    for other in rig.names:
        if other != name:
            rig.cut(name, other)


def rejoin(rig: MeshRig, name: str) -> None:
    """Heal them."""
    for other in rig.names:
        if other != name:
            rig.heal(name, other)
