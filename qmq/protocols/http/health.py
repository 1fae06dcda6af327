"""Health of a node, for what restarts it (liveness) and for what sends clients to it (readiness).

Liveness depends on this node alone: it fails when an append to the journal hangs, or when the node has ended. An event
loop that hangs answers nothing, so the request itself fails. A full disk is no failure: the node waits for space, and
consuming goes on. Neither is a checkpoint that hangs; it is the condition `checkpoint`.

Readiness becomes true once per start, when clients may come, and false when the node stops. A peer that is down does
not matter: its part of the start is over after a bounded time, so a node whose peers are all dead is ready.
"""

from http import HTTPStatus
from typing import Any, Final, Protocol

import trio

from qmq.engine.commit.commits import Commits
from qmq.engine.runtime.contexts import Engine, Tasks
from qmq.settings.definitions.sync import DefinitionSync

APPEND_SECONDS_MAX: Final = 30.0
"""An append that takes longer hangs. Disks that are busy with something else answer within seconds."""

Health = tuple[int, dict[str, Any]]
"""The status of HTTP (200 or 503), and facts that are ready for JSON."""


class HealthContext(Engine, Tasks, Protocol):
    commits: Commits
    definition_sync: DefinitionSync
    ended: trio.Event
    has_asked_peers: bool
    is_listening: bool


def livez(context: HealthContext) -> Health:
    """Whether the node works; 503 if only a new process can help."""
    began = context.commits.append_began
    seconds = 0.0 if began is None else trio.current_time() - began
    has_ended = context.ended.is_set()
    facts = {"append_seconds": round(seconds, 1), "ended": has_ended}
    return _health(context, seconds <= APPEND_SECONDS_MAX and not has_ended, "live", facts)


def readyz(context: HealthContext) -> Health:
    """Whether clients should be sent to this node.

    `recovered` is always true: a node exists only after its log is recovered. `definitions` are `asked` for, then `in`,
    or `behind` if no majority has answered in time. `queues_held` and `disk_full` keep no client away.
    """
    has_asked = context.has_asked_peers
    is_ready = has_asked and context.is_listening and not context.is_stopping and not context.ended.is_set()
    facts = {
        "recovered": True,
        "definitions": "asked" if not has_asked else "behind" if context.definition_sync.is_behind else "in",
        "peers_asked": has_asked,
        "listening": context.is_listening,
        "stopping": context.is_stopping,
        "queues_held": context.broker.queues.held,
        "disk_full": context.broker.send_limits.disk_full,
    }
    return _health(context, is_ready, "ready", facts)


def _health(context: HealthContext, is_good: bool, word: str, facts: dict[str, Any]) -> Health:
    status = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
    return int(status), {"status": word if is_good else f"not {word}", "node": context.settings.name, **facts}
