"""Levelling of definitions: a node asks a peer for all that it has, page by page, and merges it.

Records carry changes while nodes run. Levelling is for what records cannot do: a node that starts has the definitions
of a majority before it serves clients, long before its journal has caught up; and a new node gets definitions whose
incarnation is collected, so that no journal and no snapshot contains their records. A node records those again.

Conversely, a new node reads from old journals definitions whose tombstones are collected. If a peer does not have them,
although its vector `stable` covers them, the node records their deletion.

Each peer is asked when its link has caught up. Until then, and whenever records of a peer are late, it is asked each
LEVEL_SECONDS: a change must not wait behind the messages of the journal. Nodes with the same definitions exchange a
hash and nothing else.

Before a node confirms a change that would change nothing, it asks all members whether one of them knows a later version
(`knows_latest`): what is the same here may be old.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import msgspec
import trio
from msgspec import Meta, Struct

from qmq.definitions.definition import Definition, Key, Version
from qmq.definitions.table import is_covered
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import NodeBasics
from qmq.mesh.peers.calls import Count, PeerCall, Text
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.dots import Vector, covers, merge, parse_origin
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.settings.definitions.live import LiveDefinitions
from qmq.storage.disk.sqlite import vector_to_json
from qmq.storage.format.definition_record import definition_of, version_fields, version_of

START_SECONDS: Final = 2.0
"""For which a starting node keeps clients waiting until a majority has answered, and a client that needs answers."""

LEVEL_SECONDS: Final = 1.0
"""For which records of a peer may be late before its definitions are asked for, and between two requests."""

LEVEL_SHARE: Final = 4
"""A request that takes long is followed by a pause of so many times that: the records need the link, too."""

KEYS_MAX: Final = 1000
"""About which a peer is asked by name; instead of more, its definitions are levelled."""

PAGE_BYTES: Final = 200_000
"""About how many bytes of definitions one answer has."""

BEHIND: Final = "definitions-behind"
"""Code of the condition."""
BEHIND_TEXT: Final = "no majority has answered since the start: definitions may be older than those of the mesh"
LATE_TEXT: Final = "records of {} are late, and it does not answer: definitions may be older than those of the mesh"

log = logging.getLogger("qmq.definitions")


class DefinitionPage(NamedTuple):
    """A page of the definitions of a node."""

    changes: list[Definition] = []
    following: tuple[str, str] | None = None
    """After which key the next page begins."""
    is_same: bool = False
    """The node has the definitions that the one that asks had at the request."""
    stable: Vector = {}
    later: bool | None = None
    """Whether it has later versions of some. An older node says nothing of it, and sends a page."""


class _WirePage(Struct, frozen=True):
    rows: list[tuple[Any, Any, Any, Any, Any]]
    next: tuple[Text, Text] | None
    is_same: bool
    stable: dict[str, Count]


class _WireLater(Struct, frozen=True):
    later: bool


class DefinitionsCall(PeerCall[DefinitionPage], frozen=True, omit_defaults=True):
    """The definitions of a node behind the key `after`; with `versions`, `[kind, name, version]`, whether it has later
    ones of these. `digest`: of the definitions of the node that asks, in hexadecimal.
    """

    kind: ClassVar = "definitions"
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{1,16}\Z")]
    after: tuple[Text, Text]
    versions: Annotated[list[tuple[Text, Text, Any]], Meta(max_length=KEYS_MAX)] = []

    def __post_init__(self) -> None:
        self.known()

    def known(self) -> dict[Key, Version | None]:
        return {Key(kind, name): version_of(row) for kind, name, row in self.versions}

    def check(self, reply: DefinitionPage) -> None:
        if reply.following is not None and reply.following <= self.after:
            raise ValueError("the next key is not behind the last one")

    @classmethod
    def encode_reply(cls, reply: DefinitionPage) -> bytes:
        if reply.later is not None:
            return msgspec.json.encode(_WireLater(reply.later))
        rows = [_row(one) for one in reply.changes]
        return msgspec.json.encode(_WirePage(rows, reply.following, reply.is_same, vector_to_json(reply.stable)))

    @classmethod
    def decode_reply(cls, data: bytes) -> DefinitionPage:
        if b'"rows"' not in data:
            return DefinitionPage(later=msgspec.json.decode(data, type=_WireLater).later)
        page = msgspec.json.decode(data, type=_WirePage)
        stable = {parse_origin(origin): last for origin, last in page.stable.items()}
        return DefinitionPage([definition_of(*row) for row in page.rows], page.next, page.is_same, stable)


@dataclass(eq=False, repr=False)
class DefinitionSync:
    """Levels the definitions of one node. `late_peers`: the linked peers that have reported more than this node has,
    and what of it is missing here.
    """

    _engine: EngineParts
    _mesh: Mesh
    _membership: Membership
    _rpc: PeerRpc
    _node: NodeBasics
    _definitions: LiveDefinitions
    _late_peers: Callable[[], Mapping[str, Vector]]

    def __post_init__(self) -> None:
        self._late = ConditionGroup(self._node, BEHIND)
        self._is_watching = False
        self._answered: set[str] = set()
        """Peers whose definitions this node has had since its start."""
        self._changed = trio.Event()
        self.is_behind = False
        """No majority has answered since the start."""
        self._known = trio.Event()

    # The side that asks

    async def before_clients(self) -> None:
        """Wait until this node has the definitions of a majority, at most START_SECONDS."""
        with trio.move_on_after(START_SECONDS):
            while not self._has_majority():
                self._changed = trio.Event()
                # In one order in every process: a set has none.
                for peer in sorted(self._mesh.followers()):
                    if peer not in self._answered:
                        self._node.spawn(partial(self._pull, peer))
                await self._changed.wait()
        if not self._has_majority():
            self.is_behind = True
            self._node.raise_condition(BEHIND, BEHIND_TEXT)

    async def until_known(self) -> None:
        """Return when this node is behind no more."""
        if self.is_behind:
            await self._known.wait()

    async def refresh(self) -> None:
        """Merge the definitions of all linked peers, for a client that asks for what another one has just declared.

        A peer that does not respond for START_SECONDS is not waited for.
        """
        with trio.move_on_after(START_SECONDS):
            async with trio.open_nursery() as nursery:
                for peer in sorted(self._mesh.followers()):
                    nursery.start_soon(self._pull, peer)

    async def knows_latest(self, keys: Collection[Key]) -> bool:
        """Whether no member has a later version of one of these than this node has now; False if one did not say so in
        START_SECONDS. The definitions of a member that has one are merged.
        """
        table, members = self._definitions.table, self._membership
        found = [(key, table.by_key.get(key)) for key in sorted(keys)]
        versions = [(*key, None if known is None else version_fields(known.version)) for key, known in found]
        current: set[str] = set()

        async def ask(peer: str) -> None:
            reply = None
            if len(versions) <= KEYS_MAX:
                call = DefinitionsCall(f"{table.digest:016x}", ("", ""), versions)
                reply = await self._rpc.ask_one(peer, call)
                if reply is None:
                    return
            if reply is None or reply.later is not False:
                deleted = await self._pull(peer)
                if deleted is None or any(one.key in keys for one in deleted):
                    return
            current.add(peer)

        with trio.move_on_after(START_SECONDS):
            async with trio.open_nursery() as nursery:
                for peer in sorted(members.peers):
                    nursery.start_soon(ask, peer)
        return current >= set(members.peers)

    def links_changed(self) -> None:
        self._changed.set()
        self.peer_reported()

    def peer_reported(self) -> None:
        """A peer may have reported more than this node has."""
        if not self._is_watching and self._late_peers():
            self._is_watching = True
            self._node.spawn(self._watch)

    async def _watch(self) -> None:
        """While records of a peer are late, ask it for its definitions."""
        reported = self._late_peers()
        pause = LEVEL_SECONDS
        while reported:
            await trio.sleep(pause)
            silent: list[str] = []
            began = trio.current_time()
            for peer in sorted(self._late_peers().keys() & reported.keys()):
                # What it has reported meanwhile is not late yet.
                is_late = not covers(self._engine.path.received_vector(), reported[peer])
                if is_late and await self._pull(peer) is None:
                    silent.append(peer)
            pause = max(LEVEL_SECONDS, LEVEL_SHARE * (trio.current_time() - began))
            reported = self._late_peers()
            self._late.show([LATE_TEXT.format(peer) for peer in silent if peer in reported])
        self._is_watching = False

    def link_caught_up(self, peer: str) -> None:
        """This node has everything that `peer` had when the link began."""
        self._node.spawn(partial(self._level, peer))

    async def _level(self, peer: str) -> None:
        deleted = await self._pull(peer)
        if deleted is None:
            return
        live = self._definitions
        if not (live.unrecorded or deleted) or (self._membership.peers and self._mesh.is_catching_up):
            return
        await self._engine.path.commit_slot()
        received = self._engine.path.received_vector()
        lost: list[Definition] = []
        for key, version in list(live.unrecorded.items()):
            change = live.table.by_key.get(key)
            if change is None or change.version != version:
                del live.unrecorded[key]
            # Of an origin that this node follows, the record is on its way, or a hole in the journal has swallowed it.
            elif received.get(version.origin, 0) >= version.sequence or version.origin not in received:
                del live.unrecorded[key]
                lost.append(change)
        if lost:
            log.info("= %d definitions of %s are recorded again", len(lost), peer)
            live.record_again(lost)
        deleted = [one for one in deleted if live.table.by_key.get(one.key) == one]
        if deleted:
            log.info("= %d definitions are deleted, of which %s knows that they were deleted", len(deleted), peer)
            live.delete_again(deleted)

    async def _pull(self, peer: str) -> list[Definition] | None:
        """Merge the definitions of `peer`, if it answers.

        Returns the definitions of this node that are deleted, as the peer knows; None if it did not answer.
        """
        live = self._definitions
        after: tuple[str, str] | None = ("", "")
        pages: list[DefinitionPage] = []
        while after is not None:
            page = await self._rpc.ask_one(peer, DefinitionsCall(f"{live.table.digest:016x}", after))
            if page is None:
                return None
            pages.append(page)
            after = page.following
        changes = [one for page in pages for one in page.changes]
        # That of the first page: what it covers is on a page, or the peer has forgotten it.
        stable = pages[0].stable
        # All at once: a part of the users or permissions of a mesh must not count.
        for change in changes:
            if live.merge(change):
                live.unrecorded[change.key] = change.version
        deleted: list[Definition] = []
        # A peer with the same definitions sends no further rows.
        if not any(page.is_same for page in pages):
            keys = {one.key for one in changes}
            deleted = [one for one in live.table.present() if one.key not in keys and is_covered(one, stable)]
        # Now this node has everything that the peer has of what this covers.
        merge(live.table.stable, stable)
        if live.news:
            live.publish()
        self._answered.add(peer)
        self._changed.set()
        if self.is_behind and self._has_majority():
            self.is_behind = False
            self._known.set()
            self._node.clear_condition(BEHIND, BEHIND_TEXT)
        return deleted

    def _has_majority(self) -> bool:
        membership = self._membership
        return membership.is_majority({membership.node, *self._answered})

    # The side that answers

    async def answer(self, call: DefinitionsCall) -> DefinitionPage:
        """The next page of the definitions of this node, or whether it has later versions of some."""
        live = self._definitions
        table = live.table
        while not live.is_durable:
            await self._engine.path.flushed()
        is_same = int(call.digest, 16) == table.digest
        if call.versions:
            is_later = any(table.has_later(key, known) for key, known in call.known().items())
            return DefinitionPage(later=is_later and not is_same)
        changes: list[Definition] = []
        size = 0
        following: Key | None = None
        if not is_same:
            for key in sorted(key for key in table.by_key if key > call.after):
                change = table.by_key[key]
                changes.append(change)
                size += len(key.kind) + len(key.name) + len(change.text or "") + 100
                if size > PAGE_BYTES:
                    following = key
                    break
        return DefinitionPage(changes, following, is_same, table.stable)


def _row(one: Definition) -> tuple[Any, Any, Any, Any, Any]:
    return one.key.kind, one.key.name, one.text, version_fields(one.version), version_fields(one.replaced)
