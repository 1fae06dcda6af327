"""Killing a driver, with the JVM and the workers it started, at a chosen moment of its work."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from tests.support.cluster_wait import eventually

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 300.0
"""Until a driver shows a sign of work: on a busy machine Spark takes more than two minutes to start."""
KILLS = int(os.environ.get("KILLS", "1"))
"""Of each job. 20 at night: `make spark-test KILLS=20`."""
FINISH_SECONDS_MAX = PATIENCE_SECONDS + 30.0 * KILLS
"""For the run that ends well: it does what all the killed ones have left."""
TEST_SECONDS_MAX = PATIENCE_SECONDS * (KILLS + 1) + FINISH_SECONDS_MAX
SEED = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
"""Of what is drawn in tests of kills, which print it."""
QUICK_START = "-XX:TieredStopAtLevel=1"
"""Starting is most of what these JVMs do: without the second compiler that takes about half the processor time."""


def moments(count: int, begin: float, step: float) -> list[float]:
    """Seconds after the first sign of work at which to kill."""
    return [begin + number * step for number in range(count)]


class Driver:
    """A Python program in a group of its own, so that all of it can be killed. Used in a `with`."""

    def __init__(self, log: Path, *command: str, more: Mapping[str, str] | None = None) -> None:
        """`more`: variables of its environment."""
        self._log = log
        environment = {
            **os.environ,
            **(more or {}),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_MASTER": "local[2]",
            "JAVA_TOOL_OPTIONS": " ".join(filter(None, [os.environ.get("JAVA_TOOL_OPTIONS"), QUICK_START])),
        }
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def finish(self) -> None:
        """Wait for its end; fails with what it said when it did not end well."""
        code = self.process.wait(FINISH_SECONDS_MAX)
        assert code == 0, self._log.read_text("utf-8", "replace")[-3000:]

    def stop(self) -> None:
        """SIGTERM. A program that is still starting gets it as soon as it handles it, for it would end without."""
        eventually(self._handles_sigterm, "the program does not handle SIGTERM", PATIENCE_SECONDS)
        self.process.send_signal(signal.SIGTERM)

    def _handles_sigterm(self) -> bool:
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        caught = int(re.findall(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def kill(self) -> None:
        """kill -9, the whole group. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_after(self, sign: Callable[[], object], seconds: float) -> bool:
        """Kill `seconds` after `sign` is first true; False when it had ended by itself before that."""
        pause = threading.Event()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and not sign():
            assert time.monotonic() < deadline, "no sign of work"
            pause.wait(0.01)
        pause.wait(seconds)
        if self.process.poll() is not None:
            self.finish()
            return False
        self.kill()
        return True
