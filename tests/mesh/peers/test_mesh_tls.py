"""Two nodes of a mesh without a secret: only their certificates identify them."""

import datetime
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from qmq.config import Address, ListenerSettings, MeshSettings, NodeSettings, Peer, PeersFile, TlsSettings
from qmq.engine.runtime.sockets import TcpNetwork
from qmq.environment import Environment
from qmq.node.main import run_in_thread
from qmq.node.node import Node
from qmq.testing.ports import free_ports
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store
from tests.sessions.clients.test_tls import HOST, SECONDS_MAX, Papers
from tests.support.conditions import present


def nodes_of(**tls: TlsSettings) -> list[Node]:
    """The nodes of a mesh without a secret, by their certificates."""
    addresses = [Address(HOST, port) for port in free_ports(2 * len(tls))]
    peers = PeersFile(
        mesh="m",
        version=1,
        nodes=tuple(Peer(name=name, mesh=addresses.pop(), client=addresses.pop()) for name in tls),
    )
    nodes = []
    for name, own in tls.items():
        settings = NodeSettings(
            name=name, stomp=(ListenerSettings(address=Address(HOST, 0)),), mesh=MeshSettings(tls=own)
        )
        environment = Environment(
            network=TcpNetwork(),
            rng=random.Random(name),
            now_us=lambda: 1,
            run_blocking=run_in_thread,
            boot_seconds=trio.current_time,
            run_commit=commit_in_thread,
        )
        nodes.append(Node(settings, peers, open_memory_store(MemoryDisk(), node=name), environment))
    return nodes


async def commit_in_thread(call: Callable[[], Any], *, is_lone: bool = False) -> Any:
    return await run_in_thread(call)


async def run_until(nodes: list[Node], condition: Callable[[], bool]) -> None:
    """Run the nodes until this holds."""
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.run)
            while not condition():  # noqa: ASYNC110
                await trio.sleep(0.02)
            for node in nodes:
                node.stop()


def states(nodes: list[Node]) -> list[str]:
    """Of the links that the nodes dial."""
    meshes = [node.mesh for node in nodes]
    return [peer.out_state for mesh in meshes for peer in mesh.statistics().peers]


async def test_nodes_that_have_only_certificates_find_each_other(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers")
    nodes = nodes_of(a=papers.of("a"), b=papers.of("b"))

    await run_until(nodes, lambda: states(nodes) == ["caught-up"] * 2)


@pytest.mark.parametrize("why", ["expired", "not yet valid"])
async def test_a_certificate_outside_of_its_time_opens_no_link(tmp_path: Path, why: str) -> None:
    papers = Papers(tmp_path / "papers")
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    begin, end = (now - 2 * day, now - day) if why == "expired" else (now + day, now + 2 * day)
    late = papers.written("b", papers.authority.issue_cert("b", not_before=begin, not_after=end))
    nodes = nodes_of(a=papers.of("a"), b=late)

    await run_until(nodes, lambda: bool(present(nodes[0])))

    assert not {"up", "caught-up"}.intersection(states(nodes))
    (found,) = present(nodes[0])
    assert found["code"] == "bad-certificate" and why in found["message"]
