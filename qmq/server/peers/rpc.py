"""Questions from node to node: asked of every peer that can be reached, answered by each about itself.

Nothing here is promised: a peer that does not answer within `ANSWER_SECONDS` is left out, and whoever asked is told how
many answered. Question or answer may be lost with a link: a peer that another link leads to is asked again, and one
that none leads to is not waited for.

Bounds: so many questions of this node are under way at once, the next ones wait in line; so many of one peer are being
answered, others are ignored, and that peer's asker runs into its time limit.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Protocol

import trio

from qmq.dots import Origin
from qmq.errors import LogBroken, Refused
from qmq.replication.protocol.frames import ASKING

ANSWER_SECONDS = 2.0

REQUESTS_AT_ONCE = 16
"""Of this node to its peers, and of each peer to this node: with the bound on an answer they fit a link's outbox."""

log = logging.getLogger("qmq.asking")


class RequestLinks(Protocol):
    """What carries requests; see `qmq.replication.mesh.Mesh`."""

    def ask(self, number: int, request: bytes, feature: str) -> list[Origin]: ...

    def ask_one(self, peer: str, number: int, request: bytes) -> list[Origin]: ...

    def answer(self, peer: Origin, number: int, answer: bytes) -> None: ...

    def ways_to(self, peer: Origin) -> Collection[object]: ...


class PeerRpc:
    """Both sides. `answer` is what this node says to a question of a peer; it raises Refused for nonsense."""

    def __init__(
        self, spawn: Callable[[Callable[[], object]], None], answer: Callable[[bytes], Awaitable[bytes]]
    ) -> None:
        self.links: RequestLinks | None = None
        self._spawn = spawn
        self._answer = answer
        self._turns = trio.CapacityLimiter(REQUESTS_AT_ONCE)
        self._asked: dict[int, _Asked] = {}
        self._answering: Counter[Origin] = Counter()
        self._numbers = 0

    async def ask(self, request: bytes, feature: str = ASKING) -> dict[str, bytes]:
        """The answers of the peers that gave one in time, by node. Waits at most ANSWER_SECONDS once it is its turn.

        Only peers that name `feature` are asked.
        """
        links = self.links
        if links is None:
            return {}
        return await self._ask(links, request, lambda number: links.ask(number, request, feature), ANSWER_SECONDS)

    async def ask_one(self, peer: str, request: bytes, seconds: float) -> bytes | None:
        """The answer of one peer; None when it cannot be reached, or has not answered after so many seconds."""
        links = self.links
        if links is None:
            return None
        answers = await self._ask(links, request, lambda number: links.ask_one(peer, number, request), seconds)
        return answers.get(peer)

    async def _ask(
        self, links: RequestLinks, request: bytes, put: Callable[[int], list[Origin]], seconds: float
    ) -> dict[str, bytes]:
        async with self._turns:
            self._numbers += 1
            number = self._numbers
            asked = self._asked[number] = _Asked(request)
            try:
                asked.missing.update({peer: links.ways_to(peer) for peer in put(number)})
                with trio.move_on_after(seconds):
                    while asked.missing:
                        await asked.changed.wait()
                        asked.changed = trio.Event()
            finally:
                del self._asked[number]
        return asked.answers

    def links_changed(self) -> None:
        """RequestLinks began or ended: what was on its way over one that ended is asked again, or not waited for."""
        links = self.links
        if links is None:
            return
        for number, asked in self._asked.items():
            for peer, before in list(asked.missing.items()):
                now = links.ways_to(peer)
                if not now:
                    del asked.missing[peer]
                    asked.changed.set()
                elif any(way not in now for way in before):
                    asked.missing[peer] = now
                    links.ask_one(peer.node, number, asked.request)

    def response_received(self, peer: Origin, number: int, answer: bytes) -> None:
        """`peer` has answered; too late is too late."""
        asked = self._asked.get(number)
        if asked is not None and peer in asked.missing:
            del asked.missing[peer]
            asked.answers[peer.node] = answer
            asked.changed.set()

    def request_received(self, peer: Origin, number: int, request: bytes) -> None:
        """`peer` asks; the answer is made in a task of its own."""
        if self._answering[peer] < REQUESTS_AT_ONCE:
            self._answering[peer] += 1
            self._spawn(partial(self._tell, peer, number, request))

    async def _tell(self, peer: Origin, number: int, request: bytes) -> None:
        try:
            answer = await self._answer(request)
            if self.links is not None:
                self.links.answer(peer, number, answer)
        except Refused as refused:
            log.info("! %s asks what this node does not understand: %s", peer.node, refused)
        except LogBroken:
            raise  # the disk has failed, whoever was the first to find out: the process must stop
        except Exception:
            log.exception("! a question of %s failed; it gets no answer, and the node goes on", peer.node)
        finally:
            self._answering[peer] -= 1
            if not self._answering[peer]:
                del self._answering[peer]


class _Asked:
    """One question under way."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.missing: dict[Origin, Collection[object]] = {}
        """Who has not answered, and the links that there were with it when it was asked."""
        self.answers: dict[str, bytes] = {}
        self.changed = trio.Event()
