"""What the system knows of a process: CPU time, memory, wake-ups. Linux only, read from /proc.

All threads of the process count. A process that has ended raises OSError.
"""

import contextlib
import os
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TIMER_SLACK = Path("/proc/self/timerslack_ns")

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """A process at one moment."""

    cpu_seconds: float
    """User and system time since its start; counted in ticks of the system, usually 10 ms."""
    wakeups: Mapping[int, int]
    """Thread → how often it went to sleep by itself since its start, which is how often it was woken."""
    rss_bytes: int
    rss_highest_bytes: int
    """The most that `rss_bytes` ever was since its start."""

    def wakeups_since(self, before: "Usage") -> int:
        """Sum of all current threads; the share of a thread that has ended is lost."""
        return sum(count - before.wakeups.get(thread, 0) for thread, count in self.wakeups.items())


def usage(pid: int) -> Usage:
    """What process `pid` has used so far."""
    root = Path(f"/proc/{pid}")
    # The name stands in brackets and may hold blanks; utime and stime are fields 14 and 15 of the whole (proc(5)).
    fields = (root / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    status = root / "status"
    return Usage(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
        wakeups=dict(_wakeups(root)),
        rss_bytes=_status(status, "VmRSS") * 1024,
        rss_highest_bytes=_status(status, "VmHWM") * 1024,
    )


def sum_of(usages: Sequence[Usage]) -> Usage:
    """Several processes as one. Memory that they share counts for each."""
    return Usage(
        cpu_seconds=sum(each.cpu_seconds for each in usages),
        wakeups=ChainMap(*[dict(each.wakeups) for each in usages]),
        rss_bytes=sum(each.rss_bytes for each in usages),
        rss_highest_bytes=sum(each.rss_highest_bytes for each in usages),
    )


def _wakeups(process: Path) -> Iterator[tuple[int, int]]:
    for task in (process / "task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            yield int(task.name), _status(task / "status", "voluntary_ctxt_switches")


def _status(path: Path, name: str) -> int:
    """The number of one line of a `status` file; 0 where the line is missing (a process that is ending)."""
    for line in path.read_text("utf-8", "replace").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return 0


def wake_on_time() -> None:
    """Let this thread be woken when it asks to, not up to 50 µs later, as Linux does by default (prctl(2),
    PR_SET_TIMERSLACK). Where that is not allowed it stays as it is.
    """
    with contextlib.suppress(OSError):
        TIMER_SLACK.write_text("1")
