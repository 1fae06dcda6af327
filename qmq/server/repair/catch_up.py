"""Catch-up: a node that missed records no longer in its peers' journals asks for snapshots, and checks its own
messages.

A node that was away for too long has two problems. It is missing records. It requests snapshots of them range by range,
at its own pace, from the peer that reported the gap (`replication.anti_entropy.gaps` says which peer, and when a gap is
final). It also missed settles, so its messages may be settled long ago. Until a peer was asked about every message in
its queue store, it delivers nothing of its queues. Messages that the peer knows as settled are settled here by a record
of its own. The cursors of durable subscriptions are fetched, too.

The same node answers these requests of its peers, from its stores, one at a time. Requests and responses are bounded
and self-contained, so a link that ends costs one request.
"""

import logging
from collections.abc import Callable, Collection
from functools import partial
from math import inf
from typing import Final, Protocol

import msgpack
import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.cursors import Move, Name
from qmq.dots import Dot, Origin
from qmq.errors import CorruptLog, MeshError, Refused
from qmq.replication.anti_entropy.gaps import GiveUp, WantedRange
from qmq.replication.protocol.values import (
    array,
    check_dots,
    check_move,
    name_of,
    number,
    octets,
    origin_of,
    pack_dot_groups,
)
from qmq.server.runtime.contexts import Alarming, Committing, Engine, Links, MeshPeers, Repairing
from qmq.server.runtime.disk_space import when_space_is_free
from qmq.storage.catalog.facts import UNCHECKED
from qmq.storage.format.cursor_record import pack_move, unpack_move
from qmq.storage.format.failure_records import ATTEMPTS_MAX, pack_attempts, unpack_attempts
from qmq.storage.format.interfaces import MissingRange
from qmq.storage.format.lost_record import LostRange
from qmq.storage.format.record import unpack
from qmq.storage.repair.range_snapshot import RangeSnapshot, nothing_left

MARK: Final = b"\x00"
"""Before a request of this kind; those of `control` are JSON."""

RETRY_SECONDS: Final = 1.0
"""Until a peer that gave no response is asked again."""

GAP_SECONDS: Final = 12.0
"""A gap of which no reachable peer sends a part holds the queues for so long; a peer that is silent is asked twice."""

DOTS_AT_ONCE: Final = 2000
"""Messages that one request names."""

ELEMENTS_MAX: Final = 1_000_000
"""In a request or a response."""

PICTURES_BYTES: Final = 256 * 1024
"""Of durable subscriptions in one response, approximately."""

log = logging.getLogger("qmq.catch_up")


def is_about_repairs(request: bytes) -> bool:
    """Whether a request of a peer is for `CatchUp.answer`."""
    return request.startswith(MARK)


def request_about(origins: list[Origin]) -> bytes:
    """Ask a peer what it knows of dead incarnations; see `qmq.server.repair.incarnation_gc`."""
    request = ["seals", [value for origin in origins for value in origin]]
    return MARK + msgpack.packb(request)  # type: ignore[no-any-return]


class CatchUpContext(Engine, Committing, Alarming, MeshPeers, Repairing, Protocol):
    """What catching up needs of the node."""

    def hold_back(self) -> None:
        """Deliver nothing of the queues until `repaired`."""

    def repaired(self) -> None: ...

    @property
    def is_missing_rows(self) -> bool:
        """Whether the queue store still waits for messages of peers (`queue_store_repair`)."""

    def rows_searched_for(self) -> Collection[MissingRange]: ...

    def about_dead(self, origins: list[Origin]) -> bytes: ...


