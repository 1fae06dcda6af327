"""Fanout subscriptions: reading the past, then following live, as one stream without a skip or a repeat.

A subscription begins by reading its fanout's log in the background, at the pace of its client. When it has read up to
the journal position that has been told, it joins the live followers in that same breath. A live follower whose client
falls behind its buffer is sent back to reading, from the journal position where the present group of commits begins:
so a slow fanout subscriber costs disk reads, not memory, and no one else notices.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import trio

from qmq.broker.message import Message
from qmq.broker.subscription import Subscription
from qmq.dots import Origin, Vector
from qmq.errors import Refused
from qmq.gateways.encode import encode_run, tail_for
from qmq.server.session import Session
from qmq.storage.fanout_reader import FanoutPosition
from qmq.storage.record import Record
from qmq.storage.store import Store
from qmq.world import World

READ_BYTES = 256 << 10

READS_AT_ONCE = 4
"""Worker threads that all readers together may have: those that are left must never keep a commit waiting."""

log = logging.getLogger("qmq.followers")


class FollowerDesk(Protocol):
    """What following needs of the node."""

    origin: Origin
    store: Store
    world: World
    sessions: dict[int, Session]

    def told_end(self) -> int:
        """Journal position up to which everything is told."""

    async def journal_grew(self, position: int) -> None:
        """Wait until something beyond `position` is told."""

    async def all_told(self) -> None:
        """Wait until everything that is decided now is told."""

    def message_of(self, origin: Origin, record: Record) -> Message | None:
        """A fanout record as a message."""

    def spawn(self, task: Callable[[], object]) -> None:
        """Run a task in the node."""


class Followers:
    """Who follows which fanout live, and who is still reading."""

    def __init__(self, desk: FollowerDesk, buffer_bytes: int) -> None:
        self._desk = desk
        self._buffer_bytes = buffer_bytes
        self._live: dict[str, dict[Subscription, None]] = {}
        self._told_group: dict[Subscription, int] = {}
        # What a resuming client has seen elsewhere and this node may yet receive: it must not be told again.
        self._ahead: dict[Subscription, Vector] = {}
        self._reads = trio.CapacityLimiter(READS_AT_ONCE)
        self.touched: dict[Session, None] = {}
        self.reading = 0

    @property
    def live(self) -> int:
        """How many subscriptions follow live."""
        return sum(map(len, self._live.values()))

    def join(self, subscription: Subscription) -> None:
        """Begin at `subscription.start`."""
        if subscription.closed:
            return
        if isinstance(subscription.start, dict):
            self._ahead[subscription] = dict(subscription.start)
        if subscription.start == "next":
            # What was sent before it may still be on its way to the disk.
            self._ahead[subscription] = {self._desk.origin: subscription.since}
            self._desk.spawn(partial(self._forget_since, subscription))
            self._go_live(subscription)
        else:
            self._read_from(subscription, None)

    async def _forget_since(self, subscription: Subscription) -> None:
        """Everything decided before the subscription is told: from now on it shares its encoding with the others."""
        await self._desk.all_told()
        self._ahead.pop(subscription, None)

    def forget(self, ended: list[Subscription]) -> None:
        """These have ended: nobody may ever send to their fanouts, so nothing else would find out."""
        for subscription in ended:
            self._leave(subscription)
            self._ahead.pop(subscription, None)

    def _go_live(self, subscription: Subscription) -> None:
        self._live.setdefault(subscription.destination, {})[subscription] = None

    def tell(self, destination: str, messages: list[Message], begin: int) -> None:
        """Tell live followers; `begin` is where the group of commits that these belong to starts in the journal."""
        followers = self._live.get(destination)
        if not followers:
            return
        encoded: dict[tuple[bytes, int], bytes] = {}
        for subscription in list(followers):
            session = self._desk.sessions.get(subscription.session)
            if session is None or subscription.closed or session.finishing:
                self._leave(subscription)
                self._ahead.pop(subscription, None)
                continue
            outbox = session.outbox
            if outbox.size > self._buffer_bytes and self._told_group.get(subscription) != begin:
                # Nothing of this group has been told to it, so `begin` is exactly where it stands.
                self._leave(subscription)
                self._read_from(subscription, begin)
                continue
            self._told_group[subscription] = begin
            self.touched[session] = None
            if subscription in self._ahead:
                tails = [
                    tail_for(message, session.version)
                    for message in messages
                    if self._is_news(subscription, message.origin, message.sequence)
                ]
                if tails:
                    outbox.put(encode_run(subscription.prefix, tails))
                continue
            key = (subscription.prefix, session.version)
            data = encoded.get(key)
            if data is None:
                tails = [tail_for(message, session.version) for message in messages]
                data = encoded[key] = encode_run(subscription.prefix, tails)
            outbox.put(data)

    def _is_news(self, subscription: Subscription, origin: Origin, sequence: int) -> bool:
        """Whether a resuming client has not seen this. Forgets the origins that have got beyond what it had seen."""
        ahead = self._ahead.get(subscription)
        if ahead is None:
            return True
        if sequence <= ahead.get(origin, 0):
            return False
        ahead.pop(origin, None)
        if not ahead:
            del self._ahead[subscription]
        return True

    def _forget_reached(self, subscription: Subscription, have: Vector) -> None:
        """All of `have` has been read past: only what lies beyond it may still come live."""
        left = {o: last for o, last in self._ahead.pop(subscription, {}).items() if last > have.get(o, 0)}
        if left:
            self._ahead[subscription] = left

    def _leave(self, subscription: Subscription) -> None:
        self._told_group.pop(subscription, None)
        followers = self._live.get(subscription.destination, {})
        followers.pop(subscription, None)
        if not followers:
            self._live.pop(subscription.destination, None)

    def _read_from(self, subscription: Subscription, begin: int | None) -> None:
        self._desk.spawn(partial(self._read, subscription, begin))

    async def _read(self, subscription: Subscription, begin: int | None) -> None:
        """Read until the subscription has caught up or ended. Never raises Exception: its client pays for it."""
        self.reading += 1
        try:
            await self._read_on(subscription, begin)
        except Exception:
            log.exception("! the log of %s cannot be read", subscription.destination)
            session = self._desk.sessions.get(subscription.session)
            if session is not None and session.owns(subscription):
                session.evict(Refused("log-unreadable", "The log of the fanout cannot be read now; try again later."))
        finally:
            self.reading -= 1

    async def _read_on(self, subscription: Subscription, begin: int | None) -> None:
        desk = self._desk
        store, name = desk.store, subscription.destination
        async with self._reads:
            position = await desk.world.run_blocking(partial(_start, store, subscription, begin))
        while True:
            async with self._reads:
                have = store.journal.vector()
                rows, position, at_end = await desk.world.run_blocking(
                    partial(store.read_fanout, name, position, READ_BYTES)
                )
            session = desk.sessions.get(subscription.session)
            if session is None or not session.owns(subscription):
                self._ahead.pop(subscription, None)
                return
            self._tell_rows(subscription, session, rows)
            if at_end and position.journal_position == desk.told_end():
                self._forget_reached(subscription, have)
                self._go_live(subscription)
                return
            await session.outbox.drained()
            if at_end:
                # What was read may be appended and not told yet, in the commit that is under way.
                await desk.journal_grew(position.journal_position - 1)

    def _tell_rows(self, subscription: Subscription, session: Session, rows: list[tuple[Origin, Record]]) -> None:
        tails: list[bytes] = []
        for origin, record in rows:
            if not self._is_news(subscription, origin, record.sequence):
                continue
            message = self._desk.message_of(origin, record)
            if message is not None:
                tails.append(tail_for(message, session.version))
        if tails and session.owns(subscription):
            session.outbox.put(encode_run(subscription.prefix, tails))
            session.outbox.flush()


def _start(store: Store, subscription: Subscription, begin: int | None) -> FanoutPosition:
    if begin is not None:
        return store.fanout_at(subscription.destination, begin)
    if isinstance(subscription.start, dict):
        return store.fanout_after(subscription.destination, subscription.start)
    return store.fanout_start(subscription.destination)
