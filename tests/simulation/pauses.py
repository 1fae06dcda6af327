"""Paused processes: the tasks of a host do not run for a while, and then all at once, as after SIGSTOP and SIGCONT.

Timers that ran out meanwhile have run out, what peers sent lies in the socket buffers, and the node does not know that
it was away. A task belongs to the host in whose context it was started.

Surprising: trio notifies an instrument of each task in the instant in which it has put it last into its queue of
runnable ones, so taking it out again there is all that a pause needs.
"""

from collections import deque
from contextvars import ContextVar

import trio
from trio._core import _run as scheduler

HOST: ContextVar[str] = ContextVar("HOST", default="")
"""Whose task this is; "" for clients and for the simulation itself."""


class Pauses(trio.abc.Instrument):
    """A host that is paused twice at once goes on when the first pause ends."""

    def __init__(self) -> None:
        self._held: dict[str, list[trio.lowlevel.Task]] = {}

    def begin(self, host: str) -> None:
        """From now on no task of `host` begins another step, except those whose turn has come already."""
        if not self._held:
            trio.lowlevel.add_instrument(self)  # for as long as it is needed: it sees every step
        self._held.setdefault(host, [])

    def end(self, host: str) -> None:
        """Everything that could have run meanwhile runs now. Harmless when `host` is not paused."""
        if host in self._held:
            _runnable().extend(self._held.pop(host))
            if not self._held:
                trio.lowlevel.remove_instrument(self)

    def end_first(self, host: str) -> None:
        """What could have run first runs in the next pass, before all other tasks of the host; `end` follows."""
        _runnable().append(self._held[host].pop(0))

    def holds(self, host: str) -> bool:
        """Whether a host does nothing now."""
        return host in self._held

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        held = self._held.get(task.context.get(HOST, ""))
        if held is not None:
            last = _runnable().pop()
            assert last is task, "trio notifies of tasks in another order than it queues them"
            held.append(task)


def _runnable() -> deque[trio.lowlevel.Task]:
    return scheduler.GLOBAL_RUN_CONTEXT.runner.runq
