"""The definitions of a running node: changes by its operators, and changes that arrive from peers.

A change is decided at once, on any node, and answered when it is durable here. Like every record it then goes to the
peers. With `quorum` the answer waits until a majority of the members has it durably. If that takes too long, the answer
says so, and the change stands all the same.

A `DefinitionKind` (`kinds`) knows what the definitions of its kind mean. The first change of a kind by an operator
also writes a mark (`CHANGED`). Nodes of earlier versions read their own files until they know it.

Surprising: entries of the node file that are about to be applied (`pending`) count from the start on, unless the mesh
has a definition of that name. So no user is missing, and no message is treated by other rules, for a moment.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import InitVar, dataclass
from typing import Any, Final, TypeVar

import trio

from qmq.access.rules import RESERVED_NAMES
from qmq.broker.consumers.outcome import Outcome
from qmq.definitions.definition import NAME_BYTES_MAX, NUMBER_MAX, Definition, Key, Version, text_of
from qmq.definitions.table import DefinitionTable
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.log_events import about
from qmq.errors import ConfigError, Refused
from qmq.model.dots import Origin
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.settings.definitions.kinds import DefinitionKind, DefinitionKinds
from qmq.settings.definitions.kinds import Value as Value
from qmq.storage.format.definition_record import pack_definition
from qmq.storage.format.record import RecordKind

SPREAD_SECONDS: Final = 1.0
"""Of a wait for the copies of all linked peers."""

QUORUM_SECONDS: Final = 5.0
"""For which a change with `quorum` waits for a majority."""

CHANGED: Final = "seeded"
"""Kind of the marks that operators have changed definitions of a kind; no operator changes them."""

AUTHOR: Final = "author of "
"""Begins the kinds of definitions that name the user that declared something. They are written and deleted with what
they are about, and no client changes them. A node of an older version keeps them and passes them on.
"""

Changes = Mapping[Key, Value | None]
"""What is to be defined; None: deleted."""

Fit = Callable[[Changes], None]
"""A check of all changes of a request together. Raises Refused."""

Kept = Callable[[Changes, str | None], Collection[Key]]
"""What a request of this user also writes again, as it is: changes at other nodes at once do not change it then, unless
they are later.
"""

S = TypeVar("S")

log = logging.getLogger("qmq.definitions")


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """What became of a request."""

    changed: int
    """Definitions that differ from before."""
    is_on_majority: bool | None
    """Whether a majority has it durably; None: not asked."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the response to the request says of it."""
        quorum = {} if self.is_on_majority is None else {"quorum": self.is_on_majority}
        return {"changed": self.changed, **quorum}


