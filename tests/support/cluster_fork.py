"""Nodes as forks of a process that has imported the product: a start costs a tenth of what `python -m qmq` costs.

Most of a start is imports, and the cluster tests start some three hundred nodes. The process that forks is the fork
server of `multiprocessing`: it runs one thread and nothing of a node, so that each fork is as new as a program that has
just been started, but for the seed of `hash`, which all nodes of a test run share. `qmq mesh up` and the pages of the
documentation are tested with the program itself.

A node ends with the test run, also if that is killed (kill -9, out of memory): the fork server reads the end of a pipe
then and exits, and the kernel kills its forks. Linux only; elsewhere the ends of fixtures are all there is.
"""

import contextlib
import ctypes
import multiprocessing.connection
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from qmq.cli import main
from qmq.cli.launch import LocalMesh

PR_SET_PDEATHSIG = 1

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__, "qmq.cli.serve", "qmq.node.main"])

_lock = threading.Lock()
"""Threads start and stop nodes, and an exit code can be read only once; a start reads those of all nodes, too."""


class ForkedMesh(LocalMesh):
    """A `LocalMesh` whose nodes are forks."""

    files_max: int | None = None
    """Files that nodes which are started from now on may open; None: as many as the fork server."""

    def spawn(self, arguments: Sequence[str], log: Path) -> "Forked":  # type: ignore[override]
        return Forked(arguments, log, self.files_max)


class Forked:
    """`qmq` with `arguments` in a fork, in the environment that this process has now.

    It has what LocalMesh uses of `subprocess.Popen`.
    """

    stdin = None

    def __init__(self, arguments: Sequence[str], log: Path, files_max: int | None) -> None:
        self._process = FORKS.Process(target=_run, args=(arguments, log, dict(os.environ), files_max), daemon=True)
        with _lock:
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        multiprocessing.connection.wait([self._process.sentinel], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("qmq", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def end_with_parent(number: signal.Signals) -> None:
    """The kernel sends this process `number` when the one that started it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def _run(arguments: Sequence[str], log: Path, environment: Mapping[str, str], files_max: int | None) -> None:
    end_with_parent(signal.SIGKILL)
    tests = multiprocessing.parent_process()
    if tests is None or not tests.is_alive():  # it ended before
        sys.exit("the test run is gone")
    # As of any program that is started. One of these is the other end of the pipe that the fork server reads.
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.setsid()
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    if files_max is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    sys.argv = ["qmq", *arguments]
    main()
