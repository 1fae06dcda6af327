"""Measure what docs/benchmarks.md and docs/growth.md show, part by part, and write their tables and plots.

    python -m benchmarks.run [PART …] [--rounds 3] [--full] [--machine TEXT]
    python -m benchmarks.run --list
    python -m benchmarks.run page          write the pages again from what is stored

Each part takes some minutes and can be run alone, today on one build and tomorrow on the other: runs are kept in
docs/benchmarks/figures.json (`figures`), the pages are made of that (`tables`). Every command runs with a throwaway
node, several times, round by round; of the best three the one in the middle counts, because other work on the machine
only ever makes a run worse. A run that misses messages stops everything: a wrong figure must not be written.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks import growth
from benchmarks.figures import Facts, Store
from benchmarks.others import OTHERS, RABBITMQ, Other, started
from benchmarks.rows import COMPARED, CONSOLE, DEFINITIONS, GROWTH, SPEED, WEB, WEB_COMPARED, Row, held
from benchmarks.tables import COUNTS, write_pages
from qmq.build import BUILD
from qmq.cli.bench.target import cores
from qmq.cli.throwaway import exit_on_signals

RUN_SECONDS_MAX = 1800
STOP_SECONDS = 60.0
"""For a run that is asked to stop, and its node."""
WARMUP_SECONDS = 3.0
"""Of brokers that compile themselves while they run; for QMQ beside them the same."""

Run = Callable[[Row], Facts]


def parts_of(full: bool) -> Mapping[str, Sequence[Row]]:
    """Part → its rows; of those that measure this node alone."""
    lines = {part: [line.row(n) for line in lines for n in line.sizes] for part, (_, lines) in GROWTH.items()}
    return {**SPEED, **held(full), **WEB, **DEFINITIONS, **CONSOLE, **lines}


def names_of_parts() -> list[str]:
    return [*parts_of(False), "others", "growth", "page"]


def measure(store: Store, rows: Sequence[Row], rounds: int, run: Run, build: str) -> None:
    """Every command of `rows`, `rounds` times, and keep it."""
    commands = {row.command: row for row in rows}
    runs: dict[str, list[Facts]] = {command: [] for command in commands}
    # Round by round, so that a noisy minute of the machine does not hit all runs of one row.
    for _ in range(rounds):
        for command, row in commands.items():
            runs[command].append(run(row))
    for command, found in runs.items():
        store.put(build, command, found)


def command_of(row: Row, seconds: float) -> list[str]:
    """With a throwaway node."""
    words = row.command.split()
    command = [sys.executable, *(words[1:] if words[0] == "python" else ["-m", *words, "--line"])]
    return [*command, "--seconds", str(seconds)] if row.has_length else command


def command_at(row: Row, seconds: float, other: Other, address: object, pid: int, core: tuple[int, int]) -> list[str]:
    """The same load at another broker."""
    where = ["--server", str(address), "--dialect", other.dialect, *other.options.split(), "--pid", str(pid)]
    pinned = ["--cores", f"{core[0]},{core[1]}", "--line", "--seconds", str(seconds), "--warmup", str(WARMUP_SECONDS)]
    return [sys.executable, "-m", "qmq", "bench", *row.arguments.split(), *where, *pinned]


def result_of(command: Sequence[str]) -> Facts:
    """Run it once. Ends the program when it fails."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, complained = process.communicate(timeout=RUN_SECONDS_MAX)
    except BaseException:
        process.terminate()  # not killed: its own node goes with it
        process.wait(STOP_SECONDS)
        raise
    if process.returncode:
        sys.exit(f"{' '.join(command)}: {complained.strip()}\n{said.strip()}")
    print(said.strip(), flush=True)
    facts = json.loads(said)
    assert isinstance(facts, dict)
    return facts


def measure_others(store: Store, rounds: int, seconds: float, machine: str) -> None:
    """QMQ and every other broker that is installed, one after the other in each round."""
    core = cores()
    installed = []
    for other in OTHERS:
        if other.is_installed():
            installed.append(other)
        else:
            print(f"{other.name} is not installed and is left out (apt-get install {other.package})", flush=True)
    runs: dict[tuple[str, str], list[Facts]] = {}
    for _ in range(rounds):
        for row in COMPARED:
            facts = result_of([*command_of(row, seconds), "--warmup", str(WARMUP_SECONDS)])
            runs.setdefault((BUILD, row.command), []).append({**facts, "machine": machine})
        for other in installed:
            with started(other, core[0]) as (address, pid):
                for row in COMPARED:
                    facts = result_of(command_at(row, seconds, other, address, pid, core))
                    about = {"broker": other.version, "machine": machine}
                    runs.setdefault((other.name, row.command), []).append({**facts, **about})
    for (name, command), found in runs.items():
        store.put(name, command, found)


def measure_web_of_rabbitmq(store: Store, rounds: int, seconds: float, machine: str) -> None:
    """The loads of the web port that its plugins have."""
    if not RABBITMQ.is_installed():
        print(f"RabbitMQ is not installed and is left out (apt-get install {RABBITMQ.package})", flush=True)
        return

    def run(row: Row) -> Facts:
        return {**result_of([*command_of(row, seconds), "--rabbitmq"]), "machine": machine}

    measure(store, WEB_COMPARED, rounds, run, RABBITMQ.name)


def count_growth(store: Store, most: int) -> None:
    """Work of every case for every n up to `most`: the same wherever it is counted, on the pure build."""
    if BUILD != "pure":
        sys.exit("work is counted in bytecodes: run it on the pure build")
    for case in growth.CASES:
        found = list(_counted(case, most))
        store.put(COUNTS, case.action, found)


def _counted(case: growth.Case, most: int) -> Iterator[Facts]:
    for n in growth.sizes(min(case.most, most)):
        work = case.work(n)
        print(f"{case.action}, n = {n:,}: {work.steps:,} bytecodes, {work.bytes:,} bytes", flush=True)
        yield {"n": n, "steps": work.steps, "bytes": work.bytes}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure; all when left out")
    parser.add_argument("--list", action="store_true", help="name the parts")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command; more where others use the machine")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured seconds of each run")
    parser.add_argument(
        "--full", action="store_true", help="backlog, queues, subscriptions: as many as the aims are about"
    )
    parser.add_argument("--most", type=int, default=1_000_000, help="growth: the largest n that is counted")
    parser.add_argument("--machine", default=f"{os.cpu_count()} cores ({platform.machine()})", help="how to name it")
    parser.add_argument("--dry", action="store_true", help="print the results, keep and write nothing")
    options = parser.parse_args(arguments)
    known = names_of_parts()
    if options.list:
        print("\n".join(known))
        return
    for part in options.parts:
        if part not in known:
            parser.error(f"there is no part {part!r}; there are {', '.join(known)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    store = Unkept() if options.dry else Store()
    exit_on_signals()
    rows = parts_of(options.full)

    def run(row: Row) -> Facts:
        return {**result_of(command_of(row, options.seconds)), "machine": options.machine}

    for part in options.parts or known:
        if part == "others":
            measure_others(store, options.rounds, options.seconds, options.machine)
        elif part == "growth":
            count_growth(store, options.most)
        elif part != "page":
            measure(
                store, [row for row in rows[part] if BUILD == "pure" or not row.is_pure], options.rounds, run, BUILD
            )
            if part == "web":
                measure_web_of_rabbitmq(store, options.rounds, options.seconds, options.machine)
        if not options.dry:
            write_pages(store)


class Unkept(Store):
    """For a dry run."""

    def put(self, build: str, command: str, runs: Sequence[Facts]) -> None:
        return


if __name__ == "__main__":
    main()