@dataclass(eq=False, repr=False)
class LiveDefinitions:
    """`table` is live. A part of the node that follows a kind adds it (`follow`).

    `knows_latest`: whether no member has later definitions of these keys (`DefinitionSync`).
    """

    _engine: EngineParts
    _mesh: Mesh
    _membership: Membership
    _node: NodeBasics
    table: DefinitionTable
    pending: InitVar[Changes]
    _knows_latest: Callable[[Collection[Key]], Awaitable[bool]]

    def __post_init__(self, pending: Changes) -> None:
        self._broker = self._engine.broker
        self._pending: dict[Key, Definition] = {}
        self._notes_of: Mapping[Key, Changes] = {}
        self.kinds = DefinitionKinds()
        self.fits: list[Fit] = []
        self._kept: list[Kept] = []
        # Kind → name → its text, and what it says; None: this version cannot read it.
        self._rows: dict[str, dict[str, tuple[str | None, Any]]] = {}
        self._needs: dict[str, str] = {}
        self._authored: set[str] = set()
        self.news: dict[Key, None] = {}
        """Keys that have changed since the last `publish`."""
        self.expect(pending)
        self.unrecorded: dict[Key, Version] = {}
        """Changes that a peer has answered with, and whose records have not arrived."""
        self._copies_changed = trio.Event()
        self._written = 0

    def follow(
        self, name: str, kind: DefinitionKind, *, fits: Fit | None = None, needs: str = "", is_authored: bool = False
    ) -> None:
        """Let `kind` check the definitions of the kind of this name, and follow their changes.

        `fits` checks all changes of a request together, for kinds that depend on each other. `needs`: the kind that
        these definitions name, so that both are marked together. `is_authored`: each of them has an author.
        """
        self.kinds[name] = kind
        if fits is not None:
            self.fits.append(fits)
        if needs:
            self._needs[name] = needs
        if is_authored:
            self._authored.add(name)

    def keep(self, kept: Kept) -> None:
        """Let requests write what `kept` says again."""
        self._kept.append(kept)

    @property
    def is_durable(self) -> bool:
        """Whether all that this node has changed is durable here: a peer must not hear of it before."""
        return self._engine.path.durable_vector().get(self._broker.origin, 0) >= self._written

    async def change(
        self,
        changes: Changes,
        user: str | None = None,
        *,
        quorum: bool = False,
        guard: Callable[[], None] | None = None,
        deletes_unknown: bool = False,
        notes: Changes | None = None,
        marked: Collection[str] | None = None,
        is_dry_run: bool = False,
    ) -> ChangeReport:
        """Make all of these changes, durably, or none. Raises Refused; then nothing has changed.

        `guard` is called when they are decided, and may raise Refused. What is so already is written with a later
        version, unless all members say that they know of none: a later one may be on its way, and this is the later one
        of the two. `deletes_unknown`: to delete what this node does not know is no error. `notes` are written in the
        same batch, unchecked. `marked`: only these kinds have been changed by an operator. `is_dry_run`: only report.
        """
        if is_dry_run:
            checked = self.check(changes, deletes_unknown=deletes_unknown)
            return ChangeReport(len(checked) - len(self._unchanged(checked)), None)
        engine = self._engine
        try:
            unchanged = self._unchanged(self.check(changes, deletes_unknown=True))
        except Refused:
            unchanged = set()  # It may be allowed when it is decided; else it is refused there.
        is_current = bool(unchanged) and await self._knows_latest(unchanged)
        await engine.path.slot(asks=True)
        if guard is not None:
            guard()
        checked = self.check(changes, deletes_unknown=deletes_unknown)
        out = Outcome(now_us=engine.environment.now_us())
        if marked is None:
            # While entries of the node file are expected, a mark would say that these do not count.
            expected = {key.kind for key in self._pending}
            marked = [kind for kind in {key.kind: None for key in checked} if kind not in expected]
        notes = {**dict(one for key in checked for one in self._notes_of.get(key, {}).items()), **(notes or {})}
        for kind in marked:
            for mark in (Key(CHANGED, one) for one in (self._needs.get(kind), kind) if one is not None):
                if mark not in self.table.by_key:
                    self._write(mark, "{}", out)
        same = self._unchanged(checked)
        kept = [key for keep in self._kept for key in keep(checked, user)]
        for key, value in checked.items():
            if key not in same or not (is_current and key in unchanged):
                self._write(key, None if value is None else text_of(key, value), out)
            if key.kind in self._authored and (value is None or key not in same):
                self._note_author(key, None if value is None else user, out)
        for key, value in notes.items():
            self._write(key, None if value is None else text_of(key, value), out)
        for one in map(self.table.get, kept):  # Last: later than all that this request takes away.
            if one is not None:
                self._write(one.key, one.text, out)
        changed = len(checked) - len(same)
        for key in list(checked)[:1]:
            more = f" and {len(checked) - 1} more" if len(checked) > 1 else ""
            log.info("= user %s changes %s %r%s: %d changes", user or "-", *key, more, changed)
        last = self._broker.next_sequence - 1
        engine.path.submit(out)
        await engine.path.flushed()
        self._mesh.report_durable()
        return ChangeReport(changed, await self._reaches_majority(last) if quorum else None)

    def check(self, changes: Changes, *, deletes_unknown: bool = False) -> dict[Key, Value | None]:
        """The changes in canonical form. Raises Refused for the first bad one."""
        by_kind: dict[str, dict[str, Value | None]] = {}
        for key, value in changes.items():
            self.kinds.of(key.kind)
            if not key.name.isprintable():
                raise Refused("bad-definition", f"{key.kind} {key.name!r}: a name has printable characters only")
            if not key.name or len(key.name.encode()) > NAME_BYTES_MAX:
                raise Refused("bad-definition", f"{key.kind}: a name has 1 to {NAME_BYTES_MAX} bytes")
            if value is not None:
                text_of(key, value)  # Before the kind looks at it: no kind expects great depth.
            if value is None and not deletes_unknown and self.get(key) is None:
                raise Refused("unknown-definition", f"there is no {key}")
            by_kind.setdefault(key.kind, {})[key.name] = value
        checked = {
            Key(kind, name): value
            for kind, of_kind in by_kind.items()
            for name, value in self.kinds[kind].check(of_kind).items()
        }
        for key, value in checked.items():
            if value is not None:
                text_of(key, value)
        for check_fit in self.fits:
            check_fit(checked)
        self.table.check_room(checked)
        return checked

    def author_of(self, key: Key) -> str:
        """The user that declared this; "": one without a name, or it is from a file or an earlier version."""
        found = self.table.get(_author_key(key))
        return "" if found is None or found.value is None else str(found.value.get("user", ""))

    def expect(self, pending: Changes, notes_of: Mapping[Key, Changes] | None = None) -> None:
        """These entries of the node file are about to be applied, and those before no more. The caller publishes.

        `notes_of`: what a change of such a key writes, too, because the entry is then not to be applied any more.
        """
        self._notes_of = notes_of or {}
        origin = Origin("", 0)
        self.news |= {key: None for key in self._pending if key not in pending and key not in self.table.by_key}
        self._pending = {
            key: Definition(key, Version(0, 0, origin, 0), text_of(key, value), None)
            for key, value in pending.items()
            if value is not None
        }

    def is_expected(self, key: Key) -> bool:
        """Whether the node file has this entry, which is about to be applied."""
        return key in self._pending

    def get(self, key: Key) -> Definition | None:
        """The definition; None if there is none, or it is deleted."""
        return self.table.get(key) if key in self.table.by_key else self._pending.get(key)

    def of_kind(self, kind: str) -> list[Definition]:
        """The definitions of a kind, in no order."""
        pending = [one for key, one in self._pending.items() if key.kind == kind and key not in self.table.by_key]
        return [*(one for one in self.table.present() if one.key.kind == kind), *pending]

    def values(self, kind: str) -> dict[str, Value]:
        """The same by name, sorted."""
        return {one.key.name: one.value or {} for one in sorted(self.of_kind(kind))}

    def rows(self, kind: str, read: Callable[[str, Value], S]) -> dict[str, S]:
        """What `read` makes of the definitions of a kind, by name, sorted; without those that this version cannot read.

        A kind is always read by the same function, and a text once: one change of thousands reads one.
        """
        before, after = self._rows.get(kind, {}), {}
        for one in sorted(self.of_kind(kind), key=lambda one: one.key.name):
            name = one.key.name
            known = before.get(name)
            after[name] = (one.text, _read(one, read)) if known is None or known[0] != one.text else known
        self._rows[kind] = after
        return {name: row for name, (_, row) in after.items() if row is not None}

    def value(self, key: Key) -> Value | None:
        """The same of one; None: there is none."""
        found = self.get(key)
        return None if found is None else found.value

    def has_changed(self, kind: str) -> bool:
        """Whether an operator has ever changed definitions of this kind."""
        return Key(CHANGED, kind) in self.table.by_key

    # From peers

    def received(self, change: Definition) -> None:
        """The record of a change arrived."""
        if self.unrecorded.get(change.key) == change.version:
            del self.unrecorded[change.key]
        self.merge(change)

    def merge(self, change: Definition) -> bool:
        """A change of another node, or of an earlier incarnation of this one. Whether it is news."""
        merged = self.table.merge(change)
        if merged.is_news:
            self.news[change.key] = None
        if merged.lost is not None and not change.key.kind.startswith(AUTHOR):
            kept, lost = self.table.by_key[change.key], merged.lost
            names = (*change.key, kept.version.origin.node, lost.version.origin.node)
            facts = dict(zip(("kind", "name", "kept_from", "lost_from"), names, strict=True))
            text = "! %s %r: of two changes at once, that of %s counts, and that of %s does not"
            log.warning(text, *names, extra=about("definition-conflict", **facts))
            self._node.system.note("definition-conflict", **facts)
        return merged.is_news

    def record_again(self, changes: Collection[Definition]) -> None:
        """Write records of changes whose own records are no longer to be had."""
        out = Outcome(now_us=self._engine.environment.now_us())
        for change in changes:
            self._broker.note_fact(RecordKind.DEFINITION, pack_definition(change), out.now_us, out)
        self._engine.path.submit(out)

    def delete_again(self, changes: Collection[Definition]) -> None:
        """Write tombstones of changes that the mesh has deleted, with versions that no later change is earlier than."""
        out = Outcome(now_us=self._engine.environment.now_us())
        for change in changes:
            time_us, counter, *_ = change.version
            after = Version(time_us, min(counter + 1, NUMBER_MAX), self._broker.origin, self._broker.next_sequence)
            self._record(Definition(change.key, after, None, change.version), out)
        self._engine.path.submit(out)

    def decided(self) -> None:
        """Whatever was decided: definitions may have changed."""
        if self.news:
            self.publish()

    def publish(self) -> None:
        """Let the kinds follow what has changed. Never waits."""
        by_kind: dict[str, list[str]] = {}
        for kind, name in self.news:
            by_kind.setdefault(kind, []).append(name)
        self.news = {}
        for kind, names in by_kind.items():
            if kind in self.kinds:
                self.kinds[kind].changed(names)

    def copies_changed(self) -> None:
        """A peer has reported what is durable there."""
        self._copies_changed.set()

    # Inside

    def _unchanged(self, checked: Changes) -> set[Key]:
        """Those that the table has as these changes say."""
        texts = {key: None if value is None else text_of(key, value) for key, value in checked.items()}
        found = {key: self.table.get(key) for key in checked}
        return {key for key, known in found.items() if (None if known is None else known.text) == texts[key]}

    def _write(self, key: Key, text: str | None, out: Outcome) -> None:
        known = self.table.by_key.get(key)
        version = self.table.next_version(out.now_us, self._broker.origin, self._broker.next_sequence)
        self._record(Definition(key, version, text, None if known is None else known.version), out)

    def _note_author(self, key: Key, user: str | None, out: Outcome) -> None:
        author = _author_key(key)
        if user is not None and user not in RESERVED_NAMES:
            self._write(author, text_of(author, {"user": user}), out)
        elif self.table.get(author) is not None:
            self._write(author, None, out)

    def _record(self, change: Definition, out: Outcome) -> None:
        self._written = self._broker.next_sequence
        self._broker.note_fact(RecordKind.DEFINITION, pack_definition(change), out.now_us, out)
        self.table.merge(change)
        self.news[change.key] = None

    async def spread(self) -> None:
        """Return when all linked peers have what this node has changed so far, after SPREAD_SECONDS at most."""
        sequence = self._broker.next_sequence - 1
        with trio.move_on_after(SPREAD_SECONDS):
            while not self._is_on_linked(sequence):
                await self._until_copies_change()

    def _is_on_linked(self, sequence: int) -> bool:
        return all(self._has_durably(peer, sequence) for peer in self._mesh.followers())

    def _has_durably(self, peer: str, sequence: int) -> bool:
        """Whether `peer` has reported so much of this incarnation to be durable there."""
        return self._engine.checkpoints.members.get(peer, {}).get(self._broker.origin, 0) >= sequence

    async def _reaches_majority(self, sequence: int) -> bool:
        with trio.move_on_after(QUORUM_SECONDS):
            while not self._is_on_majority(sequence):
                await self._until_copies_change()
        return self._is_on_majority(sequence)

    async def _until_copies_change(self) -> None:
        # One event for all that wait, and none is made for each report of a peer.
        if self._copies_changed.is_set():
            self._copies_changed = trio.Event()
        await self._copies_changed.wait()

    def _is_on_majority(self, sequence: int) -> bool:
        membership = self._membership
        counting = filter(membership.counts, membership.peers)
        holders = {peer for peer in counting if self._has_durably(peer, sequence)}
        return membership.is_majority({membership.node, *holders})


def _author_key(key: Key) -> Key:
    return Key(f"{AUTHOR}{key.kind}", key.name)


def _read(one: Definition, read: Callable[[str, Value], S]) -> S | None:
    try:
        if one.value is not None:
            return read(one.key.name, one.value)
    except ConfigError:
        pass
    log.warning("! %s %s is left out: this version cannot read it", *one.key)
    return None
