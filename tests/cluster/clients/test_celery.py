"""Celery on three nodes: the page about it, and a job of hundreds of tasks while a node is killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.cluster_mesh import QUICK_TAKEOVER, ROOT, Cluster
from tests.support.cluster_wait import eventually

PAGE = (ROOT / "docs/celery.md").read_text("utf-8")
TASKS, CALLER = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith("celery ")
]

MARK = """
import os

@app.task
def mark(number):
    line = f"{number}\\n".encode()
    out = os.open("ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, line)
    os.close(out)
"""
"""Notes each run; added to the tasks of the page."""

TASK_COUNT = 300
IN_FLIGHT_MAX = 40
"""Tasks that the worker may have finished without its node having taken their acks, or without having acked."""

FINISH_SECONDS = 120.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes which take over after 3 s."""
    with Cluster(tmp_path_factory.mktemp("celery"), node_files=dict.fromkeys("abc", QUICK_TAKEOVER)) as made:
        yield made


class Celery:
    """A folder with the tasks of the page, and the programs that run there."""

    def __init__(self, mesh: Cluster, folder: Path) -> None:
        text = TASKS
        for name, fixed in (("a", 61672), ("b", 61673), ("c", 61674)):
            text = text.replace(str(fixed), str(mesh.amqp_port(name)))
        self.folder = folder
        self.first = 0
        """The first number of this test."""
        (folder / "tasks.py").write_text(text + MARK)
        self._environment = {**os.environ, "PYTHONPATH": str(folder)}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        """Run a program until the end of the test, its output in this file."""
        with open(self.folder / log, "wb") as out:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env=self._environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def start_worker(self, pool: str) -> None:
        """The worker of the page, with this pool; returns when it takes tasks."""
        (command,) = (one for one in COMMANDS if " worker " in one)
        assert "--pool solo" in command
        self.start("-m", *command.replace("solo", pool).split(), log="worker.log")
        eventually(lambda: " ready." in self.read("worker.log"), lambda: self.read("worker.log")[-3000:], 60.0)

    def run(self, *command: str) -> str:
        """What a program prints."""
        done = self.tried(*command)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.read('worker.log')[-3000:]}"
        return done.stdout

    def tried(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """A program that has ended, in one way or the other."""
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=FINISH_SECONDS,
        )

    def is_replied(self, command: str) -> bool:
        """Whether the worker replies to a command of the page: Celery waits for one second, and then fails."""
        done = self.tried("-m", *command.split())
        return done.returncode == 0 and "OK" in done.stdout

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text("utf-8") if path.exists() else ""

    def ran(self) -> list[int]:
        """The numbers of `mark`, in the order of their runs, without those that another test has left unacked."""
        return [number for line in self.read("ran").splitlines() if (number := int(line)) >= self.first]

    def stop(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def celery(mesh: Cluster, tmp_path: Path) -> Iterator[Celery]:
    made = Celery(mesh, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_the_page_does_what_it_says_and_goes_on_when_a_node_is_killed(mesh: Cluster, celery: Celery) -> None:
    celery.start_worker("solo")

    assert celery.run("-c", CALLER).split() == ["5", "2", "42", "10"]
    beat, *others = [one for one in COMMANDS if " worker " not in one]
    celery.start("-m", *beat.split(), log="beat.log")
    eventually(lambda: "tasks.every_second" in celery.read("worker.log"), lambda: celery.read("beat.log")[-3000:], 60.0)
    for command in others:
        eventually(partial(celery.is_replied, command), lambda c=command: f"{c}: {celery.read('worker.log')[-3000:]}")
    mesh.kill("a")
    again = "from tasks import add\nprint(add.delay(1, 1).get(timeout=60))"
    assert celery.run("-c", again).split() == ["2"]


@pytest.mark.parametrize(("pool", "first"), [("solo", 1000), ("prefork", 2000)])
def test_each_task_of_a_job_is_done_and_only_those_in_flight_twice_when_a_node_is_killed(
    mesh: Cluster, celery: Celery, pool: str, first: int
) -> None:
    celery.first = first
    celery.start_worker(pool)
    numbers = f"range({first}, {first + TASK_COUNT})"
    send = f"from tasks import mark\nfor number in {numbers}: mark.apply_async((number,), ignore_result=True)"
    caller = celery.start("-c", send, log="caller.log")
    eventually(lambda: len(celery.ran()) > TASK_COUNT // 3, lambda: celery.read("caller.log")[-3000:], 60.0)

    early = celery.ran()
    mesh.wait_until_copied("a")

    # Of the worker, and of the caller.
    mesh.kill("a")
    late = len(celery.ran()) - len(early)

    eventually(
        lambda: len(set(celery.ran())) == TASK_COUNT and caller.poll() is not None,
        lambda: f"{len(set(celery.ran()))} are done: {celery.read('worker.log')[-3000:]}",
        FINISH_SECONDS,
    )
    assert caller.returncode == 0, celery.read("caller.log")
    twice = {number for number, count in Counter(celery.ran()).items() if count > 1}
    # Besides what was in flight to the worker, the one that the caller had not seen confirmed, and sent again. The acks
    # of what came late may have reached no other node.
    assert not twice & set(early[:-IN_FLIGHT_MAX])
    assert len(twice) <= IN_FLIGHT_MAX + late
