"""What an idle client makes its node hold, in bytes of objects that modules of the node and of trio have allocated."""

import gc
import tracemalloc
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.testing import MockClock

import qmq
from tests.node.rig import Client, Rig

pytestmark = pytest.mark.trio

CLIENTS: Final = 200
BYTES_MAX: Final = 7_400
"""For each client. The codec of the client in this test is in this figure; what the kernel holds for it is not."""

COUNTED: Final = [tracemalloc.Filter(True, str(Path(str(one.__file__)).parent / "*")) for one in (qmq, trio)]


async def test_an_idle_client_has_only_what_it_needs(autojump_clock: MockClock) -> None:
    clients: list[Client] = []
    async with Rig(limits={"connections_per_address_max": 2 * CLIENTS}).run() as rig:
        for _ in range(10):  # What is made only once is there now.
            clients.append(await rig.connect())
        gc.collect()
        tracemalloc.start()
        for _ in range(CLIENTS):
            clients.append(await rig.connect())
        await trio.sleep(1)
        gc.collect()
        held = tracemalloc.take_snapshot().filter_traces(COUNTED)
        tracemalloc.stop()

    assert sum(one.size for one in held.statistics("filename")) / CLIENTS < BYTES_MAX
