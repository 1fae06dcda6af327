"""Real nodes for tests of your own: `node()` and `mesh(3)` on trio, asyncio and anyio, and fixtures for pytest.

    async with qmq.testing.mesh(3) as mesh, qmq.client.connect(mesh.addresses) as client:
        await client.send("/queue/orders", b"one")
        await mesh.kill("a")

`qmq.testing.local` is the same without `async`. `qmq.testing.plugin` has the fixtures. Nothing else of the product is
imported before a node is asked for, so a program that only loads the plugin pays nothing.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmq.testing.awaited import AwaitedMesh, AwaitedNode


@asynccontextmanager
async def mesh(
    count: int = 3, *, folder: Path | None = None, config: str | None = None
) -> "AsyncIterator[AwaitedMesh]":
    """So many nodes a, b, …, all linked, each pair of which can be cut; stopped at the end.

    `config` is the node file of each; by default failures are noticed within seconds. `folder`, which must exist, keeps
    data and logs; by default they are temporary. Raises click.ClickException, with the end of its
    log, if a node does not start.
    """
    from qmq.testing import awaited, local

    given = {} if config is None else {"config": config}
    with ExitStack() as stack:
        made = await awaited.in_thread(stack.enter_context, local.mesh(count, folder=folder, **given))
        try:
            yield awaited.AwaitedMesh(made)
        finally:
            await awaited.in_thread(stack.close)


@asynccontextmanager
async def node(*, folder: Path | None = None, config: str | None = None) -> "AsyncIterator[AwaitedNode]":
    """One node; the options are those of `mesh`."""
    from qmq.testing import awaited, local

    async with mesh(1, folder=folder, config=config) as made:
        yield awaited.AwaitedNode(local.NodeUnderTest(made.blocking))
