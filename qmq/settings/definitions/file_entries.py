"""The table `[definitions]` of the node file: entries that are applied like an import by an operator, with a memory.

The node remembers of each entry what it has applied last, and applies only what has changed in its file since. So a
later change or deletion by an operator stays. The memory is definitions, too, of kinds that begin with `APPLIED`. They
are in one change with the entries, and go to all nodes: an entry that another node has applied meanwhile is not applied
again, and a node with a new disk remembers.

Entries of old sections (`qmq.config.old_sections`) did not count where operators had changed definitions of their kind.
When a node reads them for the first time in this way, such entries are remembered and not applied. They are no change
by an operator either, so that nodes of earlier versions still read their own files.

A node that starts without a majority of its mesh does not know what operators have changed meanwhile. A change of now
would win over that. So its new entries only count on this node, and are applied when a majority has answered.

Surprising: to leave an entry out of the file deletes nothing. When it comes back, it is applied again.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from qmq.config import NodeSettings
from qmq.definitions.definition import Definition, Key, text_of
from qmq.definitions.table import DefinitionTable
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.errors import ConfigError, Refused
from qmq.settings.definitions.live import CHANGED, Changes, LiveDefinitions, Value
from qmq.settings.definitions.sync import DefinitionSync

APPLIED: Final = "applied by "
"""Begins the kinds of the memory: then the name of the node, and the kind of the entry. A node of an older version
keeps them and passes them on.
"""

REPLACED: Final = "replaced"
"""In a note: an operator has changed or deleted the entry before this node could apply it."""

log = logging.getLogger("qmq.definitions")


def new_entries(file: NodeSettings, table: DefinitionTable, *, is_forced: bool = False) -> tuple[Changes, Changes]:
    """The entries of the node file to apply, and what changes in the memory. Raises ConfigError."""
    memory = _memory(table)
    first_read = Key(CHANGED, f"old sections of {file.name}")
    kept = {kind for kind in file.definitions if Key(CHANGED, kind) in table.by_key and first_read not in table.by_key}
    changes: dict[Key, Value | None] = {}
    notes: dict[Key, Value | None] = {first_read: {}} if file.old_entries and first_read not in table.by_key else {}
    for key, value in _entries(file):
        note = {"hash": _hash(file, key, value)}
        known = memory.get(key, {})
        own = known.get(file.name)
        is_applied = any(
            _hash_in(one) == note["hash"] and (own is None or one.version >= own.version) for one in known.values()
        )
        is_kept = own is None and key.kind in kept and key in file.old_entries
        if is_forced or not (is_applied or is_kept):
            changes[key] = value
        if is_forced or own is None or _hash_in(own) != note["hash"]:
            notes[_note_key(file, key)] = note
    for key, known in memory.items():
        if file.name in known and key.name not in file.definitions.get(key.kind, {}):
            notes[_note_key(file, key)] = None
    return changes, notes


class _Overtaken(Exception):
    """Definitions have changed since it was decided what to apply."""


@dataclass(eq=False, repr=False)
class FileDefinitions:
    """What one node does with the entries of its file."""

    _definitions: LiveDefinitions
    _sync: DefinitionSync
    _unapplied: ConditionGroup
    _errors_in: Callable[[NodeSettings], list[str]]

    def __post_init__(self) -> None:
        self._waiting: NodeSettings | None = None
        """The file whose entries wait for a majority."""

    async def apply(self, file: NodeSettings, *, is_forced: bool = False) -> int:
        """Apply what has changed in the file, all of it or nothing, or with `is_forced` every entry.

        Durable on return: how many definitions differ from before. Raises ConfigError. While this node has no majority,
        nothing is written, except with `is_forced`: `run` does it later.
        """
        if file is not self._waiting:
            for note in file.notes:
                log.warning("! %s", note)
        if self._sync.is_behind and not is_forced:
            if errors := self._errors_in(file):
                raise ConfigError(errors)
            self._waiting = file
            self._expect(file, new_entries(file, self._definitions.table)[0])
            self._definitions.publish()
            log.info("= new definitions of the node file count on this node only, until a majority has answered")
            return 0
        while True:
            with suppress(_Overtaken):
                return await self._write(file, is_forced=is_forced)

    async def run(self) -> None:
        """Apply what waits for a majority, when it has answered. What cannot be applied then goes on to count here."""
        await self._sync.until_known()
        if self._waiting is not None:
            try:
                await self.apply(self._waiting)
            except ConfigError as error:
                log.error("! %s", error)
                self._unapplied.show([f"the definitions of the node file were not applied: {error.diagnostics[0]}"])

    def _expect(self, file: NodeSettings, changes: Changes) -> None:
        notes = {key: {"hash": _hash(file, key, value or {}), REPLACED: True} for key, value in changes.items()}
        self._definitions.expect(changes, {key: {_note_key(file, key): note} for key, note in notes.items()})

    async def _write(self, file: NodeSettings, *, is_forced: bool) -> int:
        changes, notes = new_entries(file, self._definitions.table, is_forced=is_forced)
        with self._expecting(file, changes):
            # What a peer has applied or deleted is expected no more.
            self._definitions.publish()
            if not notes:
                self._settle()
                return 0
            self._log_what_stays(file, changes, notes)
            marked = {key.kind for key in changes if key not in file.old_entries}

            def check_present() -> None:
                if new_entries(file, self._definitions.table, is_forced=is_forced) != (changes, notes):
                    raise _Overtaken

            report = await self._definitions.change(changes, notes=notes, marked=marked, guard=check_present)
            self._settle()
        log.info("= definitions of the node file: %d applied, %d have changed", len(changes), report.changed)
        return report.changed

    def _settle(self) -> None:
        self._waiting = None
        self._unapplied.show([])

    @contextmanager
    def _expecting(self, file: NodeSettings, changes: Changes) -> Iterator[None]:
        self._expect(file, changes)
        try:
            yield
        except Refused as error:
            raise _mistake(file, error) from error
        finally:
            waiting = self._waiting or file
            self._expect(waiting, new_entries(waiting, self._definitions.table)[0] if self._waiting else {})

    def _log_what_stays(self, file: NodeSettings, changes: Changes, notes: Changes) -> None:
        """Log for which entries the file does not say what the mesh has."""
        keys = {_note_key(file, key): key for key, _ in _entries(file)}
        for noted, note in notes.items():
            if note is None:
                key = Key(noted.kind.partition(f" {file.name} ")[2], noted.name)
                if self._definitions.get(key) is not None:
                    log.warning("! %s is not in the node file any more, and stays defined until it is deleted", key)
            elif noted in keys and keys[noted] in file.old_entries and keys[noted] not in changes:
                log.warning("! %s of the node file is not applied: the mesh has its own", keys[noted])


def source_of(table: DefinitionTable, one: Definition) -> str:
    """Where a definition is from: what a node file applied has its note in the same change."""
    for node, note in _memory(table).get(one.key, {}).items():
        is_together = (note.version.origin, note.version.time_us) == (one.version.origin, one.version.time_us)
        if is_together and REPLACED not in (note.value or {}):
            return f"the node file of {node}"
    return f"a change on {one.version.origin.node}"


def _entries(file: NodeSettings) -> list[tuple[Key, Value]]:
    return [(Key(kind, name), value) for kind, of_kind in file.definitions.items() for name, value in of_kind.items()]


def _hash(file: NodeSettings, key: Key, value: Value) -> str:
    try:
        return blake2b(text_of(key, value).encode(), digest_size=16).hexdigest()
    except Refused as error:
        raise _mistake(file, error) from error


def _hash_in(note: Definition) -> str | None:
    return (note.value or {}).get("hash")


def _mistake(file: NodeSettings, error: Refused) -> ConfigError:
    return ConfigError([f"{file.source}: definitions: {error.message}"])


def _memory(table: DefinitionTable) -> Mapping[Key, dict[str, Definition]]:
    """What each node has applied of each entry."""
    found: dict[Key, dict[str, Definition]] = {}
    for one in table.present():
        if one.key.kind.startswith(APPLIED):
            node, _, kind = one.key.kind.removeprefix(APPLIED).partition(" ")
            found.setdefault(Key(kind, one.key.name), {})[node] = one
    return found


def _note_key(file: NodeSettings, key: Key) -> Key:
    return Key(f"{APPLIED}{file.name} {key.kind}", key.name)
