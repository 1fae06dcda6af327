"""A node that missed what has left the journals of its peers: it asks for what is left, and checks what it held itself.

Two things are wrong with a node that was away for too long. It lacks records; what is left of them is asked for part by
part, at its own pace, of the peer that told the gap (`replication.journal.gaps` says whom, and when a gap is final).
And it missed settles, so what it holds may be done long ago: until a peer was asked about every message in its queue
store, nothing of its queues is handed out, and what the peer knows to be done is settled here by a record of its own.
The places of durable subscriptions come along.

The same node answers these questions of its peers, from its stores, one at a time. A question and its answer are
bounded and carry all they need, so a link that ends costs one question.
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
from qmq.broker.messages.destination import Kind
from qmq.cursors import Move, Name
from qmq.dots import Dot, Origin, Vector
from qmq.environment import World
from qmq.errors import CorruptLog, MeshError, Refused
from qmq.replication.journal.gaps import GiveUp, Want
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
from qmq.server.runtime.disk_space import when_there_is_room
from qmq.storage.catalog.facts import UNCHECKED
from qmq.storage.format.cursor_record import pack_move, unpack_move
from qmq.storage.format.failure_records import ATTEMPTS_MAX, pack_attempts, unpack_attempts
from qmq.storage.format.interfaces import Lack
from qmq.storage.format.lost_record import Stretch
from qmq.storage.format.record import unpack
from qmq.storage.repair.range_snapshot import Rest, nothing_left
from qmq.storage.store import Store

MARK: Final = b"\x00"
"""Before a question of this kind; those of `control` are JSON."""

RETRY_SECONDS: Final = 1.0
"""Until a peer that gave no answer is asked again."""

DOTS_AT_ONCE: Final = 2000
"""Messages that one question asks about."""

ELEMENTS_MAX: Final = 1_000_000
"""In a question or an answer."""

PICTURES_BYTES: Final = 256 * 1024
"""Of durable subscriptions in one answer, about."""

log = logging.getLogger("qmq.repairs")


def is_about_repairs(question: bytes) -> bool:
    """Whether a question of a peer is for `Repairs.answer`."""
    return question.startswith(MARK)


def question_about(origins: list[Origin]) -> bytes:
    """Asks a peer what it knows of dead incarnations; see `qmq.server.repair.incarnation_gc`."""
    question = ["seals", [value for origin in origins for value in origin]]
    return MARK + msgpack.packb(question)  # type: ignore[no-any-return]


class Links(Protocol):
    """What links know of it; see `qmq.replication.mesh.Mesh`."""

    def next_repair(self) -> Want | GiveUp | None: ...
    def take_rest(self, want: Want, rest: Rest, out: Outcome) -> None: ...
    def knows_nothing(self, want: Want, through: int) -> None: ...
    def reachable(self) -> list[str]: ...
    @property
    def has_gaps(self) -> bool: ...


class RepairDesk(Protocol):
    """What repairs need of the node."""

    broker: Broker
    store: Store
    world: World

    def submit(self, out: Outcome) -> None: ...
    async def all_told(self) -> None: ...
    async def commit_slot(self) -> None: ...
    def received_vector(self) -> Vector: ...
    def accept_gap(self, origin: Origin, through: int) -> None: ...
    def note_gone(self, stretch: Stretch, out: Outcome) -> None: ...
    async def ask_one(self, peer: str, question: bytes) -> bytes | None: ...
    async def bring_up_stores(self) -> bool:
        """Up to everything that is durable here; False: there is no room for it."""

    @property
    def member_names(self) -> Collection[str]: ...
    def hold_back(self) -> None:
        """Hand out nothing of the queues until `repaired`."""

    @property
    def lacks_rows(self) -> bool:
        """Whether the queue store is still to be filled by peers (`row_repairs`)."""

    def rows_searched_for(self) -> Collection[Lack]: ...

    def look_at_damage(self) -> None: ...
    def repaired(self) -> None: ...
    def about_dead(self, origins: list[Origin]) -> bytes: ...


class Repairs:
    """See the module's opening. `links` is None on a node without peers."""

    def __init__(self, desk: RepairDesk) -> None:
        self.links: Links | None = None
        self.taken = 0
        """Records that came as what was left, since the start."""
        self.settled = 0
        """Messages of this node's stores that turned out to be done, since the start."""
        self._desk = desk
        self._stirred = trio.Event()
        # Peers to ask about what this node holds, since one of them had dropped what it lacked.
        self._unchecked: dict[str, None] = {}
        # Whether one of them has answered: who is gone is not waited for then.
        self._has_answer = False
        self._is_marked = UNCHECKED in desk.store.catalog.facts()
        self._answering = trio.Lock()

    @property
    def is_stale(self) -> bool:
        """What the queue store holds may be done: nothing of it is to be handed out."""
        return self._is_marked

    def soon(self) -> None:
        """A peer has told a gap, or links have changed."""
        self._stirred.set()

    # Asking

    async def run(self) -> None:
        """Repair whatever turns up; for ever."""
        while True:
            self._stirred = trio.Event()
            links = self.links
            if self._is_marked and not self._desk.member_names and not self._desk.lacks_rows:
                # No member can say more than this node knows.
                await self._end()
            if links is not None and await self._step(links):
                continue
            waits = links is not None and (links.has_gaps or self.is_stale)
            with trio.move_on_after(RETRY_SECONDS if waits else inf):
                await self._stirred.wait()

    async def _step(self, links: Links) -> bool:
        """Do the next thing; False when there is nothing to do now."""
        desk = self._desk
        await desk.commit_slot()
        todo = links.next_repair()
        if isinstance(todo, GiveUp):
            desk.accept_gap(todo.origin, todo.through)
            return True
        if todo is not None:
            return await self._fetch(links, todo)
        if self._is_marked and not links.has_gaps and not desk.lacks_rows:
            if not self._unchecked:
                # An earlier life was cut off in the midst of it, or nobody answered: whoever can be reached is asked.
                self._unchecked.update(dict.fromkeys(links.reachable()))
                if not self._unchecked:
                    return False
            peer = next(iter(self._unchecked))
            if await self._check(peer):
                self._has_answer = True
            elif peer in links.reachable() and not self._has_answer:
                # The others may be quicker.
                self._unchecked[peer] = self._unchecked.pop(peer)
                return False
            # Who has gone, or does not answer, may never: it need not be asked, as long as another one was.
            del self._unchecked[peer]
            if self._unchecked:
                return True
            if self._has_answer:
                await self._end()
                return True
        return False

    async def _end(self) -> None:
        """Who could be reached was asked: from here on this node knows what its queues hold, also after a crash."""
        desk = self._desk
        log.info("= checked what this node held: %d messages were done already", self.settled)
        self._has_answer = False
        await desk.all_told()
        await desk.world.run_blocking(desk.store.journal.sync)
        await when_there_is_room(desk.world, partial(desk.store.catalog.set_facts, {UNCHECKED: None}))
        self._is_marked = False
        desk.repaired()

    async def _fetch(self, links: Links, want: Want) -> bool:
        desk = self._desk
        if want.peer not in self._unchecked:
            log.info("= %s has dropped what is missing of %s after %d", want.peer, want.origin, want.after)
            # All of them: the one that is asked for the rest may itself hold what another knows to be done.
            self._unchecked.update(dict.fromkeys([want.peer, *links.reachable()]))
            self._has_answer = False
        desk.hold_back()
        if not self._is_marked:
            # At once: whoever wonders meanwhile whether to hand out finds it stale.
            self._is_marked = True
            # Before the first record: once the vector has passed over settles, nothing else would tell a next life.
            await when_there_is_room(desk.world, partial(desk.store.catalog.set_facts, {UNCHECKED: ""}))
        rest = await ask_rest(desk, want)
        if rest is None:
            return False
        if rest.lost:
            links.knows_nothing(want, rest.lost)
            return True
        if rest.through <= want.after:
            return False
        await desk.commit_slot()
        out = Outcome(now_us=desk.world.now_us())
        try:
            links.take_rest(want, rest, out)
            if want.after < rest.dropped <= rest.through == desk.received_vector().get(want.origin, 0):
                # Retention of the fanouts was quicker than this node, or it is nowhere: subscribers have to be told.
                desk.note_gone(Stretch(want.origin, want.after + 1, rest.dropped), out)
        except MeshError as error:
            log.error("! what %s has left of %s cannot be taken: %s", want.peer, want.origin, error.message)
            links.knows_nothing(want, want.through)
        finally:
            desk.submit(out)
        if rest.attempts:
            await self._take_attempts(want.origin, rest)
        self.taken += len(rest.records)
        return True

    async def _take_attempts(self, origin: Origin, rest: Rest) -> None:
        """How often these have failed: here too, by a record. It means nothing before them in the journal, so they
        are waited for: own records come first in a group."""
        await self._desk.all_told()
        await self._desk.commit_slot()
        self._note_attempts([(queue, Dot(origin, sequence), count) for queue, sequence, count in rest.attempts])

    def _note_attempts(self, failed: list[tuple[str, Dot, int]]) -> None:
        if failed:
            out = Outcome(now_us=self._desk.world.now_us())
            for queue, dot, count in failed:
                out.attempts.setdefault(queue, {})[dot] = count
            self._desk.broker.queues.failed_before({dot: count for _, dot, count in failed})
            self._desk.submit(out)

    async def _check(self, peer: str) -> bool:
        """Ask `peer` about everything in the queue store, and for the durable subscriptions; False: ask again."""
        desk = self._desk
        await desk.bring_up_stores()
        after: Dot | None = None
        while True:
            page = await desk.world.run_blocking(partial(desk.store.in_doubt, after, DOTS_AT_ONCE))
            if not page:
                break
            after = page[-1][1]
            known = await ask_settled(desk, peer, [dot for _, dot, _ in page])
            if known is None:
                return False
            done, failed = known
            await desk.commit_slot()
            self._settle([(queue, dot) for queue, dot, _ in page if dot in done])
            self._note_attempts([(queue, dot, failed[dot]) for queue, dot, n in page if failed.get(dot, 0) > n])
        return await self._fetch_pictures(peer)

    def _settle(self, done: list[tuple[str, Dot]]) -> None:
        """These were settled while this node was away: here too, by a record that outlives a crash."""
        desk = self._desk
        have = desk.received_vector()
        out = Outcome(now_us=desk.world.now_us())
        for queue, dot in done:
            desk.broker.queues.settled_elsewhere(queue, dot, have.get(dot.origin, 0), None)
            out.settles.setdefault(queue, []).append(dot)
        self.settled += len(done)
        desk.submit(out)

    async def _fetch_pictures(self, peer: str) -> bool:
        desk = self._desk
        after: tuple[str, str, str] | None = None
        while True:
            question = ["durables", after]
            fields = _fields(await desk.ask_one(peer, MARK + msgpack.packb(question)), 1)
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
            await desk.commit_slot()
            out = Outcome(now_us=desk.world.now_us())
            for move in moves:
                if move.name > Name(*(after or ("", "", ""))):
                    after = (move.name.destination, move.name.client, move.name.name)
                desk.broker.durables.accept(move)
                out.moves.append(move)
            desk.submit(out)

    # Answering

    async def answer(self, question: bytes) -> bytes:
        """What this node says to a question of a peer. Raises Refused for what it cannot answer."""
        desk = self._desk
        try:
            fields = array(unpack(question[len(MARK) :], ELEMENTS_MAX), 1)
            what = fields[0]
            if what == "rest":
                origin = origin_of(fields[1], fields[2])
                fanout = str(fields[5]) if len(fields) > 5 else ""
                row = number(fields[6]) if len(fields) > 6 else None
                async with self._answering:
                    return await self._answer_rest(origin, number(fields[3]), number(fields[4]), fanout, row)
            if what == "settled":
                dots = check_dots(fields[1])
                async with self._answering:
                    return await self._answer_settled(dots)
            if what == "seals":
                values = array(fields[1])
                return desk.about_dead([origin_of(values[at], values[at + 1]) for at in range(0, len(values) - 1, 2)])
            if what == "durables":
                after = None if fields[1] is None else Name(*map(str, array(fields[1], 3)[:3]))
                return msgpack.packb([_pictures(desk.broker, after)])  # type: ignore[no-any-return]
        except (ValueError, IndexError, MeshError, msgpack.UnpackException) as error:
            raise Refused("bad-destination", f"a question about repairs: {error}") from error
        except CorruptLog as error:
            raise Refused("log-unreadable", str(error)) from error
        finally:
            desk.look_at_damage()
        raise Refused("bad-destination", "this node knows no such question about repairs")

    async def _answer_rest(self, origin: Origin, after: int, through: int, fanout: str, row: int | None) -> bytes:
        desk = self._desk
        if origin in desk.broker.forgotten:
            return msgpack.packb(list(nothing_left(through)))  # type: ignore[no-any-return]
        durables = desk.broker.durables
        given_up = durables.given_up.get(origin, 0)
        # Who mends a log wants what is in it, and has told its readers itself.
        gone = [] if fanout else durables.gone.up_to(origin, through)
        searched_for = None if row is None else desk.rows_searched_for()
        if row == 0 and not await desk.bring_up_stores():
            # A whole file is lacking there, with the memory of what is settled: of that nothing may come back.
            return msgpack.packb([after, 0, 0, []])  # type: ignore[no-any-return]
        read: Callable[[], Rest] = partial(
            desk.store.read_rest, origin, after, through, given_up, fanout, gone, searched_for
        )
        rest = await desk.world.run_blocking(read)
        if rest.through <= after and not rest.lost:
            await desk.bring_up_stores()
            rest = await desk.world.run_blocking(read)
        if row and row == through == after + 1 and (rest.lost or rest.through <= after) and not rest.records:
            packed = await desk.world.run_blocking(partial(desk.store.read_aside, Dot(origin, row)))
            rest = rest if packed is None else Rest(row, 0, 0, [packed])
        return msgpack.packb(list(rest))  # type: ignore[no-any-return]

    async def _answer_settled(self, dots: list[Dot]) -> bytes:
        desk = self._desk
        # Also while this node has to ask others itself: what it knows to be done is done.
        await desk.bring_up_stores()
        given_up = dict(desk.broker.durables.given_up)
        forgotten = frozenset(desk.broker.forgotten)
        known = await desk.world.run_blocking(partial(desk.store.known_of, dots, given_up, forgotten))
        return msgpack.packb([pack_dot_groups(known.done), pack_attempts(known.failed.items())])  # type: ignore[no-any-return]


