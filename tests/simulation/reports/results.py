"""The reports of a long run as lines of JSON: a run that was stopped goes on where it was, and loses nothing.

Only what the table says and what is wrong is kept; a seed shows the rest when it is run again, on the same commit.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tests.simulation.plan import Family, draw_plan
from tests.simulation.run import Report

KEPT = (
    "digest",
    "wrongs",
    "sent",
    "receipted",
    "excused",
    "lives",
    "takeovers",
    "redelivered",
    "acks",
    "again",
    "quorum_acks",
    "quorum_again",
    "settled_seconds",
)


class Results:
    """Those in the file at `path`, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, report: Report) -> None:
        """Append one line."""
        line = {
            "seed": report.seed,
            "family": report.plan.family.name,
            "size": report.plan.size,
            **{name: getattr(report, name) for name in KEPT},
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def __iter__(self) -> Iterator[Report]:
        if not self._path.exists():
            return
        for text in self._path.read_text().splitlines():
            line = json.loads(text)
            plan = draw_plan(line["seed"], Family[line["family"]], size=line.get("size", 0))
            # A line of an earlier commit lacks what is counted only since.
            yield Report(line["seed"], plan, **{name: line[name] for name in KEPT if name in line})
