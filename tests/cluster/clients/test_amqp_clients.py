"""The programs of docs/amqp.md: Ruby, PHP and dramatiq, on three nodes of which the one that they use is killed."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.cluster_mesh import QUICK_TAKEOVER, ROOT, Cluster
from tests.support.cluster_wait import eventually

PAGE = (ROOT / "docs/amqp.md").read_text("utf-8")
PORTS = {"a": 61672, "b": 61673, "c": 61674}
"""As the page has them."""

JOBS = 1000
"""Instead of the 100 of the page, so that some are left when the node is killed."""

BEFORE = 100
"""So many are confirmed, or done, and then the node is killed."""

IN_FLIGHT_MAX = 40
"""Jobs that may be done twice: what was not confirmed, and those whose acks the node had not taken. Besides them, those
that were done while the node was on its way to be killed: their acks may have reached no other node."""

FINISH_SECONDS = 120.0

pytestmark = pytest.mark.timeout(300)


def block(language: str, beginning: str) -> str:
    """The program of the page that begins so."""
    (found,) = re.findall(rf"^```{language}\n({re.escape(beginning)}.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


def has(*command: str) -> bool:
    """Whether a program runs here, and finds its library."""
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


needs_ruby = pytest.mark.skipif(
    not has("ruby", "-e", "require 'bunny'"), reason="bunny for Ruby is not installed (Debian: apt install ruby-bunny)"
)
needs_php = pytest.mark.skipif(
    not has("php", "-r", "require_once 'PhpAmqpLib/autoload.php';"),
    reason="php-amqplib is not installed (Debian: apt install php-cli php-amqplib)",
)
needs_dramatiq = pytest.mark.skipif(find_spec("dramatiq") is None, reason="dramatiq is not installed (the extra `dev`)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes which take over after 3 s."""
    with Cluster(tmp_path_factory.mktemp("clients"), node_files=dict.fromkeys("abc", QUICK_TAKEOVER)) as made:
        yield made


class Programs:
    """A folder with the programs of the page, and what they print."""

    def __init__(self, mesh: Cluster, folder: Path) -> None:
        self._mesh = mesh
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def write(self, name: str, text: str, queue: str = "", other: str = "") -> None:
        """A program of the page with the ports of this mesh, more jobs, and `other` instead of `queue`."""
        for node, port in PORTS.items():
            text = text.replace(str(port), str(self._mesh.amqp_port(node)))
        text = re.sub(r"\b100\b", str(JOBS), re.sub(r"\b101\b", str(JOBS + 1), text))
        assert re.search(rf"\b({JOBS}|{JOBS + 1})\b", text)
        (self.folder / name).write_text(text.replace(queue, other) if queue else text)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Run a program until the end of the test. What it prints is in files of its name."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONUNBUFFERED": "1"}
        name = Path(command[0]).name
        with open(self.folder / f"{name}.out", "wb") as out, open(self.folder / f"{name}.err", "wb") as err:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=out, stderr=err, start_new_session=True
            )
        self._running.append(process)
        return process

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def printed(self, name: str) -> str:
        """Both outputs: a worker of dramatiq prints to the second."""
        return self.read(f"{name}.out") + self.read(f"{name}.err")

    def jobs(self, name: str, what: str) -> list[str]:
        """The jobs that a program says are `confirmed` or `done`, in order."""
        # Threads of dramatiq print at the same time, and the ends of their lines come later.
        return re.findall(rf"{what} (resize \d+)", self.printed(name))

    def all_of(self, name: str) -> str:
        return f"{self.read(f'{name}.out')[-1500:]}\n{self.read(f'{name}.err')[-3000:]}"

    def stop(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def programs(mesh: Cluster, tmp_path: Path) -> Iterator[Programs]:
    made = Programs(mesh, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def node_of(mesh: Cluster, printed: str) -> str:
    """The node that a program has connected to last: the first of its list, if it does not say."""
    ports = re.findall(r"^connected to (\d+)$", printed, re.MULTILINE)
    return next((name for name in PORTS if ports and str(mesh.amqp_port(name)) == ports[-1]), "a")


@pytest.mark.parametrize("phase", ["confirmed", "done"])
@pytest.mark.parametrize(
    ("program", "language", "beginning", "queue"),
    [
        pytest.param("ruby", "ruby", 'require "bunny"', "ruby.jobs", marks=needs_ruby, id="bunny"),
        pytest.param("php", "php", "<?php", "php.jobs", marks=needs_php, id="php-amqplib"),
    ],
)
def test_a_program_of_the_page_goes_on_when_its_node_is_killed(
    mesh: Cluster, programs: Programs, program: str, language: str, beginning: str, queue: str, phase: str
) -> None:
    programs.write("program", block(language, beginning), queue, f"{queue}.{phase}")
    process = programs.start(program, "program")

    def is_so_far() -> bool:
        return len(programs.jobs(program, phase)) > BEFORE or process.poll() is not None

    eventually(is_so_far, lambda: programs.all_of(program), FINISH_SECONDS)
    early, node = len(programs.jobs(program, "done")), node_of(mesh, programs.read(f"{program}.out"))
    mesh.wait_until_copied(node)
    mesh.kill(node)
    late = len(programs.jobs(program, "done")) - early

    eventually(lambda: process.poll() is not None, lambda: programs.all_of(program), FINISH_SECONDS)
    assert process.returncode == 0, programs.all_of(program)
    assert "lost a node" in programs.read(f"{program}.err")
    confirmed, done = programs.jobs(program, "confirmed"), Counter(programs.jobs(program, "done"))
    assert confirmed == [f"resize {number}" for number in range(1, JOBS + 1)]
    assert done.keys() == set(confirmed)
    assert sum(count > 1 for count in done.values()) <= IN_FLIGHT_MAX + late


@needs_dramatiq
def test_dramatiq_goes_on_when_its_node_is_killed(mesh: Cluster, programs: Programs) -> None:
    programs.write("resizes.py", block("python", "import dramatiq"))
    (command,) = re.findall(r"^dramatiq (resizes .*)$", PAGE, re.MULTILINE)
    dramatiq = str(Path(sys.executable).with_name("dramatiq"))
    programs.start(dramatiq, *command.split())
    name = Path(sys.executable).name
    sender = programs.start(sys.executable, "resizes.py")
    eventually(lambda: len(programs.jobs("dramatiq", "done")) > BEFORE, lambda: both(programs, name), FINISH_SECONDS)
    early = len(programs.jobs("dramatiq", "done"))
    mesh.wait_until_copied("a")

    # Of the workers, and of the sender, if that is not done.
    mesh.kill("a")
    late = len(programs.jobs("dramatiq", "done")) - early

    wanted = {f"resize {number}" for number in range(1, JOBS + 1)}
    eventually(
        lambda: sender.poll() is not None and wanted == set(programs.jobs("dramatiq", "done")),
        lambda: both(programs, name),
        FINISH_SECONDS,
    )
    assert sender.returncode == 0, programs.all_of(name)
    assert "Restarting consumer" in programs.read("dramatiq.err")
    assert len(programs.jobs(name, "confirmed")) == JOBS
    done = Counter(programs.jobs("dramatiq", "done"))
    assert sum(count > 1 for count in done.values()) <= IN_FLIGHT_MAX + late


def both(programs: Programs, sender: str) -> str:
    done = set(programs.jobs("dramatiq", "done"))
    return f"{len(done)} are done\n{programs.all_of('dramatiq')}\n{programs.all_of(sender)}"
