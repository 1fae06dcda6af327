"""The table `[definitions]` of the node file: entries that are applied like an import by an operator, with a memory.

The node remembers of each entry what it has applied last, and applies only what has changed in its file since. So a
later change or deletion by an operator stays. The memory is definitions, too, of kinds that begin with `APPLIED`. They
are in one change with the entries, and go to all nodes: an entry that another node has applied meanwhile is not applied
again, and a node with a new disk remembers.

Surprising: to leave an entry out of the file deletes nothing. When it comes back, it is applied again.
"""

import logging
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from qmq.definitions.definition import Definition, Key, text_of
from qmq.settings.definitions.live import Changes, LiveDefinitions, Value

APPLIED: Final = "applied by "
"""Begins the kinds of the memory: then the name of the node, and the kind of the entry. A node of an older version
keeps them and passes them on.
"""

log = logging.getLogger("qmq.definitions")

Entries = Mapping[str, Mapping[str, Value]]
"""Kind → name → value, as the file has them."""


class FileDefinitions:
    """What one node does with the entries of its file."""

    def __init__(self, definitions: LiveDefinitions, node: str) -> None:
        self._definitions = definitions
        self._node = node

    def check(self, entries: Entries) -> None:
        """Raises Refused for the first entry that has changed and cannot be applied."""
        changes, _ = self._decide(entries, is_forced=False)
        self._definitions.check(changes)

    async def apply(self, entries: Entries, *, is_forced: bool = False) -> int:
        """Apply what has changed in the file, all of it or nothing, or with `is_forced` every entry.

        Durable on return: how many definitions differ from before. Raises Refused.
        """
        changes, notes = self._decide(entries, is_forced=is_forced)
        if not notes:
            return 0
        report = await self._definitions.change(changes, notes=notes)
        log.info("= definitions of the node file: %d applied, %d have changed", len(changes), report.changed)
        return report.changed

    def _decide(self, entries: Entries, *, is_forced: bool) -> tuple[Changes, Changes]:
        """The entries to apply, and what changes in the memory."""
        memory = self._memory()
        changes: dict[Key, Value | None] = {}
        notes: dict[Key, Value | None] = {}
        for kind, of_kind in entries.items():
            for name, value in of_kind.items():
                key = Key(kind, name)
                note = {"hash": blake2b(text_of(key, value).encode(), digest_size=16).hexdigest()}
                known = memory.get(key, {})
                own = known.get(self._node)
                is_applied = any(
                    one.value == note and (own is None or one.version >= own.version) for one in known.values()
                )
                if is_forced or not is_applied:
                    changes[key] = value
                if is_forced or own is None or own.value != note:
                    notes[self._note_key(key)] = note
        for key, known in memory.items():
            if self._node in known and key.name not in entries.get(key.kind, {}):
                notes[self._note_key(key)] = None
        return changes, notes

    def _memory(self) -> dict[Key, dict[str, Definition]]:
        """What each node has applied of each entry."""
        found: dict[Key, dict[str, Definition]] = {}
        for one in self._definitions.table.present():
            if one.key.kind.startswith(APPLIED):
                node, _, kind = one.key.kind.removeprefix(APPLIED).partition(" ")
                found.setdefault(Key(kind, one.key.name), {})[node] = one
        return found

    def _note_key(self, key: Key) -> Key:
        return Key(f"{APPLIED}{self._node} {key.kind}", key.name)
