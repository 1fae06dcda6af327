"""What `qmq bench` measures: a running broker or a temporary node or mesh, its limits, cores and open files.

If there are two cores, the node and the generator get one each, because a rate means little if both share one.
"""

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from ...address import Address
from ...config.limits import LimitSettings
from ..output import Failed
from ..throwaway import throwaway, throwaway_mesh

FILES_BESIDES = 100
CONNECTIONS_BESIDES = 100
DESTINATIONS_BESIDES = 100
"""In addition to the measured ones: those of the node itself and of the generator."""


@dataclass(frozen=True, slots=True)
class Target:
    """The broker to measure: addresses, and processes if they are known."""

    addresses: tuple[Address, ...]
    pids: tuple[int, ...]


def read_cores(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """`NODE,GENERATOR`, both numbers of cores that this process may use."""
    if value is None:
        return None
    words = value.split(",")
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        raise click.BadParameter(f"{value!r} must be two numbers of cores, such as 0,1")
    allowed = sorted(os.sched_getaffinity(0))
    for word in words:
        if int(word) not in allowed:
            raise click.BadParameter(f"core {word} is not among those of this process: {', '.join(map(str, allowed))}")
    return int(words[0]), int(words[1])


@contextlib.contextmanager
def served(folder: Path | None, limits: Mapping[str, int], core: int | None, nodes: int) -> Iterator[Target]:
    """A throwaway node, or a mesh of several."""
    if nodes == 1:
        with throwaway(folder, limits, core) as node:
            yield Target((node.address,), (node.pid,))
        return
    with throwaway_mesh(folder, limits, core, nodes) as mesh:
        yield Target(
            tuple(node.address for node in mesh.nodes.values()),
            tuple(node.process.pid for node in mesh.nodes.values() if node.process is not None),
        )


def limits_for(
    *, connections: int = 0, destinations: int = 0, subscriptions: int = 0, body_bytes: int = 0, prefetch: int = 0
) -> Mapping[str, int]:
    """The limits that a throwaway node needs beyond its defaults."""
    wanted = {}
    defaults = LimitSettings()
    connections += CONNECTIONS_BESIDES
    for key in ("connections_max", "connections_per_address_max"):
        if connections > getattr(defaults, key):
            wanted[key] = connections
    if prefetch > defaults.prefetch_max:
        wanted["prefetch_max"] = prefetch  # a higher value would be reduced without an error
    if destinations >= defaults.destinations_max:
        wanted["destinations_max"] = destinations + DESTINATIONS_BESIDES
    if subscriptions > defaults.subscriptions_max:
        wanted["subscriptions_max"] = subscriptions
    if body_bytes > defaults.body_bytes_max:
        wanted["body_bytes_max"] = body_bytes
        wanted["outbox_bytes_max"] = max(defaults.outbox_bytes_max, 4 * body_bytes)
    return wanted


def cores() -> tuple[int, int]:
    """(Core of the node, core of the generator); the same if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def allow_files(connections: int) -> None:
    """Raise the limit of open files, which the throwaway node inherits. Raises Failed if the system forbids it."""
    wanted = connections + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
        except (OSError, ValueError) as error:
            raise Failed(f"{connections} connections need {wanted} open files; the system allows {hard}") from error
