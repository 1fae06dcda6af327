"""Calls from node to node (`calls`): sent to every reachable peer, or to one; each responds about itself.

Delivery is not guaranteed: a peer that does not respond in time, or with something that is not valid, is named to the
caller as missing. A request or response may be lost with a link. If another link leads to the peer, it is asked again;
if none does, it is not waited for.

Bounds: a limited number of requests of this node are sent at once, and the next ones wait in line. A limited number of
requests of one peer are handled at once. Others are ignored, and the peer's request reaches its time limit.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import trio

from qmq.errors import LogBroken, Refused
from qmq.mesh.peers.calls import INVALID, CallTable, PeerCall, Replies
from qmq.model.dots import Origin
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.mesh import Mesh
from qmq.replication.protocol.frames import PeerRequest

ANSWER_SECONDS = 2.0
"""For the replies of all peers."""

REPAIR_SECONDS = 10.0
"""For the reply of one peer, which may have to read its stores."""

REQUESTS_AT_ONCE = 16
"""Of this node to its peers, and of each peer to this node: with the bound on a response they fit a link's outbox."""

R = TypeVar("R")

log = logging.getLogger("qmq.peer_rpc")


@dataclass(eq=False, repr=False)
class PeerRpc:
    """Both sides. `table_of` says what this node answers of each kind; its functions get `context()`."""

    _mesh: Mesh
    _spawn: Callable[[Callable[[], object]], None]
    _table_of: Callable[[str], CallTable[Any] | None]
    _context: Callable[[], object]

    def __post_init__(self) -> None:
        self._turns = trio.CapacityLimiter(REQUESTS_AT_ONCE)
        self._asked: dict[int, _Asked] = {}
        self._answering: Counter[Origin] = Counter()
        self._numbers = 0

    async def ask(self, call: PeerCall[R], seconds: float = ANSWER_SECONDS) -> Replies[R]:
        """The replies of all peers that came in time. Waits at most `seconds` once it is its turn."""
        mesh, request = self._mesh, call.request()
        answers = await self._ask(request, lambda number: mesh.ask(number, request), seconds)
        found: dict[str, R] = {}
        for peer in sorted(answers):
            reply = read_reply(peer, call, answers[peer])
            if reply is not None:
                found[peer] = reply
        return Replies(found, sorted(mesh.members - found.keys()))

    async def ask_all(self, call: PeerCall[R], *, is_mesh: bool = True) -> Replies[R]:
        """The same, and the reply of this node first; without `is_mesh` that one only. Raises Refused as this node."""
        here = await self._table(call.kind).answer(self._context(), call)
        found, missing = await self.ask(call) if is_mesh else Replies({}, [])
        return Replies({self._mesh.node: here, **found}, missing)

    async def ask_one(self, peer: str, call: PeerCall[R], seconds: float = REPAIR_SECONDS) -> R | None:
        """The reply of one peer; None when it cannot be reached, or has not responded after `seconds`."""
        mesh, request = self._mesh, call.request()
        answers = await self._ask(request, lambda number: mesh.ask_one(peer, number, request), seconds)
        return read_reply(peer, call, answers[peer]) if peer in answers else None

    async def _ask(self, request: PeerRequest, put: Callable[[int], list[Origin]], seconds: float) -> dict[str, bytes]:
        async with self._turns:
            self._numbers += 1
            number = self._numbers
            asked = self._asked[number] = _Asked(request)
            try:
                asked.missing.update({peer: self._mesh.links_to(peer) for peer in put(number)})
                if asked.missing:
                    with trio.move_on_after(seconds):
                        await asked.complete.wait()
            finally:
                del self._asked[number]
        return asked.answers

    def links_changed(self) -> None:
        """Links began or ended: a request on a link that ended is sent again, or not waited for."""
        mesh = self._mesh
        for number, asked in self._asked.items():
            for peer, before in list(asked.missing.items()):
                now = mesh.links_to(peer)
                if not now:
                    asked.miss(peer)
                elif any(link not in now for link in before):
                    asked.missing[peer] = now
                    mesh.ask_one(peer.node, number, asked.request)

    def response_received(self, peer: Origin, number: int, answer: bytes) -> None:
        """`peer` has responded; a late response is ignored."""
        asked = self._asked.get(number)
        if asked is not None and peer in asked.missing:
            asked.answers[peer.node] = answer
            asked.miss(peer)

    def request_received(self, peer: Origin, number: int, request: PeerRequest, way: LinkOutbox) -> None:
        """`peer` sent a request by `way`; the response is made in a task of its own."""
        if self._answering[peer] < REQUESTS_AT_ONCE:
            self._answering[peer] += 1
            self._spawn(partial(self._respond, peer, number, request, way))

    async def _answer(self, request: PeerRequest) -> bytes:
        """The response of this node to a request of a peer. Raises Refused."""
        table = self._table(request.kind)
        call = table.read(request)
        return call.encode_reply(await table.answer(self._context(), call))

    def _table(self, kind: str) -> CallTable[Any]:
        table = self._table_of(kind)
        if table is None:
            raise Refused("bad-destination", f"this node knows no requests of the kind {ascii(kind)}")
        return table

    async def _respond(self, peer: Origin, number: int, request: PeerRequest, way: LinkOutbox) -> None:
        try:
            self._mesh.answer(peer, number, await self._answer(request), way)
        except Refused as refused:
            log.info("! %s: unknown or invalid request: %s", peer.node, refused)
        except LogBroken:
            raise  # The disk has failed, whichever part found out first: the process must stop.
        except Exception:
            log.exception("! a request of %s failed; it gets no response, and the node continues", peer.node)
        finally:
            self._answering[peer] -= 1
            if not self._answering[peer]:
                del self._answering[peer]


def read_reply(peer: str, call: PeerCall[R], answer: bytes) -> R | None:
    """The reply in a response; None when it is not valid."""
    try:
        reply = call.decode_reply(answer)
        call.check(reply)
    except INVALID as error:
        log.error("! %s: invalid reply to a request of the kind %s: %s", peer, call.kind, error)
        return None
    return reply


class _Asked:
    def __init__(self, request: PeerRequest) -> None:
        self.request = request
        self.missing: dict[Origin, Collection[object]] = {}
        """Peers that have not responded, and the links with them when the request was sent."""
        self.answers: dict[str, bytes] = {}
        self.complete = trio.Event()

    def miss(self, peer: Origin) -> None:
        """Wait for this peer no longer. The task that asked continues once, when it has to wait for no other."""
        del self.missing[peer]
        if not self.missing:
            self.complete.set()
