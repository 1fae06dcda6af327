"""All messages that clients of this node have received over HTTP, and acknowledgements of them from any node.

A message stays with the client after its connection, until it is settled: see `PullSession`.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar, Final, get_args

import trio
from msgspec import Meta, Struct

from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.errors import Refused
from qmq.mesh.peers.calls import Count, Node, PeerCall, Text, Whole
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.members import Membership
from qmq.protocols.http.gateway.bodies import ACKS_MAX, Action
from qmq.protocols.http.gateway.pulls import EXPIRED, UNREACHABLE, AckRequest, AckToken
from qmq.protocols.http.listener import PULL_ACKS
from qmq.protocols.http.pull_session import PullSession
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.access import Access
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.session_host import SessionHost
from qmq.sessions.frame_loop import FrameLoops
from qmq.sessions.pull_consumer import pull_consumers
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues

SESSIONS_MAX: Final = 10_000
"""With messages in flight, or with a connection that has received some."""

REAP_SECONDS: Final = 5.0
"""Between two looks for receives that are over because their messages were taken back."""


class PullAck(Struct, frozen=True, array_like=True):
    """What is to be done with one delivery: the token as the client has sent it, and what it says; the action."""

    text: Text
    node: Node
    session: Count
    key: Text
    tag: Whole
    action: Text
    requeue: bool

    @property
    def request(self) -> AckRequest:
        """An unknown action is one of a later version: nothing is done with the delivery."""
        token = AckToken(self.node, self.session, self.key, self.tag) if self.action in get_args(Action) else None
        return AckRequest(self.text, token, self.action, self.requeue)


class PullAcksCall(PeerCall[list[Text]], frozen=True):
    """Settle or extend deliveries that a user has received over HTTP there. The reply: the result of each."""

    kind: ClassVar = PULL_ACKS
    user: Text | None
    acks: Annotated[list[PullAck], Meta(max_length=ACKS_MAX)]

    def check(self, reply: list[Text]) -> None:
        if len(reply) != len(self.acks):
            raise ValueError("not as many results as deliveries")


class Pulls:
    """All pull sessions of the node."""

    def __init__(
        self,
        engine: EngineParts,
        node: NodeBasics,
        host: SessionHost,
        loops: FrameLoops,
        access: Access,
        exclusive_queues: ExclusiveQueues,
        links: Mesh,
        rpc: PeerRpc,
        membership: Membership,
    ) -> None:
        self._engine = engine
        self._node = node
        self._host = host
        self._loops = loops
        self._access = access
        self._acts_for = exclusive_queues.acts_for
        self._rpc = rpc
        self._membership = membership
        self._pull_of = pull_consumers(engine, links)
        self._sessions: dict[int, PullSession] = {}
        self._watches = False

    async def open(self, client: ClientSession) -> PullSession:
        """A session for what the connection of `client` receives. Raises Refused."""
        if len(self._sessions) >= SESSIONS_MAX:
            raise Refused("too-many-connections", f"At most {SESSIONS_MAX} connections may receive messages.")
        engine, node, host, loops, acts_for = self._engine, self._node, self._host, self._loops, self._acts_for
        rights = self._access.rights_of(client.principal)
        opened = PullSession(engine, node, host, loops, rights, acts_for, self._pull_of, client, self._ended)
        self._sessions[opened.id] = opened
        if not self._watches:
            self._watches = True
            self._node.spawn(self._reap)
        await opened.start()
        return opened

    def _ended(self, session: PullSession) -> None:
        self._sessions.pop(session.id, None)

    async def _reap(self) -> None:
        while self._sessions:
            await trio.sleep(REAP_SECONDS)
            for session in list(self._sessions.values()):
                session.reap()
                await trio.lowlevel.checkpoint()
        self._watches = False

    async def settle(self, acks: Sequence[AckRequest], user: str | None) -> list[str]:
        """The result of each request of `user`, in order; nodes that have the deliveries are asked at the same time."""
        here = self._engine.broker.origin.node
        by_node: dict[str, list[int]] = defaultdict(list)
        for number, ack in enumerate(acks):
            if ack.token is not None:
                by_node[ack.token.node].append(number)
        results = [EXPIRED] * len(acks)

        async def ask(node: str, numbers: list[int]) -> None:
            part = [acks[number] for number in numbers]
            found = await (self._settle_here(part, user) if node == here else self._ask(node, part, user))
            for number, result in zip(numbers, found, strict=True):
                results[number] = result

        async with trio.open_nursery() as nursery:
            for node, numbers in by_node.items():
                nursery.start_soon(partial(ask, node, numbers))
        return results

    async def _settle_here(self, acks: Sequence[AckRequest], user: str | None) -> list[str]:
        by_session: dict[PullSession, list[int]] = defaultdict(list)
        for number, ack in enumerate(acks):
            token = ack.token
            session = None if token is None else self._sessions.get(token.session)
            if session is not None and token is not None and session.key == token.key and session.user == user:
                by_session[session].append(number)
        results = [EXPIRED] * len(acks)
        # One of them may end while another is waited for.
        for session, numbers in by_session.items():
            part = [(token.tag, acks[number]) for number in numbers if (token := acks[number].token) is not None]
            for number, result in zip(numbers, await session.settle(part), strict=True):
                results[number] = result
        return results

    async def _ask(self, node: str, acks: Sequence[AckRequest], user: str | None) -> list[str]:
        if node not in self._membership.peers:
            return [EXPIRED] * len(acks)
        packed = [PullAck(ack.text, *ack.token, ack.action, ack.requeue) for ack in acks if ack.token is not None]
        found = await self._rpc.ask_one(node, PullAcksCall(user, packed))
        return [UNREACHABLE] * len(acks) if found is None else found

    async def answer(self, call: PullAcksCall) -> list[str]:
        """The reply of this node."""
        return await self._settle_here([ack.request for ack in call.acks], call.user)
