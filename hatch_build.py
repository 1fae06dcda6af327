"""The build hook of the wheel: pure Python, or with QMQ_BUILD=compiled the hot modules compiled as well.

Compiling takes minutes, so it is asked for; where it cannot be done the build fails and says why. An editable install
is always pure Python: it runs the files that are being edited.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILE_SECONDS_MAX = 1200
COMPILER = "mypy[mypyc]>=2.4,<3"
CHOICES = ("pure", "compiled")


# The hook is loaded by its path, so its neighbour has to be as well.
sys.path.insert(0, str(Path(__file__).parent))
try:
    import native
finally:
    del sys.path[0]


def wanted() -> str:
    """QMQ_BUILD, checked."""
    choice = os.environ.get("QMQ_BUILD") or "pure"
    if choice not in CHOICES:
        raise ValueError(f"QMQ_BUILD={choice}: must be pure, which is the default, or compiled")
    return choice


class CompileHook(BuildHookInterface):
    """Adds the extension modules to a standard wheel, and leaves out what they replace (`native.TYPES_OF_CLIENTS`)."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [COMPILER] if wanted() == "compiled" and native.obstacle() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if wanted() != "compiled" or version == "editable":
            return
        missing = native.obstacle()
        if missing is None:
            self._copy = tempfile.mkdtemp(prefix="qmq-compile-")
            missing = self._compile(Path(self._copy))
        if missing is not None:
            self._remove_copy()
            raise RuntimeError(f"QMQ_BUILD=compiled, but {missing}")
        found = [path.relative_to(self._copy) for path in Path(self._copy).rglob("*.so")]
        build_data["force_include"].update({str(Path(self._copy, path)): str(path) for path in found})
        sources = [path.with_name(path.name.partition(".")[0] + ".py") for path in found if path.parent.name]
        unused = [f"/{path}" for path in sources if path.parts[1] not in native.TYPES_OF_CLIENTS]
        self.build_config.target_config.setdefault("exclude", []).extend(unused)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._remove_copy()

    def _remove_copy(self) -> None:
        if hasattr(self, "_copy"):
            shutil.rmtree(self._copy)

    def _compile(self, copy: Path) -> str | None:
        """Why it failed, or None. In a process of its own: mypyc leaves the one in which it finds a mistake."""
        shutil.copytree(Path(self.root, "qmq"), copy / "qmq", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        command = [sys.executable, str(Path(self.root, "native.py")), str(copy)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False)
        except subprocess.TimeoutExpired:
            return f"compiling took more than {COMPILE_SECONDS_MAX} seconds"
        if done.returncode:
            return "compiling failed:\n" + (done.stdout + done.stderr)[-2000:]
        return None
