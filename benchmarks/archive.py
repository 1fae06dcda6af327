"""Measure `qmq archive`, and write the figures into docs/benchmarks.md.

    python -m benchmarks.archive [--records 2000000] [--rounds 3] [--dry] [--only NAME,…]

Needs the extra qmq[archive], and no Java. Everything is made, read and removed in one temporary directory. Processor
seconds and memory are those of the whole process, its start included, as the system counts them (`wait4`); the best
round counts. A run of some figures (`--only`) replaces those in the table and leaves the others.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.spark import LAG_RATE, Row, read_command, write_log, write_page
from qmq.cli.throwaway import throwaway

MARKS: Final = ("<!-- figures of archive: written by benchmarks/archive.py -->", "<!-- end of figures of archive -->")
FIGURES: Final = ("load", "commit", "compact", "live")
LIVE_SECONDS: Final = 30
LIVE_EVERY: Final = 2


class Took(NamedTuple):
    cpu_seconds: float
    memory_mib: int

    @property
    def said(self) -> str:
        return f"{self.cpu_seconds:.1f} s of CPU, {self.memory_mib} MiB"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "qmq", *arguments]


def waited_for(process: "subprocess.Popen[Any]") -> Took:
    """Raises CalledProcessError when it fails."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return Took(used.ru_utime + used.ru_stime, used.ru_maxrss >> 10)


def took(*arguments: str) -> Took:
    return waited_for(subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL))


def measure(folder: Path, records: int, rounds: int, only: Collection[str]) -> Iterator[Row]:
    """The figures whose names are in `only`, one after the other."""
    log = folder / "log"
    if not {*only}.isdisjoint({"load", "compact"}):
        write_log(log, records)
        tables = [str(folder / f"table-{number}") for number in range(rounds)]
        best = min(took("archive", table, "--path", str(log), "--once") for table in tables)
        if "load" in only:
            rate = records / best.cpu_seconds / 1e6
            yield Row(f"load of {records / 1e6:g} M records", f"{rate:.2f} M rows a CPU second; {best.said}", "0.25 M")
        if "compact" in only:
            best = min(took("pipeline", "compact", table) for table in tables)
            name = f"`qmq pipeline compact` of {records / 1e6:g} M rows: sorted, one file"
            yield Row(name, f"{records / best.cpu_seconds / 1e6:.2f} M rows a CPU second; {best.said}", "–")
    if "commit" in only:
        write_log(folder / "small", 1000)
        small = [str(folder / f"small-table-{number}") for number in range(rounds)]
        best = min(took("archive", table, "--path", str(folder / "small"), "--once") for table in small)
        yield Row("`--once` of 1,000 records, start of the process included", best.said, "–")
    if "live" in only:
        yield _live(folder)


def _live(folder: Path) -> Row:
    """A service behind a node that takes messages at a rate."""
    with throwaway(folder, {}, None) as node, open(folder / "out", "w+", encoding="utf-8") as out:
        at = str(node.address)
        archive = ["archive", str(folder / "live-table"), "--servers", at, "--every", str(LIVE_EVERY), "--json"]
        service = subprocess.Popen(command(*archive), stdout=out, stderr=subprocess.DEVNULL)
        bench = ["bench", "latency", "--rate", str(LAG_RATE), "--seconds", str(LIVE_SECONDS), "--at", at]
        subprocess.run(command(*bench, "--destination", "/queue/lag"), check=False, capture_output=True)
        time.sleep(2 * LIVE_EVERY)
        service.send_signal(signal.SIGTERM)
        used = waited_for(service)
        out.seek(0)
        runs = [json.loads(line) for line in out]
    behind = max(run["behind_seconds"] or 0.0 for run in runs)
    rows = sum(run["rows"] for run in runs)
    return Row(
        f"service behind {LAG_RATE:,} records/s for {LIVE_SECONDS} s, `--every {LIVE_EVERY}`",
        f"at most {behind:.1f} s behind after a run; {rows / 1e6:.2f} M rows, {used.said}",
        "5 s, 400 MiB",
    )


def main() -> None:
    said = read_command("Measure the archive without Spark.", FIGURES, rounds=3)
    with tempfile.TemporaryDirectory(prefix="qmq-archive-") as folder:
        rows = []
        for row in measure(Path(folder), said.records, said.rounds, said.only):
            print(json.dumps(row._asdict(), ensure_ascii=False), flush=True)
            rows.append(row)
    if not said.dry:
        write_page(rows, MARKS, "python -m benchmarks.archive")


if __name__ == "__main__":
    main()
