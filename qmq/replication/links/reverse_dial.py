"""Reverse dial: if a peer cannot dial this node, this node dials it and serves on that connection.

Each node of a pair pulls over a connection that it has dialled. If only one of them can dial, as behind a firewall, the
other would get neither its records (except through a third node) nor its queue messages. A node may pull from a peer
that does not pull from it. After the time in which it would suspect the peer, it dials once more and sends a CONNECT
with `turn`. Then it serves on that connection as if the peer had dialled. If the peer has no connection of its own, it
uses this one in its place; everything after the first frame is as usual.

Bounds: one such connection per peer at a time, and a new one not sooner than `TURN_AGAIN_SECONDS` after the last.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import trio

from qmq.environment import Pipe, Tls
from qmq.errors import MeshError
from qmq.replication.links.host import Settings
from qmq.replication.links.link import LOGIN_SECONDS, LOST, Link, new_nonce
from qmq.replication.links.registry import LinkRegistry
from qmq.replication.protocol.handshake import turn

TURN_AGAIN_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class ReverseDial:
    """For the peers in `links`. `serve` runs an accepted connection to its end."""

    _registry: LinkRegistry
    _links: Mapping[str, Link]
    _settings: Settings
    _tls: Tls | None
    _serve: Callable[[Pipe, str], Awaitable[None]]

    def __post_init__(self) -> None:
        self.turned = 0
        """Connections that were dialled to be served on, since the start."""
        self._busy: set[str] = set()

    async def run(self) -> NoReturn:
        """Look once in the time that makes a peer suspect; for ever."""
        unserved: set[str] = set()
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self._settings.suspicion_seconds)
                before, unserved = unserved, self._unserved()
                for name in sorted(unserved & before - self._busy):
                    self._busy.add(name)
                    nursery.start_soon(partial(self._turn, self._links[name]))

    def _unserved(self) -> set[str]:
        """Peers that we follow, and that do not follow us. The link with one that has left may not have ended yet."""
        registry = self._registry
        return {
            name
            for name, following in registry.followings.items()
            if following.welcomed and name not in registry.servings and name in self._links
        }

    async def _turn(self, link: Link) -> None:
        registry = self._registry
        environment = registry.host.environment
        self.turned += 1
        log.info("= %s does not subscribe to this node: it is offered a connection", link.peer)
        try:
            with trio.fail_after(LOGIN_SECONDS):
                address = link.address
                pipe = await environment.network.connect(address.host, address.port, self._tls, link.peer)
            try:
                with trio.fail_after(LOGIN_SECONDS):
                    await pipe.send_all(turn(registry.identity, link.peer, new_nonce(environment)))
            except BaseException:
                pipe.close()
                raise
            await self._serve(pipe, link.peer)
        except (*LOST, MeshError) as error:
            log.info("= %s did not accept the offered connection: %s", link.peer, error)
        await trio.sleep(TURN_AGAIN_SECONDS)
        self._busy.discard(link.peer)
