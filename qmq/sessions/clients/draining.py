"""The drain, between SIGTERM and the end: a restart of a node causes no duplicate deliveries.

No consumer of this node gets further messages, and no new subscription begins. A client is sent ERROR `stopping` as
soon as it is idle. It is idle when its messages are settled, its transactions have ended, and the frame that it was
sending is complete. Until then its frames are handled as always, SENDs too: unfinished work often ends with one. After
`drain_seconds` all other clients are disconnected, and their messages are requeued.

Then the node makes sure that nothing is in flight between itself and its peers:

- Messages that peers lend until they know that no consumer is left go back to them. If they were lost with the link,
  the peers would mark them as seen.
- Consumers of peers settle what this node has lent, the records of that arrive, and the rest comes back. Otherwise it
  would be marked as seen at the next start.
- Peers get the records of this node that they are missing, because a node that takes over must not deliver what was
  settled here.

Surprising: the node polls for this and does not wait for events. The conditions end in many places, all of them hotter
than this one, and a drain lasts only seconds.
"""

import logging

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.subscriptions import stopping
from qmq.engine.parts import EngineParts
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.session import ClientSession

POLL_SECONDS = 0.02
"""Between two checks which clients have finished."""

HAND_OVER_SECONDS = 2.0
"""For the linked peers to return or settle what was lent, and to confirm this node's last records. A peer that hangs,
or a consumer there that works for long, must not delay a stop."""

log = logging.getLogger("qmq.draining")


async def drain_clients(engine: EngineParts, sessions: dict[int, ClientSession], seconds: float) -> None:
    """Let all clients finish and leave, for so many seconds, see above. Returns when the last connection is closed."""
    log.info("= draining %d connections", len(sessions))
    out = Outcome(now_us=engine.environment.now_us())
    engine.broker.subscriptions.cease(out)
    engine.path.submit(out)
    for session in sessions.values():
        session.note_stop()
    with trio.move_on_after(seconds):
        while _let_go(sessions):  # noqa: ASYNC110 (the opening says why)
            await trio.sleep(POLL_SECONDS)
    engine.commits.stop_waiting_for_space()
    left = list(sessions.values())
    unfinished = sum(session.is_busy for session in left)
    if unfinished:
        log.warning("! %d clients have not finished in %g s", unfinished, seconds)
    for session in left:
        session.end_in_order(stopping())
    for session in left:
        await session.closed.wait()
    await engine.path.flushed()


async def hand_over(broker: Broker, links: Mesh) -> None:
    """Lend nothing more, and wait until nothing is in flight between this node and the linked peers, and they have what
    it has recorded; at most `HAND_OVER_SECONDS`.
    """
    lending, borrowing = broker.lending, broker.borrowing
    lending.cease()

    def is_done() -> bool:
        is_idle = not lending.is_lending and not borrowing.is_withdrawing
        is_handed_over = is_idle and links.is_handed_over(broker.origin, broker.next_sequence - 1)
        return is_handed_over and not broker.queues.paging.pending_deletes.awaits_records()

    with trio.move_on_after(HAND_OVER_SECONDS):
        while borrowing.is_withdrawing:  # noqa: ASYNC110 (the opening says why)
            await trio.sleep(POLL_SECONDS)
        links.offer(borrowing.confirm_returns())
        while not is_done():  # noqa: ASYNC110 (likewise)
            await trio.sleep(POLL_SECONDS)


def _let_go(sessions: dict[int, ClientSession]) -> bool:
    """End the sessions that have finished; returns whether others have not."""
    busy = False
    for session in list(sessions.values()):
        if session.is_busy:
            busy = True
        else:
            session.end_in_order(stopping())
    return busy
