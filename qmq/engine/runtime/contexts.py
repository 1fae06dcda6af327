"""What the parts of a node may use of it, whatever they do: small interfaces, all of which `Node` satisfies."""

from collections.abc import Callable
from typing import Any, Protocol

from qmq.broker.consumers.outcome import Outcome
from qmq.config import NodeSettings
from qmq.model.dots import Vector


class Configured(Protocol):
    """The settings that apply now: a reload and definitions change them."""

    @property
    def settings(self) -> NodeSettings: ...


class Committing(Protocol):
    """The commit path: decide, append, deliver."""

    async def slot(self, session: int = 0, *, asks: bool = False) -> None:
        """Wait until something may be decided, by `session` if one is named.

        A session that only asks (`asks`) waits neither for disk space nor for memory.
        """

    def submit(self, out: Outcome) -> None:
        """Append the records of `out`, then deliver its effects. Never waits."""

    async def flushed(self) -> None:
        """Wait until everything that is decided now is durable and delivered."""

    def received_vector(self) -> Vector:
        """What this node has taken, durable or not. Live."""

    def durable_vector(self) -> Vector:
        """What the journal has on disk."""


class Noting(Protocol):
    """Events for the subscribers of `/system/events`."""

    def note(self, event: str, **facts: Any) -> None: ...


class Reporting(Protocol):
    """Conditions and events for the operator (`qmq.admin.facts.conditions`)."""

    @property
    def system(self) -> Noting: ...

    def raise_condition(self, code: str, message: str) -> None:
        """A state began, or lasts."""

    def clear_condition(self, code: str, message: str) -> None:
        """The state has ended. Nothing happens if this was not raised."""

    def add_event(self, code: str, message: str) -> None:
        """Something has happened."""


class Tasks(Protocol):
    @property
    def is_stopping(self) -> bool: ...

    def spawn(self, task: Callable[[], object]) -> None:
        """Run a task in the nursery of the node."""


class NodeBasics(Configured, Reporting, Tasks, Protocol):
    """What every part may use of its node, whatever the part does."""
