"""The memory budget: one bound on the memory that all connections together make the node hold.

It counts open transactions, unfinished frames, bytes that a client does not read, buffers, selectors and patterns;
also the bytes that wait for the client of a session over long poll that has ended.

Each part bounds its own share per connection; this bounds their sum. Growth is counted once per read of a client and
when bytes wait for one, not per message. Near the bound, a client whose share grows is not read, for at most
WAIT_SECONDS. After that, or above the bound, the connections that hold most are ended until there is room.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.malloc_trim import give_back_memory
from qmq.environment import Environment
from qmq.errors import Refused

SHARE = 4
"""By default connections may hold one part in so many of the memory of the machine, or of the process's control group.
"""

NEAR = 0.75
"""This part of the bound is near it; evictions make room down to this."""

WAIT_SECONDS = 1.0

TRIM_BYTES = 64 << 20
TRIM_SECONDS = 1.0
"""When connections have freed so much, the process returns memory to the system after this time."""

CGROUPS = Path("/sys/fs/cgroup")
BOUND_FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""Of control groups, version 2 and 1."""


class Holder(Protocol):
    """A connection, as the memory budget sees it (`ClientSession`), or what is left of one."""

    finishing: bool
    held_bytes: int

    def evict(self, error: Refused) -> None:
        """End the connection with this error."""


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """What all connections hold, in bytes, its bound, and how many connections were ended to make room."""

    bytes: int
    max: int
    ended: int


class MemoryBudget:
    """The sum, in `bytes`, of what each holder has in its `held_bytes`."""

    def __init__(self, environment: Environment, node: NodeBasics, bytes_max: int) -> None:
        self._environment = environment
        self._node = node
        # Those that hold anything; in the order in which they came, in every process.
        self._holders: dict[Holder, None] = {}
        self.bytes_max = bytes_max
        self._near = int(bytes_max * NEAR)
        self.bytes = 0
        self.ended = 0
        """Connections that were ended to make room."""
        self._shedding = False
        self._trimming = False
        # The maximum since memory was last returned to the system.
        self._peak = 0
        self._below = trio.lowlevel.ParkingLot()

    def statistics(self) -> MemoryStatistics:
        return MemoryStatistics(self.bytes, self.bytes_max, self.ended)

    @property
    def is_near(self) -> bool:
        return self.bytes >= self._near

    def change(self, holder: Holder, delta: int) -> None:
        """`holder` holds `delta` bytes more, or fewer if negative."""
        if holder.finishing:
            return
        holder.held_bytes += delta
        self.bytes += delta
        if delta <= 0:
            if not holder.held_bytes:
                self._holders.pop(holder, None)
            self._look()
            return
        self._holders[holder] = None
        self._peak = max(self._peak, self.bytes)
        if self.bytes > self.bytes_max and not self._shedding:
            # Later: the caller is in the middle of a decision.
            self._shedding = True
            self._node.spawn(self._shed)

    def forget(self, holder: Holder) -> None:
        """It is ending, and frees what it holds."""
        self.bytes -= holder.held_bytes
        holder.held_bytes = 0
        self._holders.pop(holder, None)
        self._look()
        if self._peak - self.bytes > TRIM_BYTES and not self._trimming:
            self._trimming = True
            self._node.spawn(self._trim)

    async def room(self) -> None:
        """Wait until the bound is not near. No checkpoint when it is not."""
        while self.is_near:
            with trio.move_on_after(WAIT_SECONDS) as waited:
                await self._below.park()
            if waited.cancelled_caught:
                self._end_largest()

    def _look(self) -> None:
        if not self.is_near:
            self._below.unpark_all()

    async def _trim(self) -> None:
        await trio.sleep(TRIM_SECONDS)
        self._peak = self.bytes
        self._trimming = False
        await self._environment.run_blocking(give_back_memory)

    async def _shed(self) -> None:
        await trio.lowlevel.checkpoint()
        self._end_largest()
        self._shedding = False

    def _end_largest(self) -> None:
        """End connections until the bound is not near."""
        for holder in sorted(self._holders, key=lambda one: one.held_bytes, reverse=True):
            if not self.is_near:
                break
            self._node.add_event(
                "memory", "connections held three quarters of memory_bytes_max or more; the largest were ended"
            )
            self.ended += 1
            holder.evict(
                Refused(
                    "memory-exceeded",
                    f"The connections of this node hold {self.bytes} bytes of memory, this one most of all,"
                    f" {holder.held_bytes}. At {self._near}, three quarters of memory_bytes_max, the largest end.",
                )
            )


def default_bytes_max() -> int:
    """A part of what this process may have."""
    return available_bytes() // SHARE


def available_bytes() -> int:
    """The memory of the machine, or what a control group leaves of it."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    groups = [CGROUPS]
    try:
        own = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        groups += [CGROUPS / own.lstrip("/"), *(CGROUPS / own.lstrip("/")).parents]
    except OSError:
        pass  # not Linux
    for group in groups:
        for name in BOUND_FILES:
            try:
                found.append(int((group / name).read_text()))
            except (OSError, ValueError):
                continue  # no such group, or no bound ("max")
    return min(found)
