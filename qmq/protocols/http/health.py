"""Health of a node, for what restarts it (liveness) and for what sends clients to it (readiness).

Liveness depends on this node alone: it fails when an append to the journal hangs, or when the node has ended. An event
loop that hangs answers nothing, so the request itself fails. A full disk is no failure: the node waits for space, and
consuming goes on. Neither is a checkpoint that hangs; it is the condition `checkpoint`.

Readiness becomes true once per start, when clients may come, and false when the node stops or drains. A peer that is
down does not matter: its part of the start is over after a bounded time, so a node whose peers are all dead is ready.
"""

from http import HTTPStatus
from typing import Any, Final

import trio

from qmq.admin.protocol_parts import ServingNode
from qmq.engine.parts import EngineParts
from qmq.sessions.clients.draining import Draining
from qmq.settings.definitions.sync import DefinitionSync

APPEND_SECONDS_MAX: Final = 30.0
"""An append that takes longer hangs. Disks that are busy with something else answer within seconds."""

Health = tuple[int, dict[str, Any]]
"""The status of HTTP (200 or 503), and facts that are ready for JSON."""


class HealthChecks:
    """Of one node."""

    def __init__(
        self, node: ServingNode, engine: EngineParts, definition_sync: DefinitionSync, draining: Draining
    ) -> None:
        self._node = node
        self._engine = engine
        self._draining = draining
        self._definition_sync = definition_sync

    def livez(self) -> Health:
        """Whether the node works; 503 if only a new process can help."""
        began = self._engine.commits.append_began
        seconds = 0.0 if began is None else trio.current_time() - began
        has_ended = self._node.ended.is_set()
        facts = {"append_seconds": round(seconds, 1), "ended": has_ended}
        return self._health(seconds <= APPEND_SECONDS_MAX and not has_ended, "live", facts)

    def readyz(self) -> Health:
        """Whether clients should be sent to this node.

        `recovered` is always true: a node exists only after its log is recovered. `definitions` are `asked` for, then
        `in`, or `behind` if no majority has answered in time. `queues_held` and `disk_full` keep no client away.
        """
        node, broker = self._node, self._engine.broker
        has_asked = node.has_asked_peers
        drains = self._draining.reason
        is_serving = node.is_listening and not node.is_stopping and drains is None
        is_ready = has_asked and is_serving and not node.ended.is_set()
        facts = {
            "recovered": True,
            "definitions": "asked" if not has_asked else "behind" if self._definition_sync.is_behind else "in",
            "peers_asked": has_asked,
            "listening": node.is_listening,
            "stopping": node.is_stopping,
            "draining": drains is not None,
            **({"reason": drains} if drains else {}),
            "queues_held": broker.queues.held,
            "disk_full": broker.send_limits.disk_full,
        }
        return self._health(is_ready, "ready", facts)

    def _health(self, is_good: bool, word: str, facts: dict[str, Any]) -> Health:
        status = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
        return int(status), {"status": word if is_good else f"not {word}", "node": self._node.settings.name, **facts}
