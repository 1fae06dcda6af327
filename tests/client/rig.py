"""Whole nodes on the simulated network and memory disks, and the client under test among them.

`Mesh` is one node or several linked ones, each of which can be killed, cut off and started again. `client` connects
from a host of its own, so that its line to one node can be cut without touching anything else.
"""

import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trustme

import qmq.client
from qmq.config import Address, LimitSettings, ListenerSettings, MeshSettings, NodeSettings, Peer, PeersFile
from qmq.node.node import Node
from qmq.storage.format.settings import StoreSettings as StoreSettings
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store
from tests.support.defined import defined
from tests.support.network import Fabric
from tests.support.world import SimulatedWorld

PORT = 61613
MESH_PORT = 61614
CLIENT_HOST = "10.0.0.1"
DOORWAY_HOST = "10.0.0.9"
PATIENCE_SECONDS = 60.0
"""Virtual time after which something expected counts as missing."""

MESH = MeshSettings(
    redial_seconds_min=0.05,
    redial_seconds_max=1.0,
    beat_seconds=0.4,
    suspicion_seconds=1.5,
    redeliver_after_seconds=4.0,
)


class Mesh:
    """Nodes by name. Disks outlive their nodes."""

    def __init__(self, names: str, fabric: Fabric, nursery: trio.Nursery, **settings: Any) -> None:
        self.names = names
        self.fabric = fabric
        self.hosts = {name: f"127.0.1.{number}" for number, name in enumerate(names, 1)}
        self.addresses = [f"{host}:{PORT}" for host in self.hosts.values()]
        self.disks = {name: MemoryDisk() for name in names}
        self.nodes: dict[str, Node] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._worlds: dict[str, SimulatedWorld] = {}
        self._lives = 0
        self._nursery = nursery
        self._settings = {"limits": LimitSettings(farewell_seconds=1.0), **settings}
        self._peers = PeersFile(
            mesh="tested",
            version=1,
            secret="secret-of-the-tested-mesh",
            nodes=tuple(
                Peer(name=name, client=Address(host, PORT), mesh=Address(host, MESH_PORT))
                for name, host in self.hosts.items()
            ),
        )

    async def start(self, name: str) -> None:
        """Start a node; on return it serves clients."""
        self._lives += 1
        host, disk = self.hosts[name], self.disks[name]
        self.fabric.revive(host)
        rng = random.Random(f"life {self._lives}")
        environment = self._worlds[name] = SimulatedWorld(self.fabric.network(host), disk, rng, 0, 0.002)
        settings = NodeSettings(
            name=name,
            data=Path("unused"),
            stomp=(ListenerSettings(address=Address(host, PORT), anonymous=not self._settings.get("users")),),
            mesh=MESH,
            **defined(**self._settings),
        )
        store = open_memory_store(disk, node=name, settings=StoreSettings(segment_bytes_max=1 << 20))
        peers = self._peers if len(self.names) > 1 else None
        node = self.nodes[name] = Node(settings, peers, store, environment.environment)
        scope = self._scopes[name] = trio.CancelScope()
        await self._nursery.start(self._live, node, environment, scope)

    async def _live(
        self, node: Node, environment: SimulatedWorld, scope: trio.CancelScope, task_status: trio.TaskStatus[None]
    ) -> None:
        try:
            with scope:
                await node.run(task_status)
        except Exception:
            if not environment.dead:  # what the unwinding of a dead process meets is nobody's business
                raise

    def kill(self, name: str, *, silently: bool = False) -> None:
        """End a node as `kill -9` does; `silently` as a power cut, of which nobody is told."""
        rng = random.Random(f"death {self._lives}")
        self.fabric.kill(self.hosts[name], silently)
        self._worlds[name].die(rng)
        self.disks[name].crash(rng)
        self._scopes[name].cancel()

    def of(self, client: qmq.client.Client) -> str:
        """The node that `client` is logged in to."""
        at = client.statistics().node
        return next(name for name, host in self.hosts.items() if at == f"{host}:{PORT}")

    def client(self, **options: Any) -> AbstractAsyncContextManager[qmq.client.Client]:
        options.setdefault("addresses", self.addresses)
        options.setdefault("rng", random.Random("client"))
        options.setdefault("dial", self.fabric.network(CLIENT_HOST).connect)
        return qmq.client.connect(options.pop("addresses"), **options)


@asynccontextmanager
async def running(names: str = "a", **settings: Any) -> AsyncIterator[Mesh]:
    """Nodes that serve, linked when there are several; `settings` are NodeSettings of all."""
    fabric = Fabric(random.Random("rig"))
    async with trio.open_nursery() as nursery:
        mesh = Mesh(names, fabric, nursery, **settings)
        for name in names:
            await mesh.start(name)
        if len(names) > 1:
            await eventually(lambda: all(_is_linked(node) for node in mesh.nodes.values()))
        with trio.fail_after(PATIENCE_SECONDS):
            yield mesh
        nursery.cancel_scope.cancel()


def _is_linked(node: Node) -> bool:
    return all(peer.out_state == "caught-up" and peer.in_state == "up" for peer in node.mesh.statistics().peers)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait, in virtual time, for something that has no event to offer."""
    with trio.fail_after(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 (see above)
            await trio.sleep(0.01)


async def take(messages: qmq.client.Subscription, count: int) -> list[bytes]:
    """The bodies of the next `count` messages, each acknowledged."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        async with await anext(messages) as message:
            bodies.append(message.body)
    return bodies


@asynccontextmanager
async def doorway(mesh: Mesh, tls: ssl.SSLContext | None, name: str = "a") -> AsyncIterator[str]:
    """A real listener on loopback that leads to a node of `mesh`; yields its address."""

    async def lead(stream: trio.abc.Stream) -> None:
        try:
            pipe = await mesh.fabric.dial(DOORWAY_HOST, mesh.hosts[name], PORT)
        except OSError:
            await trio.aclose_forcefully(stream)
            return

        async def inwards() -> None:
            async for data in stream:
                await pipe.send_all(data)
            pipe.end_sending()

        async def outwards() -> None:
            while data := await pipe.receive_some(65536):
                await stream.send_all(data)
            nursery.cancel_scope.cancel()

        try:
            async with stream, trio.open_nursery() as nursery:
                nursery.start_soon(inwards)
                nursery.start_soon(outwards)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            pipe.close()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listeners = [listener if tls is None else trio.SSLListener(listener, tls, https_compatible=True)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, lead, listeners)
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context
