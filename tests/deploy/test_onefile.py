"""The entry of dist/qmq.pyz, with a stand-in for QMQ: it unpacks once, and runs without an environment.

`make onefile` builds the file itself and tries it.
"""

import subprocess
import sys
import zipapp
from pathlib import Path

from tests.support.cluster_mesh import ROOT

PYTHON = f"py{sys.version_info[0]}{sys.version_info[1]}"
PROGRAM = """
import os, sys, part

def main(prog_name):
    print(prog_name, part.WORD, *sys.argv[1:], os.environ["PYTHONPATH"])
"""


def build(folder: Path, *pythons: str) -> Path:
    """A file with a module for all Pythons, and one for each."""
    files = {"all/qmq/__init__.py": "", "all/qmq/cli/__init__.py": PROGRAM, "build.txt": f"b1 {' '.join(pythons)}"}
    files |= {f"{python}/part.py": f"WORD = '{python}'\n" for python in pythons}
    files["__main__.py"] = (ROOT / ".ci" / "onefile_main.py").read_text("utf-8")
    for name, text in files.items():
        (folder / "zip" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "zip" / name).write_text(text, "utf-8")
    zipapp.create_archive(folder / "zip", folder / "qmq.pyz")
    return folder / "qmq.pyz"


def run(file: Path, home: Path) -> subprocess.CompletedProcess[str]:
    command = ["env", "-i", f"HOME={home}", sys.executable, str(file), "status"]
    return subprocess.run(command, cwd=file.parent, capture_output=True, text=True)


def test_it_is_unpacked_once_into_the_cache_and_run(tmp_path: Path) -> None:
    file = build(tmp_path, PYTHON, "py399")
    place = tmp_path / ".cache" / "qmq" / f"b1-{PYTHON}"

    first, second = run(file, tmp_path), run(file, tmp_path)

    assert first.stdout == second.stdout == f"qmq {PYTHON} status {place}\n", first.stderr
    assert [one.name for one in place.parent.iterdir()] == [place.name]


def test_without_a_cache_it_leaves_nothing(tmp_path: Path) -> None:
    file = build(tmp_path, PYTHON)

    ran = run(file, Path("/proc/none"))

    assert ran.returncode == 0, ran.stderr
    assert not Path(ran.stdout.split()[-1]).exists()


def test_another_python_is_refused_by_name(tmp_path: Path) -> None:
    ran = run(build(tmp_path, "py399"), tmp_path)

    assert (ran.returncode, ran.stderr) == (
        1,
        f"qmq: this file is for py399, and runs on {PYTHON}; install QMQ with pip instead\n",
    )
