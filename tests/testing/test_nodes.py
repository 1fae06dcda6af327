"""`qmq.testing`: real nodes that a test kills, cuts and restarts, on trio, asyncio and without a loop."""

import asyncio
from pathlib import Path

import pytest
import trio

import qmq.client
import qmq.client.aio
import qmq.testing
from qmq.cli.launch import is_taken
from qmq.cli.output import Failed
from qmq.config import Address
from qmq.testing import local
from qmq.testing.awaited import in_thread
from tests.support.cluster_wait import eventually


async def test_a_node_keeps_its_messages_and_its_address_over_a_kill() -> None:
    async with qmq.testing.node() as node:
        async with qmq.client.connect(node.at) as client:
            await client.send("/queue/q", b"one")
        await node.kill()
        await node.restart()

        async with qmq.client.connect(node.at) as client, client.subscribe("/queue/q") as messages:
            assert (await messages.receive()).body == b"one"

    host, port = node.at.split(":")
    assert not is_taken(Address(host, int(port)))


def test_it_is_the_same_on_asyncio() -> None:
    async def main() -> None:
        async with qmq.testing.node() as node:
            await node.restart()
            async with qmq.client.aio.connect(node.at) as client:
                await client.send("/queue/q", b"one")

    asyncio.run(main())


async def test_a_client_of_a_mesh_goes_on_when_its_node_is_killed() -> None:
    async with qmq.testing.mesh(3) as mesh, qmq.client.connect(mesh.addresses) as client:
        await client.send("/queue/q", b"one")
        await mesh.kill("a")
        await client.send("/queue/q", b"two")

        await mesh.restart("a")

        async with qmq.client.connect(mesh.at("a")) as other, other.subscribe("/queue/q") as messages:
            assert {(await messages.receive()).body for _ in range(2)} == {b"one", b"two"}


def test_what_is_cut_has_no_link_until_it_heals() -> None:
    with local.mesh(2) as mesh:
        mesh.cut("a", "b")
        eventually(lambda: mesh.links("a")["b"] != ("up", "up"), "a does not notice the cut")

        mesh.heal("a", "b")

        mesh.wait_for_links()


def test_each_node_serves_every_protocol(tmp_path: Path) -> None:
    with local.node(folder=tmp_path) as node:
        assert all(is_taken(Address(*node.served(name))) for name in ("http", "amqp", "beanstalk"))
    assert (tmp_path / "data" / "a.log").read_text("utf-8")


def test_a_mesh_has_one_to_eight_nodes() -> None:
    with pytest.raises(ValueError, match="not 9"), local.mesh(9):
        pass


def test_a_node_that_does_not_start_says_why() -> None:
    with pytest.raises(Failed, match="no_such_key"), local.node(config="no_such_key = 1"):
        pass


async def test_a_call_that_is_cancelled_is_finished_first() -> None:
    done: list[int] = []
    with trio.move_on_after(0) as scope:
        await in_thread(done.append, 1)

    assert done == [1] and not scope.cancelled_caught
