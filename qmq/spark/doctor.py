"""Is everything here that the pipeline needs? One check after the other, each with what to do about it."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

JAVA_MIN: Final = 17
MEMORY_BYTES_MIN: Final = 2 << 30
PACKAGES: Final = {
    "pyspark": ((4, 2), (5,)),
    "pyarrow": ((18,), ()),
    "deltalake": ((1,), ()),
    "pandas": ((2, 2), (3,)),
}
"""From which version, and below which."""


class Check(NamedTuple):
    """`said`: what was found, or what is wrong and how to mend it."""

    name: str
    ok: bool
    said: str


def check_all() -> list[Check]:
    """Every check. None raises."""
    return [*_packages(), _java(), _python(), _memory()]


def _packages() -> Iterator[Check]:
    for name, (least, below) in PACKAGES.items():
        wanted = ".".join(map(str, least))
        try:
            text = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, False, f"is not installed: pip install 'qmq[spark]' ({name} >= {wanted})")
            continue
        version = _numbers(text)
        if version < least:
            yield Check(name, False, f"{text} is too old, {wanted} or newer is wanted: pip install -U 'qmq[spark]'")
        elif below and version >= below:
            limit = ".".join(map(str, below))
            yield Check(name, False, f"{text} is too new, below {limit} is wanted: pip install 'qmq[spark]'")
        else:
            yield Check(name, True, text)


def _java() -> Check:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    hint = f"install a Java runtime, {JAVA_MIN} or newer (Debian, Ubuntu: apt install default-jre-headless)"
    if program is None:
        return Check("java", False, f"there is none on the PATH and JAVA_HOME is not set: {hint}")
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("java", False, f"{program} does not run: {error}; {hint}")
    found = re.search(r'version "(\d+)', said)
    if found is None:
        return Check("java", False, f"{program} does not report its version: {said.strip()[:200]}")
    if int(found[1]) < JAVA_MIN:
        return Check("java", False, f"{program} is version {found[1]}: {hint}")
    return Check("java", True, f"{found[1]} ({program})")


def _python() -> Check:
    """Spark's workers take `python3` from the PATH unless PYSPARK_PYTHON says otherwise; our own jobs set it."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None:
        return Check("PYSPARK_PYTHON", True, f"not set; qmq's jobs use {sys.executable}")
    found = shutil.which(chosen)
    if found is None:
        return Check("PYSPARK_PYTHON", False, f"{chosen} is not there: unset it, or set it to {sys.executable}")
    code = "import pyarrow, qmq, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        run = subprocess.run([found, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("PYSPARK_PYTHON", False, f"{chosen} does not run: {error}; set it to {sys.executable}")
    if run.returncode:
        reason = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Check("PYSPARK_PYTHON", False, f"{chosen} cannot run the workers ({reason}): set it to {sys.executable}")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if run.stdout.strip() != here:
        other = run.stdout.strip()
        return Check("PYSPARK_PYTHON", False, f"{chosen} is Python {other}, this is {here}: both must be the same")
    return Check("PYSPARK_PYTHON", True, chosen)


def _memory() -> Check:
    try:
        facts = dict(re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii")))
        free = int(facts["MemAvailable"]) * 1024
    except (OSError, KeyError):
        return Check("memory", True, "the amount is unknown here")
    said = f"{free >> 20} MiB are available"
    if free < MEMORY_BYTES_MIN:
        return Check("memory", False, f"{said}; Spark on one machine wants {MEMORY_BYTES_MIN >> 20} MiB")
    return Check("memory", True, said)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
