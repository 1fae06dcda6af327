"""`qmq serve`: one node as a process. Signals, logging, exit codes."""

import gc
import logging
import os
import random
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import trio

from qmq.broker.messages.send_options import times_of
from qmq.config import Address, NodeSettings, PeersFile
from qmq.config.limits import DESCRIPTORS_KEPT
from qmq.engine.runtime.clock import system_clock
from qmq.engine.runtime.sockets import real_network
from qmq.engine.runtime.worker import Worker
from qmq.environment import Environment
from qmq.errors import NodeRetired, QmqError, StorageError
from qmq.node.node import Node
from qmq.node.reload import Read, Reloader
from qmq.node.service_manager import ServiceManager
from qmq.node.tracing import tracing
from qmq.protocols import declarations
from qmq.storage.format.settings import Retention
from qmq.storage.format.settings import StoreSettings as StoreSettings
from qmq.storage.store import Store, open_store
from qmq.storage.volatile_store import open_volatile_store
from qmq.unix_socket import SOCKET_NAME

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SWITCH_SECONDS = 0.0005
"""How long the checkpoint's thread may keep the interpreter from the loop; Python's default would add 5 ms to a
latency that is otherwise below one."""

GC_THRESHOLDS = (100_000, 10, 20)
"""Full collections three hundred times rarer than Python's default. Messages make no cycles, and examining a backlog of
a million of them again and again took a tenth of the time and tens of milliseconds at once. Young collections a hundred
and forty times rarer. By then the objects of reads and checkpoints are already freed; after 700 objects all of them
were still alive.
"""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_RETIRED = 3
"""The node is retired. A supervisor must not start it again, and this code distinguishes it from a failure."""

ABANDONABLE_MAX = 256
"""Threads of calls to authenticators. Each authenticator has a lower bound of its own."""

T = TypeVar("T")

log = logging.getLogger("qmq.node")


def store_settings(settings: NodeSettings) -> StoreSettings:
    """The configuration's `[storage]` as settings of the storage package."""
    storage = settings.storage
    return StoreSettings(
        times_of=times_of,
        clock=time.perf_counter,
        sync="always" if storage.sync == "always" else "never" if storage.sync == "never" else "interval",
        segment_bytes_max=storage.segment_bytes_max,
        reserve_bytes=storage.disk_reserve_bytes,
        journal_keep_bytes=storage.journal_keep_bytes,
        journal_bytes_max=storage.journal_bytes_max,
        journal_age_seconds_max=int(storage.journal_age_seconds_max),
        fanout_retention=Retention(
            age_seconds_max=int(storage.fanout_age_seconds_max), bytes_max=storage.fanout_bytes_max
        ),
    )


async def run_in_thread(call: Callable[[], T]) -> T:
    """Run blocking work of a real node. When the caller is cancelled, the call is finished first."""
    return await trio.to_thread.run_sync(call)


def real_environment(commits: Worker, tracer: "Tracer | None" = None) -> Environment:
    """Clock, randomness, network and threads of the operating system."""
    limiter = trio.CapacityLimiter(ABANDONABLE_MAX)

    async def run_abandonable(call: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)

    return Environment(
        network=real_network(),
        rng=random.SystemRandom(),
        now_us=system_clock(),
        run_blocking=run_in_thread,
        boot_seconds=lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        run_commit=commits.run,
        run_abandonable=run_abandonable,
        tracer=tracer,
    )


def print_error(text: str) -> None:
    """What ends the node, as a line on stderr."""
    print(f"qmq: {text}", file=sys.stderr)


def serve(
    settings: NodeSettings,
    peers: PeersFile | None,
    read: Read | None = None,
    *,
    report: Callable[[str], None] = print_error,
    until_eof: bool = False,
    trusts_clock: bool = False,
    forces_definitions: bool = False,
) -> int:
    """Run a node until SIGTERM or SIGINT. Returns the exit code; calls `report` for each error.

    At SIGHUP the configuration is taken from `read` again; without it the signal ends the node as SIGTERM does. With
    `until_eof` the end of standard input does so, too. `trusts_clock`: the operator confirms that the wall clock is
    right. `forces_definitions`: all entries of `[definitions]` are applied, also those that operators have changed.
    """
    gc.set_threshold(*GC_THRESHOLDS)  # First: a start makes many objects, and keeps them.
    early = EarlyHangUp() if read is not None else None
    try:
        store = _open_store(settings)
    except (OSError, StorageError) as error:
        report(f"cannot open the stores of {settings.data}: {reason_of(error)}")
        return EXIT_FAILED
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with tracing(settings.tracing) as tracer, Worker("qmq-commits") as commits:
            environment = real_environment(commits, tracer)
            trio.run(
                partial(
                    _run, settings, peers, store, environment, read, early, until_eof, trusts_clock, forces_definitions
                )
            )
    except BaseExceptionGroup as group:
        expected, unexpected = group.split((QmqError, OSError))
        if unexpected is not None:
            raise unexpected from None
        return _failed(_leaves(expected), report)
    except (QmqError, OSError) as failure:
        # An error before anything ran, such as certificates or the mark of the new incarnation; or a retired node.
        return _failed([failure], report)
    return EXIT_OK


