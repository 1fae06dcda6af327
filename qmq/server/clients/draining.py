"""What happens to clients and peers between SIGTERM and the end: nothing is delivered twice because a node restarts.

No consumer of this node is given anything more, and no new subscription begins. A client that has nothing in hand and
nothing begun is sent ERROR `stopping` at once, any other as soon as that is so: its messages are settled, its
transactions ended, the frame that it was sending is whole. Until then its frames are obeyed as always, SENDs too:
work in hand often ends with one. When `drain_seconds` have passed the rest is let go, and what it has goes back.
Last, the peers get what they lack of this node: one that takes over must not deliver what was settled here.

Surprising: this looks again and again instead of being woken. What a client waits for ends in many places, all of them
busier than this one, and for a few seconds in the life of a node.
"""

import logging
from typing import Protocol

import trio

from qmq.broker.broker import Broker, stopping
from qmq.broker.consumers.outcome import Outcome
from qmq.config import LimitSettings
from qmq.dots import Origin
from qmq.environment import World
from qmq.server.clients.session import Session
from qmq.server.commit.commits import Commits

LOOK_SECONDS = 0.02
"""Between two looks at who has finished."""

HAND_OVER_SECONDS = 2.0
"""For the peers that are linked to confirm this node's last records. One that hangs must not hold up a stop."""

log = logging.getLogger("qmq.draining")


class Links(Protocol):
    """The links of a mesh (`qmq.replication.mesh.Mesh`)."""

    def is_handed_over(self, origin: Origin, last: int) -> bool: ...


class DrainDesk(Protocol):
    """What draining needs of the node."""

    broker: Broker
    commits: Commits
    limits: LimitSettings
    sessions: dict[int, Session]
    world: World

    def submit(self, out: Outcome) -> None: ...
    async def all_told(self) -> None: ...


async def drain_clients(desk: DrainDesk) -> None:
    """Let all clients finish and leave, as the opening says. Returns when the last connection is closed."""
    sessions = desk.sessions
    log.info("= draining %d connections", len(sessions))
    out = Outcome(now_us=desk.world.now_us())
    desk.broker.cease(out)
    desk.submit(out)
    for session in sessions.values():
        session.note_stop()
    with trio.move_on_after(desk.limits.drain_seconds):
        while _let_go(sessions):  # noqa: ASYNC110 (the opening says why)
            await trio.sleep(LOOK_SECONDS)
    desk.commits.wait_for_no_room()
    left = list(sessions.values())
    unfinished = sum(session.is_busy for session in left)
    if unfinished:
        log.warning("! %d clients have not finished in %g s", unfinished, desk.limits.drain_seconds)
    for session in left:
        session.end_in_order(stopping())
    for session in left:
        await session.closed.wait()
    await desk.all_told()


async def hand_over(desk: DrainDesk, links: Links) -> None:
    """Wait until the peers that are linked have what this node has recorded, `HAND_OVER_SECONDS` at most."""
    with trio.move_on_after(HAND_OVER_SECONDS):
        while not links.is_handed_over(desk.broker.origin, desk.broker.next_sequence - 1):  # noqa: ASYNC110 (likewise)
            await trio.sleep(LOOK_SECONDS)


def _let_go(sessions: dict[int, Session]) -> bool:
    """End those that have finished; returns whether others have not."""
    busy = False
    for session in list(sessions.values()):
        if session.is_busy:
            busy = True
        else:
            session.end_in_order(stopping())
    return busy
