"""What the system knows of a process: CPU time, memory, wake-ups. Linux only, read from /proc.

All threads of the process count. A process that is gone raises OSError.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """A process at one moment."""

    cpu_seconds: float
    """User and system time since its start; counted in ticks of the system, usually 10 ms."""
    wakeups: int
    """How often a thread went to sleep by itself since its start, which is how often one was woken."""
    rss_bytes: int
    rss_highest_bytes: int
    """The most that `rss_bytes` ever was since its start."""


def usage(pid: int) -> Usage:
    """What process `pid` has used so far."""
    root = Path(f"/proc/{pid}")
    # The name stands in brackets and may hold blanks; utime and stime are fields 14 and 15 of the whole (proc(5)).
    fields = (root / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    wakeups = sum(_status(task / "status", "voluntary_ctxt_switches") for task in (root / "task").iterdir())
    status = root / "status"
    return Usage(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
        wakeups=wakeups,
        rss_bytes=_status(status, "VmRSS") * 1024,
        rss_highest_bytes=_status(status, "VmHWM") * 1024,
    )


def sum_of(usages: Sequence[Usage]) -> Usage:
    """Several processes as one. Memory that they share counts for each."""
    return Usage(
        cpu_seconds=sum(each.cpu_seconds for each in usages),
        wakeups=sum(each.wakeups for each in usages),
        rss_bytes=sum(each.rss_bytes for each in usages),
        rss_highest_bytes=sum(each.rss_highest_bytes for each in usages),
    )


def _status(path: Path, name: str) -> int:
    """The number of one line of a `status` file; 0 where the line is missing (a process that is ending)."""
    for line in path.read_text("utf-8", "replace").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return 0
