"""The kind `limit`: what users may use, on all nodes.

Until an operator changes the first limit at run time, the `[[user_limits]]` of the node file count. That change writes
them as definitions. From then on those of the mesh count on all nodes, and those of files do not. A limit may be about
a user or group that does not exist.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from qmq.access.rules import Principal
from qmq.access.user_limits import LimitTable, UserLimits
from qmq.config import NodeSettings, limit_values, name_limit, read_limit
from qmq.server.definitions.live import LiveDefinitions, SimpleKind, Value, checked_by
from qmq.server.runtime.contexts import Engine

LIMIT: Final = "limit"

log = logging.getLogger("qmq.definitions")


class LimitContext(Engine, Protocol):
    definitions: LiveDefinitions

    @property
    def groups_of(self) -> Callable[[Principal], Collection[str]]: ...

    def user_limits_changed(self) -> None:
        """Let what `LimitDefinitions` says count from now on."""


class LimitDefinitions:
    """Limits of users of the mesh; adds their kind to the definitions."""

    def __init__(self, context: LimitContext, file: NodeSettings) -> None:
        self._context = context
        self._file = file
        check = checked_by(read_limit, limit_values)
        context.definitions.kinds[LIMIT] = SimpleKind(check, self._changed, seeds=self._seeds)
        self._table = LimitTable({})
        self.join(file)

    def join(self, file: NodeSettings) -> NodeSettings:
        """The settings that apply while the node file says `file`."""
        self._file = file
        definitions = self._context.definitions
        rows = definitions.read_all(LIMIT, read_limit) if definitions.is_seeded(LIMIT) else file.user_limits
        self._table = LimitTable({name_limit(row): row.limits for row in rows})
        return file.model_copy(update={"user_limits": rows})

    def of(self, principal: Principal) -> UserLimits:
        """What counts for this principal, with the groups that it has here."""
        return self._table.of(principal.name, self._context.groups_of(principal))

    def log_without_effect(self, changed: Collection[str]) -> None:
        """Log which of these changed keys of the file have no effect, because the mesh has limits of its own."""
        for key in changed if self._context.definitions.is_seeded(LIMIT) else ():
            if key.startswith("user_limits"):
                log.warning("! %s has no effect: the limits of the mesh apply; see `qmq limits`", key)

    def _seeds(self) -> Mapping[str, Value]:
        return {name_limit(row): limit_values(row) for row in self._file.user_limits}

    def _changed(self, names: Collection[str]) -> None:
        rows = self.join(self._file).user_limits
        self._context.settings = self._context.settings.model_copy(update={"user_limits": rows})
        self._context.user_limits_changed()