def _open_store(settings: NodeSettings) -> Store:
    settings = within_memory(settings)
    storage = settings.storage
    if settings.directory is None:
        return open_volatile_store(storage.memory_bytes_max, node=settings.name, settings=store_settings(settings))
    return open_store(
        settings.directory,
        node=settings.name,
        settings=store_settings(settings),
        queue_store=storage.queue_store,
        queue_store_seconds_max=storage.queue_store_seconds_max,
    )


def fitted(settings: NodeSettings) -> NodeSettings:
    """`settings` cut down to what the system and, without a disk, the memory of the node have room for."""
    return with_connections_that_fit(within_memory(settings))


def within_memory(settings: NodeSettings) -> NodeSettings:
    """The same; of a node without a disk with bounds of its stores that fit into their memory."""
    if settings.directory is not None:
        return settings
    return settings.replace({"storage": settings.storage.within_memory()})


def with_connections_that_fit(settings: NodeSettings) -> NodeSettings:
    """`connections_max` cut down to what the system lets this process open, with a warning."""
    wanted = settings.limits.connections_max
    most = connections_allowed(wanted)
    if most >= wanted:
        return settings
    log.warning("= limits.connections_max is %d, but the limit of open files leaves room for %d", wanted, most)
    return settings.replace({"limits": settings.limits.replace({"connections_max": most})})


def connections_allowed(wanted: int) -> int:
    """Raise this process's limit of open files as far as `wanted` connections need; return how many of them fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + DESCRIPTORS_KEPT
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - min(DESCRIPTORS_KEPT, soft // 2)))


class EarlyHangUp:
    """Catches SIGHUP while the node is not yet running, when it would end the process."""

    def __init__(self) -> None:
        self.was_sent = False
        signal.signal(signal.SIGHUP, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.was_sent = True


async def _run(
    settings: NodeSettings,
    peers: PeersFile | None,
    store: Store,
    environment: Environment,
    read: Read | None,
    early: EarlyHangUp | None,
    until_eof: bool,
    trusts_clock: bool,
    forces_definitions: bool,
) -> None:
    local_socket = None if settings.directory is None else settings.directory / SOCKET_NAME
    try:
        node = Node(
            fitted(settings),
            peers,
            store,
            environment,
            trusts_clock=trusts_clock,
            forces_definitions=forces_definitions,
            local_socket=local_socket,
        )
    except BaseException:
        store.close()  # Otherwise the node does, when it has run.
        raise
    reloader = Reloader(node, settings, peers, read, fitted) if read is not None else None
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            # Objects made so far live as long as the process; collections need not examine them again.
            gc.freeze()
            secured = {one.address.port for one in settings.listeners if one.tls is not None}
            for protocol in declarations():
                for host, port in node.addresses.get(protocol.name, ()):
                    url = f"{'https' if port in secured else 'http'}://{Address(host, port)}/"
                    page = f"; {protocol.page}: {url}" if protocol.page else ""
                    log.info("= node %s serves %s on %s:%d%s", node.origin, protocol.title, host, port, page)
            manager = ServiceManager(os.environ)
            manager.ready()
            nursery.start_soon(manager.run)
            nursery.start_soon(_obey_signals, node, signals, manager, reloader, early is not None and early.was_sent)
            if until_eof:
                nursery.start_soon(_stop_at_eof, node)
            await node.ended.wait()
            nursery.cancel_scope.cancel()
    if node.mesh_parts.members.retired_because:
        raise NodeRetired(settings.name, node.mesh_parts.members.retired_because)


async def _stop_at_eof(node: Node) -> None:
    """Standard input is a pipe that another process holds; it ends with that process, in every case."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as pipe:
        while await pipe.receive_some():
            pass
    log.info("= standard input has ended: draining")
    node.stop()


async def _obey_signals(
    node: Node, signals: AsyncIterator[int], manager: ServiceManager, reloader: Reloader | None, reload_first: bool
) -> None:
    if reload_first and reloader is not None:
        await reloader.reload()
    async for number in signals:
        if number == signal.SIGHUP and reloader is not None:
            await reloader.reload()
        else:
            log.info("= signal %s: draining", signal.Signals(number).name)
            manager.stopping()
            node.stop()


def reason_of(failure: BaseException) -> str:
    """An error as a line for the operator. That of the system is without its number."""
    if not isinstance(failure, OSError) or not failure.strerror:
        return str(failure)
    return f"{failure.filename}: {failure.strerror}" if failure.filename else failure.strerror


def _failed(failures: list[BaseException], report: Callable[[str], None]) -> int:
    """Report the errors; the exit code for them."""
    for failure in failures:
        report(reason_of(failure))
    return EXIT_RETIRED if any(isinstance(failure, NodeRetired) for failure in failures) else EXIT_FAILED


def _leaves(group: BaseExceptionGroup[BaseException] | None) -> list[BaseException]:
    """The exceptions inside nested groups."""
    leaves: list[BaseException] = []
    for error in group.exceptions if group is not None else ():
        leaves.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return leaves
