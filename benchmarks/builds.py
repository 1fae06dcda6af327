"""The builds of a node that are measured beside other brokers: this tree, and its compiled copy if one was made."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page import DOCS
from qmq import __version__
from qmq.build import BUILD

ROOT = DOCS.parent
COMPILED = ROOT / "build" / "compiled"

NODE_FILE = """\
name = "bench"
data = "{data}"
[[stomp]]
address = "127.0.0.1:{stomp}"
[[{protocol}]]
address = "127.0.0.1:{port}"
"""


@dataclass(frozen=True, slots=True)
class Build:
    """`name` is that of a row; `tree` is the directory in which `command` starts."""

    name: str
    tree: Path

    def command(self, core: int, node_file: Path) -> Sequence[str]:
        """Serves that file on one core."""
        serve = [sys.executable, "-m", "qmq", "serve", "--config", str(node_file), "--log-level", "error"]
        return ["taskset", "-c", str(core), *serve]


def builds() -> Sequence[Build]:
    """This tree first; `make compiled` makes the second."""
    found = [Build(f"QMQ {__version__}, {BUILD}", ROOT)]
    if BUILD == "pure" and (COMPILED / ".made").exists():
        found.append(Build(f"QMQ {__version__}, compiled", COMPILED))
    return found
