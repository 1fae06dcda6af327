"""What the system knows of a process: CPU time, memory, wake-ups. Linux only, read from /proc.

All threads of the process count. A process that is gone raises OSError.
"""

import os
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


def usage(pid: int) -> Usage:
    """What process `pid` has used so far."""
    root = Path(f"/proc/{pid}")
    # The name stands in brackets and may hold blanks; utime and stime are fields 14 and 15 of the whole (proc(5)).
    fields = (root / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    wakeups = sum(_status(task / "status", "voluntary_ctxt_switches") for task in (root / "task").iterdir())
    return Usage(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
        wakeups=wakeups,
        rss_bytes=_status(root / "status", "VmRSS") * 1024,
    )


def _status(path: Path, name: str) -> int:
    """The number of one line of a `status` file; 0 where the line is missing (a process that is ending)."""
    for line in path.read_text("utf-8", "replace").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return 0
