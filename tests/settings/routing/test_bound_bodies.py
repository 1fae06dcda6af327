"""A message that is bound to several queues has its body once in the journal, and each queue has all of it."""

import pytest
from trio.testing import MockClock

from qmq.node.node import Node
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually
from tests.settings.routing.test_bindings import bind, consumed, publish, request

QUEUES = [f"/queue/q{number}" for number in range(10)]
BODY = "the body of all copies " * 100


def journal_of(node: Node) -> bytes:
    journal = node.store.journal
    return b"".join(data for _, _, data in journal.read(journal.start, 1 << 24))


@pytest.mark.parametrize("source", ["/topic/news", "/fanout/news", "/exchange/news/key"])
async def test_a_message_bound_to_ten_queues_has_its_body_once_in_each_journal(
    source: str, autojump_clock: MockClock
) -> None:
    mesh = MeshRig("a", "b")
    async with mesh.run():
        client = await mesh.connect("a")
        if source.startswith("/exchange/"):
            await request(client, "declare/exchange/news", {"type": "fanout"})
        for queue in QUEUES:
            assert (await bind(client, source.removesuffix("/key"), queue))["changed"] == 1

        assert await publish(client, source, BODY) == "RECEIPT"
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        last = a.broker.next_sequence - 1
        await eventually(lambda: b.engine.path.durable_vector().get(a.origin) == last)
        assert [journal_of(node).count(BODY.encode()) for node in (a, b)] == [1, 1]

        await mesh.kill("a")
        await mesh.start("a")
        await mesh.until_linked()
        for queue in QUEUES:
            reader = await mesh.connect("b")
            assert await consumed(reader, 1, queue) == [BODY.encode()]
