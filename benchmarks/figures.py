"""Results of runs, kept between them: a long measurement can be made in parts, on both builds, and shown as a whole.

One file of JSON beside the pages, in git with them: a figure on a page can be traced to its runs. A part that is
measured again replaces its own commands of its own build, and nothing else.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.page import DOCS

STORE = DOCS / "benchmarks" / "figures.json"
COUNTED = 3
"""How many of the runs count: the best, because other work on the machine only ever makes a run worse."""

Facts = Mapping[str, object]
BUILDS = ("pure", "compiled")


class Store:
    """Runs by build and command."""

    def __init__(self, path: Path = STORE) -> None:
        """What the file has; nothing where there is none. Raises ValueError when it is no such file."""
        self._path = path
        self._runs: dict[str, dict[str, list[Facts]]] = {}
        self._read()

    def runs(self, build: str, command: str) -> Sequence[Facts]:
        """Of that command; none where it was not measured."""
        return self._runs.get(build, {}).get(command, ())

    def put(self, build: str, command: str, runs: Sequence[Facts]) -> None:
        """In place of earlier ones, and written at once: what is measured is not lost when a later command fails.

        What another program has put meanwhile stays.
        """
        self._read()
        self._runs.setdefault(build, {})[command] = list(runs)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f" {json.dumps(build)}: {{\n"
            + ",\n".join(
                f"  {json.dumps(command)}: [\n   " + ",\n   ".join(map(json.dumps, runs)) + "\n  ]"
                for command, runs in sorted(commands.items())
            )
            + "\n }"
            for build, commands in sorted(self._runs.items())
        ]
        self._path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")

    def _read(self) -> None:
        if self._path.exists():
            self._runs = json.loads(self._path.read_text("utf-8"))

    def middle(self, build: str, command: str, figure: str, more_is_better: bool) -> Facts | None:
        """Of the best COUNTED runs, the one in the middle by `figure`; of two the worse one."""
        runs = self.runs(build, command)
        if not runs:
            return None
        best_first = sorted(runs, key=lambda facts: number(facts, figure), reverse=more_is_better)[:COUNTED]
        return best_first[len(best_first) // 2]


def number(facts: Facts, name: str) -> float:
    """A figure of a run. Raises KeyError or TypeError when it has none."""
    value = facts[name]
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}")
    return value
