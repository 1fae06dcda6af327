"""What the parts of a node may use of it: capabilities, which each part combines into a context of its own.

A part never sees the node itself: its context, `…Context`, names what it uses, and tests pass an object with no more
than that. `Node` satisfies all of them.
"""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.config import NodeSettings
from qmq.environment import Environment
from qmq.model.dots import Origin, Vector
from qmq.model.members import Membership
from qmq.storage.queues.served_rows import ServedRows
from qmq.storage.store import Store


class Configured(Protocol):
    """The settings that apply now: a reload and definitions change them."""

    @property
    def settings(self) -> NodeSettings: ...


class Engine(Protocol):
    """The rules, the disk, the environment, and the settings that apply now."""

    origin: Origin
    broker: Broker
    store: Store
    environment: Environment
    settings: NodeSettings

    def served_rows(self) -> ServedRows:
        """The rows in the queue store of the messages that this node serves now."""


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


class MeshPeers(Protocol):
    """The other members."""

    @property
    def membership(self) -> Membership: ...

    @property
    def peer_names(self) -> list[str]: ...

    def linked_peers(self) -> Collection[str]:
        """The peers that follow this node now."""
