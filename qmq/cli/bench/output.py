"""The output of `qmq bench`: the figures of a run as a line of JSON, a table, or a comparison with an earlier run."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from ... import __version__
from ...bench.compare import NotComparable, compare
from ...bench.plan import BenchPlan, Report, Value
from ...build import BUILD
from ..output import Failed, print_json, table
from .option_rules import APPLIES_TO


def facts(plan: BenchPlan, report: Report, pinned: bool) -> dict[str, Value]:
    """The figures and parameters of a run, in the order of the output."""
    return {
        "workload": plan.workload,
        **report.parameters,
        **({"seconds": plan.seconds} if plan.workload in APPLIES_TO["seconds"] else {}),
        **report.figures,
        "missing": report.missing,
        "extra": report.extra,
        "errors": report.errors,
        **({} if report.error is None else {"error": report.error}),
        "qmq": __version__,
        "build": BUILD,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "pinned": pinned,
    }


@dataclass(frozen=True, slots=True)
class Output:
    """Where the result of a run goes. `as_table` None: a table on a terminal, else one line of JSON."""

    as_table: bool | None
    file: Path | None
    earlier: Mapping[str, object] | None
    earlier_name: str = ""

    def write(self, found: Mapping[str, Value]) -> None:
        """Print it, and write it to `file`. Raises Failed if it cannot be written or compared."""
        if self.file is not None:
            try:
                self.file.write_text(json.dumps(found) + "\n", "utf-8")
            except OSError as error:
                print_json(found)  # the result of a run of minutes is not lost
                raise Failed(f"{self.file}: {error.strerror or error}") from error
        if self.earlier is not None:
            self._print_difference(found, self.earlier)
        elif sys.stdout.isatty() if self.as_table is None else self.as_table:
            for line in table(("figure", "value"), list(found.items())):
                click.echo(line)
        else:
            print_json(found)
        limits = [name for name, value in found.items() if name.endswith("limited_by") and value == "generator"]
        if limits:
            click.echo(f"the generator was the limit ({', '.join(limits)}): the node can do more than this", err=True)

    def _print_difference(self, found: Mapping[str, Value], earlier: Mapping[str, object]) -> None:
        try:
            differences = compare(earlier, found)
        except NotComparable as error:
            print_json(found)
            raise Failed(f"{self.earlier_name}: cannot be compared: {error}") from error
        rows = [
            (
                difference.name,
                f"{difference.before:,.10g}",
                f"{difference.now:,.10g}",
                "" if difference.ratio is None else f"{difference.ratio:.2f}",
                difference.better.value,
                difference.verdict,
            )
            for difference in differences
        ]
        for line in table(("figure", "before", "now", "ratio", "direction", "verdict"), rows):
            click.echo(line)


def read_run(path: Path) -> Mapping[str, object]:
    """The result that `--json` wrote. Raises Failed if the file is not one."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Failed(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise Failed(f"{path}: not JSON ({error})") from error
    if not isinstance(found, dict) or "workload" not in found:
        raise Failed(f"{path}: not a result of qmq bench: it has no workload")
    return found
