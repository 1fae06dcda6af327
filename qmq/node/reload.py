"""Applying a changed configuration while the node runs: all of it or nothing.

The files are read and checked as a whole. A mistake, or one change that needs a restart, leaves everything as it was.
Otherwise the new settings apply from one moment on, between two decisions of the broker. Existing queues follow within
the next moments, because there may be a hundred thousand of them:

- Destinations and most limits apply to later requests. Existing queues and fanouts follow their new policies. Messages
  that are in a queue stay, also when they are more than it may now hold. Earlier messages and subscriptions keep the
  options they came with.
- Sizes of frames apply to later connections.
- Nodes that the peers file adds are dialled, changed addresses are dialled again, links with nodes that it omits end.
  `qmq.config.peers` says which changes it may make.
- Certificates renewed in their files are used from then on; a change of the file names needs a restart.
- Entries of `[definitions]` that have changed are applied before all else, like changes by an operator.

`qmq.config.difference.CHANGES_LIVE` lists what is reloadable, and `take_up` applies it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qmq.config import NodeSettings, PeersFile
from qmq.config.difference import difference, peers_difference
from qmq.config.peers import check_change
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.errors import ConfigError
from qmq.settings.rules_of_settings import follow_rules

if TYPE_CHECKING:
    from qmq.node.node import Node

Read = Callable[[], tuple[NodeSettings, PeersFile | None]]
"""Reads the files again. Blocks; raises ConfigError with all mistakes."""

log = logging.getLogger("qmq.reload")


@dataclass(eq=False, repr=False)
class Reloader:
    """The reaction of a process to SIGHUP. One `reload` at a time.

    `settings` and `peers` are what was read last; `fit` cuts settings down to what the system allows.
    """

    _node: "Node"
    _settings: NodeSettings
    _peers: PeersFile | None
    _read: Read
    _fit: Callable[[NodeSettings], NodeSettings] = lambda settings: settings

    def __post_init__(self) -> None:
        self._refused = ConditionGroup(self._node, "reload")

    async def reload(self) -> bool:
        """Read the files again and apply them; log what changed, or why nothing did. False when it was refused."""
        node = self._node
        try:
            settings, peers = await node.environment.run_blocking(self._checked)
            renewed = await node.environment.run_blocking(node.certificates.changed)
        except ConfigError as error:
            return self._refuse(error.diagnostics)
        name = self._settings.name
        if self._peers is not None and peers is not None:
            problems = check_change(self._peers, peers, name, node.membership.retired)
            if problems:
                return self._refuse(problems)
        changes = difference(self._settings, settings) + peers_difference(self._peers, peers, name)
        stuck = [f"{change}, which needs a restart" for change in changes if change.needs_restart]
        if stuck:
            return self._refuse(stuck)
        try:
            # All that can be refused is before `take_up`.
            await node.settings_parts.file_definitions.apply(settings)
        except ConfigError as error:
            return self._refuse(error.diagnostics)
        await node.session_parts.login_path.logins.refresh()
        take_up(node, self._fit(settings))
        lines = [str(change) for change in changes]
        lines += [f"{path}: renewed" for path in node.certificates.take_up(renewed)]
        node.certificate_expiry.wake()
        if peers is not None and peers != self._peers:
            node.mesh_parts.members.take_up(peers)
        self._settings, self._peers = settings, peers
        self._refused.show([])
        await follow_rules(node.broker.queues)
        self._log(lines)
        return True

    def _checked(self) -> tuple[NodeSettings, PeersFile | None]:
        """What the files say. A defect of the checks must not end a node that serves clients. Raises ConfigError."""
        try:
            return self._read()
        except ConfigError:
            raise
        except Exception as error:
            log.exception("! reload: the files cannot be checked, and the node goes on as it is")
            raise ConfigError([f"the files cannot be checked: {error!r}"]) from error

    def _refuse(self, reasons: list[str]) -> bool:
        for reason in reasons:
            log.error("! reload: %s", reason)
        count = len(reasons)
        more = f" (and {count - 1} more, see the log)" if count > 1 else ""
        self._refused.show([f"the configuration was not applied: {reasons[0]}{more}"])
        return False

    def _log(self, changes: list[str]) -> None:
        for change in changes:
            log.info("= reload: %s", change)
        log.info("= reload: %s", _counted(len(changes)))


def _counted(changes: int) -> str:
    return "nothing has changed" if not changes else "1 change" if changes == 1 else f"{changes} changes"


def take_up(node: "Node", settings: NodeSettings) -> None:
    """Let `settings` apply from now on. Never waits, so no decision uses half of them."""
    parts = node.settings_parts
    parts.effects.settings_changed(parts.policy_kind.join(settings))
    node.session_parts.login_path.admission.change(settings.limits)
    node.session_parts.login_path.logins.change(parts.users.users, settings.limits)
    parts.effects.limits_changed()
