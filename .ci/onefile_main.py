"""The entry of dist/qmq.pyz: unpacks QMQ for this Python once, into the cache of the user, and runs it.

Extension modules cannot be imported from a zip. The folder is named after the contents, so another build has another
one. Where the cache cannot be written, it is a temporary folder, which goes when the command ends.
"""

import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path


def unpacked(archive: Path, build: str, parts: tuple[str, ...]) -> Path:
    """The folder with these parts of the archive."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "qmq")
    place = cache / f"{build}-{parts[-1]}"
    if place.is_dir():
        return place
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=cache))
    except OSError:
        made = place = Path(tempfile.mkdtemp(prefix="qmq-"))
    with zipfile.ZipFile(archive) as zipped:
        for part in parts:
            for name in zipped.namelist():
                if name.startswith(f"{part}/") and not name.endswith("/"):
                    target = made / name.removeprefix(f"{part}/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(zipped.read(name))
    if made != place:
        try:
            made.rename(place)
        except OSError:  # Another process was faster.
            shutil.rmtree(made)
    return place


def main() -> None:
    archive = Path(__file__).parent
    with zipfile.ZipFile(archive) as zipped:
        build, *pythons = zipped.read("build.txt").decode().split()
    python = f"py{sys.version_info[0]}{sys.version_info[1]}"
    if python not in pythons:
        sys.exit(f"qmq: this file is for {', '.join(pythons)}, and runs on {python}; install QMQ with pip instead")
    place = unpacked(archive, build, ("all", python))
    # Nodes that a command starts are processes of this Python.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))
    sys.path.insert(0, str(place))
    from qmq.cli import main as command

    try:
        command(prog_name="qmq")
    finally:
        if place.parent.name != "qmq":
            shutil.rmtree(place, ignore_errors=True)


main()
