"""Two nodes of a mesh without a secret: only their certificates identify them."""

import random
from pathlib import Path

import trio

from qmq.config import Address, ListenerSettings, MeshSettings, NodeSettings, Peer, PeersFile
from qmq.environment import Environment
from qmq.server.main import run_in_thread
from qmq.server.node import Node
from qmq.server.runtime.sockets import TcpNetwork
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store
from tests.server.clients.test_tls import HOST, SECONDS_MAX, Papers
from tests.support.cluster_mesh import free_ports


async def test_nodes_that_have_only_certificates_find_each_other(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers")
    addresses = [Address(HOST, port) for port in free_ports(4)]
    peers = PeersFile(
        mesh="m",
        version=1,
        nodes=tuple(Peer(name=name, mesh=addresses.pop(), client=addresses.pop()) for name in ("a", "b")),
    )
    nodes = []
    for name in ("a", "b"):
        settings = NodeSettings(
            name=name,
            stomp=(ListenerSettings(address=Address(HOST, 0)),),
            mesh=MeshSettings(tls=papers.of(name)),
        )
        environment = Environment(
            network=TcpNetwork(),
            rng=random.Random(name),
            now_us=lambda: 1,
            run_blocking=run_in_thread,
            boot_seconds=trio.current_time,
        )
        nodes.append(Node(settings, peers, open_memory_store(MemoryDisk(), node=name), environment))

    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.run)
            while True:
                meshes = [node.mesh for node in nodes if node.mesh is not None]
                if all(peer.out_state == "caught-up" for mesh in meshes for peer in mesh.statistics().peers):
                    break
                await trio.sleep(0.02)  # noqa: ASYNC110
            for node in nodes:
                node.stop()
