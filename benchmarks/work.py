"""How much a piece of pure code does: bytecodes that it runs and bytes that it allocates at the highest, not seconds.

Both are the same in every run on every machine, so a test can hold the order of a cost by them. What they do not see is
work inside one call of C that allocates nothing, such as a search through a list, or less at once than something else
of the same action does: that shows in the measured times only. Code that mypyc compiled runs no bytecodes; there only
its allocations are seen.
"""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

REPEATS = 5
"""Of an action, of which the one in the middle counts: now and then a dictionary grows, which many actions share."""


class Work(NamedTuple):
    steps: int
    bytes: int


def work_of(action: Callable[[], object], repeats: int = REPEATS) -> Work:
    """What one `action` costs; it is run `2 * repeats` times and must be able to."""
    steps = sorted(_steps(action) for _ in range(repeats))
    allocated = sorted(_allocated(action) for _ in range(repeats))
    return Work(steps[repeats // 2], allocated[repeats // 2])


def _steps(action: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def _allocated(action: Callable[[], object]) -> int:
    """The most bytes that `action` had at once beyond those before it."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