class CatchUp:
    """See the module's opening. `links` is None on a node without peers."""

    def __init__(self, context: CatchUpContext) -> None:
        self.links: Links | None = None
        self.taken = 0
        """Records taken from snapshots, since the start."""
        self.settled = 0
        """Messages of this node's stores that were found to be settled, since the start."""
        self._context = context
        self._wake = trio.Event()
        # Peers to ask about the messages of this node, since one of them had dropped what it was missing.
        self._unchecked: dict[str, None] = {}
        # Whether one of them has responded: then a peer that is down is not waited for.
        self._has_answer = False
        self._is_marked = UNCHECKED in context.store.catalog.facts()
        # Open gaps: the time since which nothing of them has come.
        self._waiting: dict[Origin, float] = {}
        self._answering = trio.Lock()

    @property
    def is_stale(self) -> bool:
        """Messages in the queue store may be settled: none of them may be delivered."""
        return self._is_marked

    def schedule(self) -> None:
        """A peer has reported a gap, or links have changed."""
        self._wake.set()

    # Requests

    async def run(self) -> None:
        """Repair each gap; until cancelled."""
        while True:
            self._wake = trio.Event()
            links = self.links
            if self._is_marked and not self._context.member_names and not self._context.is_missing_rows:
                # No member can know more than this node.
                await self._end()
            if links is not None and await self._step(links):
                continue
            waits = links is not None and (links.gaps or self.is_stale)
            with trio.move_on_after(RETRY_SECONDS if waits else inf):
                await self._wake.wait()

    async def _step(self, links: Links) -> bool:
        """Do the next step; False when there is nothing to do now."""
        context = self._context
        await context.commit_slot()
        todo = links.next_repair()
        self._note_gaps(links)
        if isinstance(todo, GiveUp):
            context.accept_gap(todo.origin, todo.through)
            return True
        if todo is not None and await self._fetch(links, todo):
            self._waiting.pop(todo.origin, None)
            return True
        if self._is_marked and not self._waits_for_gaps(links) and not context.is_missing_rows:
            if not self._unchecked:
                # An earlier incarnation was interrupted, or no peer responded: each reachable peer is asked.
                self._unchecked.update(dict.fromkeys(links.reachable()))
                if not self._unchecked:
                    return False
            peer = next(iter(self._unchecked))
            if await self._check(peer):
                self._has_answer = True
            elif peer in links.reachable() and not self._has_answer:
                # The others may be faster.
                self._unchecked[peer] = self._unchecked.pop(peer)
                return False
            # A peer that left or does not respond need not be asked, as long as another one was.
            del self._unchecked[peer]
            if self._unchecked:
                return True
            if self._has_answer:
                await self._end()
                return True
        return False

    def _waits_for_gaps(self, links: Links) -> bool:
        """Whether what is missing may come soon.

        What a damaged peer cannot account for is unknown until every member has answered, and one of them may be away
        for good. The queues go on without it. When a part of it comes, the messages of this node are checked again.
        """
        self._note_gaps(links)
        return not all(map(self._is_overdue, self._waiting))

    def _note_gaps(self, links: Links) -> None:
        now = trio.current_time()
        self._waiting = {origin: self._waiting.get(origin, now) for origin in links.gaps}

    def _is_overdue(self, origin: Origin) -> bool:
        return trio.current_time() - self._waiting.get(origin, inf) >= GAP_SECONDS

    async def _end(self) -> None:
        """All reachable peers were asked: from here on this node knows what its queues hold, also after a crash."""
        context = self._context
        log.info("= compared held messages with peers: %d were settled already", self.settled)
        self._has_answer = False
        await context.flushed()
        await context.environment.run_blocking(context.store.journal.sync)
        await when_space_is_free(context.environment, partial(context.store.catalog.set_facts, {UNCHECKED: None}))
        self._is_marked = False
        context.repaired()

    async def _fetch(self, links: Links, wanted: WantedRange) -> bool:
        """Request the next part of a gap; False when nothing of it comes."""
        context = self._context
        if not self._is_overdue(wanted.origin):
            await self._hold_back(links, wanted)
        snapshot = await ask_snapshot(context, wanted)
        if snapshot is None or (snapshot.through <= wanted.after and not snapshot.lost):
            links.postpone(wanted)
            return False
        await self._hold_back(links, wanted)
        if snapshot.lost:
            links.knows_nothing(wanted, snapshot.lost)
            return True
        await context.commit_slot()
        out = Outcome(now_us=context.environment.now_us())
        try:
            links.take_snapshot(wanted, snapshot, out)
            if wanted.after < snapshot.dropped <= snapshot.through == context.received_vector().get(wanted.origin, 0):
                # Retention of the fanouts was faster than this node, or no node has it: subscribers are notified.
                context.note_lost(LostRange(wanted.origin, wanted.after + 1, snapshot.dropped), out)
        except MeshError as error:
            log.error(
                "! the snapshot that %s sent of %s cannot be applied: %s", wanted.peer, wanted.origin, error.message
            )
            links.knows_nothing(wanted, wanted.through)
        finally:
            context.submit(out)
        if snapshot.attempts:
            await self._take_attempts(wanted.origin, snapshot)
        self.taken += len(snapshot.records)
        return True

    async def _hold_back(self, links: Links, wanted: WantedRange) -> None:
        """Deliver nothing of the queues until peers were asked about all messages of this node."""
        context = self._context
        if wanted.peer not in self._unchecked:
            log.info("= %s no longer has the missing records of %s after %d", wanted.peer, wanted.origin, wanted.after)
            # All of them: the peer with the snapshot may itself hold messages that another peer knows as settled.
            self._unchecked.update(dict.fromkeys([wanted.peer, *links.reachable()]))
            self._has_answer = False
        context.hold_back()
        if not self._is_marked:
            # At once: parts that decide meanwhile whether to deliver find it stale.
            self._is_marked = True
            # Before the first record: after the vector has passed over settles, nothing else would inform the next
            # incarnation.
            await when_space_is_free(context.environment, partial(context.store.catalog.set_facts, {UNCHECKED: ""}))

    async def _take_attempts(self, origin: Origin, snapshot: RangeSnapshot) -> None:
        """Record the failure counts of these messages here, too. The record has no meaning if it precedes the messages
        in the journal, so they are waited for: own records come first in a group.
        """
        await self._context.flushed()
        await self._context.commit_slot()
        self._note_attempts([(queue, Dot(origin, sequence), count) for queue, sequence, count in snapshot.attempts])

    def _note_attempts(self, failed: list[tuple[str, Dot, int]]) -> None:
        if failed:
            out = Outcome(now_us=self._context.environment.now_us())
            for queue, dot, count in failed:
                out.attempts.setdefault(queue, {})[dot] = count
            self._context.broker.queues.redelivery.failed_before({dot: count for _, dot, count in failed})
            self._context.submit(out)

    async def _check(self, peer: str) -> bool:
        """Ask `peer` about everything in the queue store, and for the durable subscriptions; False: ask again."""
        context = self._context
        await context.bring_up_stores()
        after: Dot | None = None
        while True:
            page = await context.environment.run_blocking(partial(context.store.in_doubt, after, DOTS_AT_ONCE))
            if not page:
                break
            after = page[-1][1]
            known = await ask_settled(context, peer, [dot for _, dot, _ in page])
            if known is None:
                return False
            done, failed = known
            await context.commit_slot()
            self._settle([(queue, dot) for queue, dot, _ in page if dot in done])
            self._note_attempts([(queue, dot, failed[dot]) for queue, dot, n in page if failed.get(dot, 0) > n])
        return await self._fetch_pictures(peer)

    def _settle(self, done: list[tuple[str, Dot]]) -> None:
        """These were settled while this node was away: settle them here, too, by a record that survives a crash."""
        context = self._context
        have = context.received_vector()
        out = Outcome(now_us=context.environment.now_us())
        for queue, dot in done:
            context.broker.queues.settlement.settled_elsewhere(queue, dot, have.get(dot.origin, 0), None)
            out.settles.setdefault(queue, []).append(dot)
        self.settled += len(done)
        context.submit(out)

    async def _fetch_pictures(self, peer: str) -> bool:
        context = self._context
        after: tuple[str, str, str] | None = None
        while True:
            request = ["durables", after]
            fields = _fields(await context.ask_one(peer, MARK + msgpack.packb(request)), 1)
            if fields is None:
                return False
            try:
                moves = [
                    unpack_move(str(one[0]), octets(one[1])) for one in (array(pair, 2) for pair in array(fields[0]))
                ]
                for move in moves:
                    check_move(move)
            except (MeshError, CorruptLog, TypeError):
                return False
            if not moves:
                return True
            await context.commit_slot()
            out = Outcome(now_us=context.environment.now_us())
            for move in moves:
                if move.name > Name(*(after or ("", "", ""))):
                    after = (move.name.destination, move.name.client, move.name.name)
                context.broker.durable_subscriptions.accept(move)
                out.moves.append(move)
            context.submit(out)

    # Responses

    async def answer(self, request: bytes) -> bytes:
        """The response of this node to a request of a peer. Raises Refused for an invalid request."""
        context = self._context
        try:
            fields = array(unpack(request[len(MARK) :], ELEMENTS_MAX), 1)
            what = fields[0]
            if what == "rest":
                origin = origin_of(fields[1], fields[2])
                fanout = str(fields[5]) if len(fields) > 5 else ""
                row = number(fields[6]) if len(fields) > 6 else None
                async with self._answering:
                    try:
                        return await self._answer_snapshot(origin, number(fields[3]), number(fields[4]), fanout, row)
                    except CorruptLog:
                        if fanout or row is not None:
                            raise
                        # Unknown until the damage is repaired. Without a response the peer could repair nothing else.
                        return _nothing_new(number(fields[3]))
            if what == "settled":
                dots = check_dots(fields[1])
                async with self._answering:
                    return await self._answer_settled(dots)
            if what == "seals":
                values = array(fields[1])
                return context.about_dead(
                    [origin_of(values[at], values[at + 1]) for at in range(0, len(values) - 1, 2)]
                )
            if what == "durables":
                after = None if fields[1] is None else Name(*map(str, array(fields[1], 3)[:3]))
                return msgpack.packb([_pictures(context.broker, after)])  # type: ignore[no-any-return]
        except (ValueError, IndexError, MeshError, msgpack.UnpackException) as error:
            raise Refused("bad-destination", f"an invalid repair request: {error}") from error
        except CorruptLog as error:
            raise Refused("log-unreadable", str(error)) from error
        finally:
            context.check_damage()
        raise Refused("bad-destination", "this node does not know this repair request")

    async def _answer_snapshot(self, origin: Origin, after: int, through: int, fanout: str, row: int | None) -> bytes:
        context = self._context
        if origin in context.broker.forgotten:
            return msgpack.packb(list(nothing_left(through)))  # type: ignore[no-any-return]
        durable_subscriptions = context.broker.durable_subscriptions
        given_up = durable_subscriptions.given_up.get(origin, 0)
        # The repair of a log needs only its messages, and has notified its readers itself.
        gone = [] if fanout else durable_subscriptions.gone.up_to(origin, through)
        searched_for = None if row is None else context.rows_searched_for()
        if row == 0 and not await context.bring_up_stores():
            # A whole file is missing there, with the record of what is settled: nothing settled may come back from
            # here.
            return _nothing_new(after)
        read: Callable[[], RangeSnapshot] = partial(
            context.store.read_snapshot, origin, after, through, given_up, fanout, gone, searched_for
        )
        snapshot = await context.environment.run_blocking(read)
        if snapshot.through <= after and not snapshot.lost:
            await context.bring_up_stores()
            snapshot = await context.environment.run_blocking(read)
        if (
            row
            and row == through == after + 1
            and (snapshot.lost or snapshot.through <= after)
            and not snapshot.records
        ):
            packed = await context.environment.run_blocking(partial(context.store.read_quarantined, Dot(origin, row)))
            snapshot = snapshot if packed is None else RangeSnapshot(row, 0, 0, [packed])
        return msgpack.packb(list(snapshot))  # type: ignore[no-any-return]

    async def _answer_settled(self, dots: list[Dot]) -> bytes:
        context = self._context
        # Also while this node has to ask others itself: what it knows as settled is settled.
        await context.bring_up_stores()
        given_up = dict(context.broker.durable_subscriptions.given_up)
        forgotten = frozenset(context.broker.forgotten)
        known = await context.environment.run_blocking(partial(context.store.known_of, dots, given_up, forgotten))
        return msgpack.packb([pack_dot_groups(known.done), pack_attempts(known.failed.items())])  # type: ignore[no-any-return]


