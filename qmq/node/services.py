"""What every part may ask of its node, whatever the part does: tasks, ids, whether the node stops, and conditions.

Nothing here knows the parts but the system topics, which publish what an operator should know.
"""

from collections.abc import Callable

import trio

from qmq.admin.facts.conditions import Conditions
from qmq.admin.facts.system import SystemTopics
from qmq.config import NodeSettings
from qmq.environment import Environment


class NodeServices:
    """The state of one running node, without its parts."""

    system: SystemTopics

    def __init__(self, environment: Environment, settings: NodeSettings) -> None:
        self.environment = environment
        self.use(settings)
        self.conditions = Conditions()
        self._nursery: trio.Nursery | None = None
        self._stop = trio.Event()
        self._draining = trio.CancelScope()
        self.has_asked_peers = False
        """What this node needs of its peers before it serves clients is here, or the time to wait for it is over."""
        self.is_listening = False
        """All listeners for clients are open."""
        self.ended = trio.Event()
        """The node has stopped or failed, and its stores are closed."""

    def use(self, settings: NodeSettings) -> None:
        """Let `settings` apply from now on."""
        self.settings = settings

    def stop(self) -> None:
        """Begin an orderly stop; `run` returns when it is done. After a second call no client is waited for."""
        if self._stop.is_set():
            self._draining.cancel()
        else:
            # At once: the subscribers of the event are disconnected next.
            self.system.note("stopping")
            self.system.publish()
        self._stop.set()

    def spawn(self, task: Callable[[], object]) -> None:
        """Run `task` until it ends or the node does."""
        assert self._nursery is not None
        self._nursery.start_soon(task)  # type: ignore[arg-type]  # trio wants the coroutine function's full type

    def raise_condition(self, code: str, message: str) -> None:
        if self.conditions.raise_condition(code, message, self.environment.now_us()):
            self.system.note("condition", code=code, message=message, state="raised")

    def clear_condition(self, code: str, message: str) -> None:
        if self.conditions.clear(code, message, self.environment.now_us()):
            self.system.note("condition", code=code, message=message, state="cleared")

    def add_event(self, code: str, message: str) -> None:
        if self.conditions.add_event(code, message, self.environment.now_us()):
            self.system.note(code, message=message)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()
