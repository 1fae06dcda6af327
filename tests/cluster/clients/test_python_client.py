"""The project's own client on real nodes: it outlives the node that it talks to, and its fanout stream has no repeat.

The one chapter that does not speak through a stock client, because this client is what it is about.
"""

from collections import Counter
from functools import partial

import pytest
import trio

import qmq.client
from tests.support.cluster_mesh import Cluster

MESSAGES = 600
KILL_AT = (150, 350)
SECONDS_MAX = 200.0


async def in_thread(call: partial[None]) -> None:
    await trio.to_thread.run_sync(call)


@pytest.mark.timeout(300)
async def test_a_client_sends_reads_and_works_on_while_its_nodes_are_killed_one_after_another(mesh: Cluster) -> None:
    nodes = [mesh.at(name) for name in mesh.names]
    receipted: list[bytes] = []
    told: list[bytes] = []
    worked: Counter[bytes] = Counter()
    enough = trio.Event()

    def complete() -> bool:
        return len(receipted) == MESSAGES and set(told) >= set(receipted) and set(worked) >= set(receipted)

    async def publish(client: qmq.client.Client) -> None:
        for number in range(MESSAGES):
            body = b"%d" % number
            await client.send("/fanout/client.stream", body)
            await client.send("/queue/client.work", body)
            receipted.append(body)
            if number in KILL_AT:
                # The client is at the first node, then at the second: each is taken away under it.
                victim = mesh.names[KILL_AT.index(number)]
                await in_thread(partial(mesh.kill, victim))
                if victim != mesh.names[0]:
                    await in_thread(partial(mesh.start, mesh.names[0]))

    async def follow() -> None:
        async with qmq.client.connect(nodes) as client, client.subscribe("/fanout/client.stream") as stream:
            async for message in stream:
                told.append(message.body)
                if complete():
                    enough.set()

    async def work() -> None:
        async with qmq.client.connect(nodes) as client, client.subscribe("/queue/client.work", prefetch=10) as jobs:
            async for message in jobs:
                async with message:
                    worked[message.body] += 1
                if complete():
                    enough.set()

    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            nursery.start_soon(work)
            async with qmq.client.connect(nodes) as client:
                await publish(client)
            await in_thread(partial(mesh.start, mesh.names[1]))
            if not complete():
                await enough.wait()
            nursery.cancel_scope.cancel()

    # A send whose receipt died with its node is made again and may be doubled; nothing else may.
    assert set(told) == set(worked) == {b"%d" % number for number in range(MESSAGES)}
    assert sum(count - 1 for count in Counter(told).values()) <= len(KILL_AT)
