"""One mutant in a copy of the checkout, and the tests that may notice it: the nearest first, the widest last."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutants import Mutant, apply

PACKAGES = (
    "broker",
    "storage",
    "replication",
    "wire",
    "gateways",
    "engine",
    "mesh",
    "settings",
    "sessions",
    "admin",
    "protocols",
    "node",
)
COPIED = ("qmq", "tests", "docs", "cluster", "benchmarks", "pyspark_qmq", ".ci")
COPIED_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "native.py", "hatch_build.py")
UNIT = ("tests", *(f"--ignore=tests/{name}" for name in ("simulation", "cluster", "spark", "nemesis", "mutation")))
SEEDS = ("tests/simulation/test_seeds.py",)


class Verdict(NamedTuple):
    """`by` names the first test that was red, or says that the tests did not end. None: nothing noticed."""

    path: str
    mutant: Mutant
    before: str
    by: str | None


class Copy:
    """A copy of the checkout below `folder`; one mutant at a time is put into it."""

    def __init__(self, checkout: Path, folder: Path, seconds_max: float, seeds: int) -> None:
        self._root = folder
        self._seconds_max = seconds_max
        self._environment = {**os.environ, "QMQ_SEEDS": str(seeds), "PYTHONDONTWRITEBYTECODE": "1"}
        shutil.rmtree(folder, ignore_errors=True)
        skip = shutil.ignore_patterns("__pycache__", "*.so")
        for name in COPIED:
            shutil.copytree(checkout / name, folder / name, ignore=skip)
        for name in COPIED_FILES:
            shutil.copy(checkout / name, folder / name)

    def sources(self) -> dict[str, str]:
        """The modules that mutants are drawn from, by path."""
        paths = sorted(path for package in PACKAGES for path in (self._root / "qmq" / package).rglob("*.py"))
        return {str(path.relative_to(self._root)): path.read_text("utf-8") for path in paths}

    def judge(self, path: str, source: str, mutant: Mutant) -> Verdict:
        """Run the tests stage by stage until one is red."""
        place = self._root / path
        place.write_text(apply(source, mutant), "utf-8")
        try:
            reds = (self.first_red(stage) for stage in self._stages(path))
            by = next((red for red in reds if red is not None), None)
        finally:
            place.write_text(source, "utf-8")
        return Verdict(path, mutant, source[mutant.start : mutant.end], by)

    def first_red(self, tests: tuple[str, ...]) -> str | None:
        """The first of `tests` that fails, with its file; None when all pass."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
        running = subprocess.Popen(
            command,
            cwd=self._root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = running.communicate(timeout=self._seconds_max)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            return "the tests do not end"
        if running.returncode == 0:
            return None
        lines = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return lines[0].split(" - ")[0] if lines else f"pytest ends with {running.returncode}"

    def _stages(self, path: str) -> list[tuple[str, ...]]:
        package = path.split("/")[1]
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        names = (f"from {module} import", f"import {module}", f"from {module.rpartition('.')[0]} import")
        near = [
            str(file.relative_to(self._root))
            for file in sorted((self._root / "tests").rglob("test_*.py"))
            if file.parent.name in {*PACKAGES, "tests", "selectors"}
            and any(name in file.read_text("utf-8") for name in names[: 2 if module.count(".") > 1 else 3])
        ]
        return [*([tuple(near)] if near else []), (f"tests/{package}",), UNIT, SEEDS]