class Asks(Protocol):
    async def ask_one(self, peer: str, question: bytes) -> bytes | None: ...


async def ask_rest(desk: Asks, want: Want, fanout: str = "", row: int | None = None) -> Rest | None:
    """What a peer's stores have left of a stretch; with `fanout` of that fanout at least. None: it gives no answer.

    `row`: the queue store lacks it, so a peer whose own lacks the same has nothing either. It is the only message of
    the stretch, or 0: a file was lost.
    """
    question = ["rest", *want.origin, want.after, want.through, fanout, *(() if row is None else (row,))]
    fields = _fields(await desk.ask_one(want.peer, MARK + msgpack.packb(question)), 4)
    if fields is None:
        return None
    try:
        records = [octets(packed) for packed in array(fields[3])]
        # Nodes of an earlier version say nothing of failures.
        attempts = [_attempt(values, want) for values in array(fields[4])] if len(fields) > 4 else []
        return Rest(number(fields[0], 0, want.through), number(fields[1]), number(fields[2]), records, attempts)
    except MeshError as error:
        log.error("! %s answers what is left of %s with nonsense: %s", want.peer, want.origin, error.message)
        return None


async def ask_settled(desk: Asks, peer: str, dots: list[Dot]) -> tuple[set[Dot], dict[Dot, int]] | None:
    """Which of these, at most DOTS_AT_ONCE, a peer knows to be done, and how often others have failed. None: it gives
    no answer."""
    fields = _fields(await desk.ask_one(peer, MARK + msgpack.packb(["settled", pack_dot_groups(dots)])), 1)
    if fields is None:
        return None
    try:
        # Nodes of an earlier version say nothing of failures.
        return set(check_dots(fields[0])), unpack_attempts(octets(fields[1])) if len(fields) > 1 else {}
    except (MeshError, CorruptLog):
        return None


def _attempt(values: object, want: Want) -> tuple[str, int, int]:
    queue, sequence, count = array(values, 3)[:3]
    return name_of(queue, Kind.QUEUE), number(sequence, want.after + 1, want.through), number(count, 1, ATTEMPTS_MAX)


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
    cursors = broker.durables.by_name
    for name in sorted(name for name in cursors if after is None or name > after):
        cursor = cursors[name]
        move = cursor.picture() if cursor.created_us else Move(name, 0, cursor.deleted_us)
        found.append((name.destination, pack_move(move)))
        size += len(found[-1][1])
        if size > PICTURES_BYTES:
            break
    return found
