"""A line of 10 KB/s between nodes: what catches up must not keep topics and lent messages waiting."""

import pytest
import trio
from trio.testing import MockClock

from tests.node.mesh_rig import MeshRig, host_of
from tests.node.rig import eventually, send, subscribe

pytestmark = pytest.mark.trio

BYTES_PER_SECOND = 10_000
T = "/topic/t"


async def test_topics_and_lent_messages_arrive_in_seconds_beside_a_long_catching_up(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", mesh={"receipt": "fsync"}).run() as mesh:
        subscriber = await mesh.connect("b")
        await subscriber.send(subscribe(T), subscribe("/queue/q", id="1", ack="client-individual"))
        assert [await subscriber.receipt(), await subscriber.receipt()] == ["sub-0", "sub-1"]
        publisher = await mesh.connect("a")
        mesh.fabric.slow_down(host_of(0), host_of(1), BYTES_PER_SECOND, 1000)
        for number in range(200):
            await publisher.send(send("/fanout/f", "x" * 5000, receipt=str(number)))
            await publisher.receipt()

        waited: list[float] = []
        for number in range(10):
            await trio.sleep(4.0)
            began = trio.current_time()
            await publisher.send(send(T if number % 2 else "/queue/q", str(number)))
            assert await subscriber.messages(1) == [str(number).encode()]
            waited.append(trio.current_time() - began)
        origin = mesh.nodes["a"].origin
        missing_ranges = (
            mesh.nodes["a"].engine.path.received_vector()[origin]
            - mesh.nodes["b"].engine.path.received_vector()[origin]
        )

        assert missing_ranges > 50
        assert max(waited[4:]) < 6.0, waited
        mesh.fabric.speed_up(host_of(0), host_of(1))
        await eventually(lambda: mesh.nodes["b"].engine.path.received_vector()[origin] >= 200)
