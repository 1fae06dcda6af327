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

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.subscriptions import stopping
from qmq.config import LimitSettings
from qmq.server.clients.session import ClientSession
from qmq.server.commit.commits import Commits
from qmq.server.runtime.contexts import Committing, Engine, Links

POLL_SECONDS = 0.02
"""Between two looks at who has finished."""

HAND_OVER_SECONDS = 2.0
"""For the peers that are linked to confirm this node's last records. One that hangs must not hold up a stop."""

log = logging.getLogger("qmq.draining")


class DrainContext(Engine, Committing, Protocol):
    """What draining needs of the node."""

    commits: Commits
    limits: LimitSettings
    sessions: dict[int, ClientSession]


async def drain_clients(context: DrainContext) -> None:
    """Let all clients finish and leave, as the opening says. Returns when the last connection is closed."""
    sessions = context.sessions
    log.info("= draining %d connections", len(sessions))
    out = Outcome(now_us=context.environment.now_us())
    context.broker.subscriptions.cease(out)
    context.submit(out)
    for session in sessions.values():
        session.note_stop()
    with trio.move_on_after(context.limits.drain_seconds):
        while _let_go(sessions):  # noqa: ASYNC110 (the opening says why)
            await trio.sleep(POLL_SECONDS)
    context.commits.stop_waiting_for_space()
    left = list(sessions.values())
    unfinished = sum(session.is_busy for session in left)
    if unfinished:
        log.warning("! %d clients have not finished in %g s", unfinished, context.limits.drain_seconds)
    for session in left:
        session.end_in_order(stopping())
    for session in left:
        await session.closed.wait()
    await context.flushed()


async def hand_over(context: DrainContext, links: Links) -> None:
    """Wait until the peers that are linked have what this node has recorded, `HAND_OVER_SECONDS` at most."""
    with trio.move_on_after(HAND_OVER_SECONDS):
        while not links.is_handed_over(context.broker.origin, context.broker.next_sequence - 1):  # noqa: ASYNC110 (likewise)
            await trio.sleep(POLL_SECONDS)


def _let_go(sessions: dict[int, ClientSession]) -> bool:
    """End those that have finished; returns whether others have not."""
    busy = False
    for session in list(sessions.values()):
        if session.is_busy:
            busy = True
        else:
            session.end_in_order(stopping())
    return busy