def _nothing_new(after: int) -> bytes:
    """The response of a node that does not know yet what it still holds."""
    return msgpack.packb([after, 0, 0, [], []])  # type: ignore[no-any-return]


async def ask_snapshot(
    context: MeshPeers, wanted: WantedRange, fanout: str = "", row: int | None = None
) -> RangeSnapshot | None:
    """A snapshot of a missing range from a peer's stores; with `fanout` of that fanout at least. None: no response.

    `row`: the queue store is missing it, so a peer that is missing the same has nothing either. It is the only message
    of the range, or 0: a file was lost.
    """
    request = ["rest", *wanted.origin, wanted.after, wanted.through, fanout, *(() if row is None else (row,))]
    fields = _fields(await context.ask_one(wanted.peer, MARK + msgpack.packb(request)), 5)
    if fields is None:
        return None
    try:
        records = [octets(packed) for packed in array(fields[3])]
        attempts = [_attempt(values, wanted) for values in array(fields[4])]
        return RangeSnapshot(
            number(fields[0], 0, wanted.through), number(fields[1]), number(fields[2]), records, attempts
        )
    except MeshError as error:
        log.error("! %s: invalid snapshot of %s: %s", wanted.peer, wanted.origin, error.message)
        return None


async def ask_settled(context: MeshPeers, peer: str, dots: list[Dot]) -> tuple[set[Dot], dict[Dot, int]] | None:
    """Which of these, at most DOTS_AT_ONCE, a peer knows as settled, and how often others have failed. None: no
    response."""
    fields = _fields(await context.ask_one(peer, MARK + msgpack.packb(["settled", pack_dot_groups(dots)])), 2)
    if fields is None:
        return None
    try:
        return set(check_dots(fields[0])), unpack_attempts(octets(fields[1]))
    except (MeshError, CorruptLog):
        return None


def _attempt(values: object, wanted: WantedRange) -> tuple[str, int, int]:
    queue, sequence, count = array(values, 3)[:3]
    return (
        name_of(queue, DestinationKind.QUEUE),
        number(sequence, wanted.after + 1, wanted.through),
        number(count, 1, ATTEMPTS_MAX),
    )


def _fields(answer: bytes | None, least: int) -> list[object] | None:
    if answer is None:
        return None
    try:
        return array(unpack(answer, ELEMENTS_MAX), least)
    except (ValueError, MeshError, msgpack.UnpackException):
        return None


def _pictures(broker: Broker, after: Name | None) -> list[tuple[str, bytes]]:
    """Durable subscriptions whose name comes after `after`, by name."""
    found: list[tuple[str, bytes]] = []
    size = 0
    cursors = broker.durable_subscriptions.by_name
    for name in sorted(name for name in cursors if after is None or name > after):
        cursor = cursors[name]
        move = cursor.picture() if cursor.created_us else Move(name, 0, cursor.deleted_us)
        found.append((name.destination, pack_move(move)))
        size += len(found[-1][1])
        if size > PICTURES_BYTES:
            break
    return found
