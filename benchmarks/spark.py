"""Measure the data pipeline against native Parquet of the same data, and write the figures into docs/benchmarks.md.

    python -m benchmarks.spark [--records 2000000] [--rounds 6] [--dry] [--only NAME,…]

Needs the extra qmq[spark] and Java. Everything is made, read and removed in one temporary directory: a log of records
of 200 bytes, the same rows as Parquet (zstd) written by Spark, indexes of a hundred million records. CPU seconds are
those of this process, its JVM and Spark's Python workers together, from /proc; the best round counts, because others
on the machine only ever make one worse. A run of some figures (`--only`) replaces those in the table and leaves the
others.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from qmq.cli.throwaway import throwaway

PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"
MARKS: Final = ("<!-- figures of spark: written by benchmarks/spark.py -->", "<!-- end of figures of spark -->")
BODY_BYTES: Final = 100
PER_BATCH: Final = 64
AUDIT_RECORDS: Final = 100_000_000
LAG_RATE: Final = 20_000
HISTORIES: Final = ((1, 95, "80 %"), (5, 95, "80 %"), (5, 99, "95 %"))
"""How many times as many records as asked for, how many percent of them are in the archive, and the aim. What a history
costs before it reads a record hardly grows with them. The other records come from the log."""
FIGURES: Final = ("decode", "scan", "history", "full", "archive", "audit", "live")
OF_LOG: Final = ("decode", "scan", "full", "archive")
BESIDE_PARQUET: Final = ("scan", "full")
TURNS_PER_ROUND: Final = 3
"""Of what is compared by CPU. Up to about the tenth turn the JVM compiles, and each query takes less than the last."""


class Row(NamedTuple):
    """One line of the table."""

    name: str
    figure: str
    aim: str


class Took(NamedTuple):
    wall: float
    cpu: float


def tree_cpu_seconds() -> float:
    """CPU of this process and of all below it, also of those that have ended."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        used[int(entry.name)] = sum(map(int, fields[11:15])) / ticks
    mine = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        if not more:
            return sum(used[pid] for pid in mine if pid in used)
        mine |= more


def timed(work: Callable[[], object], rounds: int) -> Took:
    """The round with the least wall time."""
    return min(_took(work) for _ in range(rounds))


def timed_in_turn(ours: Callable[[], object], native: Callable[[], object], turns: int) -> tuple[Took, Took]:
    """Of the later half of the turns, once the JVM is warm for both: the least wall time, and the median of CPU."""
    found = [(_took(ours), _took(native)) for _ in range(turns)][turns // 2 :]
    return _middle([mine for mine, _ in found]), _middle([other for _, other in found])


def _middle(rounds: Sequence[Took]) -> Took:
    return Took(min(took.wall for took in rounds), median(took.cpu for took in rounds))


def _took(work: Callable[[], object]) -> Took:
    wall, cpu = time.monotonic(), tree_cpu_seconds()
    work()
    return Took(time.monotonic() - wall, tree_cpu_seconds() - cpu)


def write_log(root: Path, records: int) -> None:
    """A data directory of one node: JSON bodies, seven destinations, fifty header blocks."""
    from qmq.model.dots import Origin
    from qmq.storage.format.batch import BatchHead, encode_batch, verify_batch
    from qmq.storage.format.record import pack_envelope, pack_record
    from qmq.storage.format.segment import JOURNAL, encode_footer, encode_head, make_footer, segment_name

    origin = Origin("a", 0xA1)
    start_us = 1_760_000_000_000_000
    envelopes = [
        pack_envelope(f"/queue/jobs.{n % 7}", b"content-type:application/json\nshop:%d\n" % n) for n in range(50)
    ]
    directory = root / "journal"
    directory.mkdir(parents=True)
    base, sequence = 0, 1
    while sequence <= records:
        head = encode_head(base, JOURNAL, "a", start_us, {origin: sequence - 1} if sequence > 1 else {})
        placed: list[tuple[int, BatchHead, bytes]] = []
        offset = len(head)
        while sequence <= records and offset < 64 << 20:
            count = min(PER_BATCH, records - sequence + 1)
            packed = [
                pack_record(n, start_us + n * 50, 1, 0, envelopes[n % 50], _body(n))
                for n in range(sequence, sequence + count)
            ]
            last = sequence + count - 1
            data = encode_batch(origin, packed, sequence, last, start_us + sequence * 50, start_us + last * 50)
            placed.append((offset, verify_batch(data), data))
            offset += len(data)
            sequence += count
        with open(directory / segment_name(base), "wb") as file:
            file.write(head)
            file.writelines(data for _, _, data in placed)
            file.write(encode_footer(make_footer(offset, placed)))
        base += offset


def _body(number: int) -> bytes:
    facts = (number, number * 7919 % 100_003, number % 977)
    return (b'{"order": %d, "customer": "c%d", "total": %d.5, "s":"' % facts).ljust(BODY_BYTES - 2, b"x") + b'"}'


def write_indexes(root: Path, records: int) -> list[str]:
    """Three data directories with indexes of so many records each; the batches themselves are holes in the files."""
    from qmq.model.dots import Origin
    from qmq.storage.format.segment import JOURNAL, BatchEntry, Footer, encode_footer, encode_head, segment_name

    size = PER_BATCH * 200 + 352
    origins = [Origin(name, 7) for name in "abc"]
    for node in "abc":
        directory = root / node / "journal"
        directory.mkdir(parents=True)
        have = dict.fromkeys(origins, 0)
        base, left = 0, records // PER_BATCH
        while left:
            count = min(left, (64 << 20) // size)
            left -= count
            head = encode_head(base, JOURNAL, node, 1, {origin: last for origin, last in have.items() if last})
            offset = len(head)
            entries: list[BatchEntry] = []
            ranges: dict[Origin, list[tuple[int, int]]] = {}
            for number in range(count):
                origin = origins[number % 3]
                first, last = have[origin] + 1, have[origin] + PER_BATCH
                have[origin] = last
                entries.append(BatchEntry(offset, origin, first, last, PER_BATCH, 1_000_000, 1_000_001))
                known = ranges.setdefault(origin, [(first, last)])
                known[-1] = (known[-1][0], last)
                offset += size
            kinds = {(origin, 1): count * PER_BATCH // 3 for origin in ranges}
            footer = encode_footer(Footer(offset, entries, kinds, {"/queue/x": (count * PER_BATCH, 1)}, ranges))
            with open(directory / segment_name(base), "wb") as file:
                file.write(head)
                file.truncate(offset)
                file.seek(offset)
                file.write(footer)
            base += offset
        # Nobody believes an index of the last segment, for a node never seals that one.
        (directory / segment_name(base)).write_bytes(encode_head(base, JOURNAL, node, 1, have))
    return [str(root / node) for node in "abc"]


def decode_alone(log: str) -> float:
    """All columns of every record, in this process and without Spark; returns the CPU seconds of this process."""
    from qmq.spark.reading.options import read_options
    from qmq.spark.reading.partitions import rows_of_part
    from qmq.spark.reading.place import open_place

    options = read_options({"path": log})
    place = open_place(options)
    columns = ["origin", "sequence", "timestamp", "destination", "priority", "body"]
    parts = place.plan({}, place.available(), strict=False)
    began = time.process_time()
    for part in parts:
        for _ in rows_of_part(part, options, columns):
            pass
    return time.process_time() - began


def measure(spark: Any, folder: Path, records: int, rounds: int, only: Collection[str]) -> Iterator[Row]:
    """The figures whose names are in `only`, one after the other."""
    from pyspark.sql import functions as f

    from qmq.spark import history
    from qmq.spark.archive.files import PARTITION
    from qmq.spark.jobs import archive as archives
    from qmq.spark.jobs.audit import audit
    from qmq.spark.reading.logs import DataDirectory
    from qmq.spark.reading.options import read_options

    log, parquet = str(folder / "log"), str(folder / "rows.parquet")

    def of_log(columns: str, log: str = log) -> Any:
        return spark.read.format("qmq").options(path=log, columns=columns).load()

    all_columns = "origin,sequence,timestamp,destination,priority,body"

    def write_parquet(log: str, parquet: str) -> None:
        of_log(all_columns, log).write.option("compression", "zstd").parquet(parquet)

    if not {*only}.isdisjoint(OF_LOG):
        write_log(Path(log), records)
    if not {*only}.isdisjoint(BESIDE_PARQUET):
        write_parquet(log, parquet)

    if "decode" in only:
        seconds = min(decode_alone(log) for _ in range(rounds))
        yield Row("decode alone, six columns, one core", f"{records / seconds / 1e6:.2f} M records/s", "2.5 M")
    three = "destination,sequence,timestamp"

    def aggregate(frame: Any) -> None:
        frame.groupBy("destination").agg(f.max("sequence"), f.max("timestamp")).collect()

    def beside_parquet(
        name: str, ours: Callable[[], Any], aim: str, parquet: str = parquet, records: int = records
    ) -> Row:
        took, native = timed_in_turn(
            lambda: aggregate(ours()),
            lambda: aggregate(spark.read.parquet(parquet).select(*three.split(","))),
            rounds * TURNS_PER_ROUND,
        )
        return Row(
            name,
            f"{records / took.wall / 1e6:.2f} M rows/s, {took.cpu / records * 1e6:.2f} µs of CPU per row; Parquet "
            f"{native.cpu / records * 1e6:.2f} µs: {100 * native.cpu / took.cpu:.0f} % of it per CPU second",
            aim,
        )

    if "scan" in only:
        yield beside_parquet("scan, three columns", lambda: of_log(three), "1.5 M")
    if "history" in only:
        for times, percent, aim in HISTORIES:
            place = folder / f"history-{times}-{percent}"
            whole, early, archived = (str(place / name) for name in ("log", "early", "archived"))
            write_log(Path(whole), times * records)
            write_parquet(whole, str(place / "rows"))
            write_log(Path(early), times * records * percent // 100)
            archives.archive(spark, read_options({"path": early}), archived)
            shutil.rmtree(early)
            yield beside_parquet(
                f"history, three columns, {times * records / 1e6:g} M records, {percent} % in the archive",
                partial(history, spark, archived, path=whole, columns=three),
                aim,
                str(place / "rows"),
                times * records,
            )
            shutil.rmtree(place)
    if "full" in only:
        ours = timed(lambda: of_log(all_columns).write.format("noop").mode("overwrite").save(), rounds)
        native = timed(lambda: spark.read.parquet(parquet).write.format("noop").mode("overwrite").save(), rounds)
        yield Row(
            "scan, six columns",
            f"{records / ours.wall / 1e6:.2f} M rows/s (Parquet {records / native.wall / 1e6:.2f} M)",
            "–",
        )
    if "archive" in only:
        table = str(folder / "table")

        def archive_anew() -> None:
            shutil.rmtree(table, ignore_errors=True)
            archives.archive(spark, read_options({"path": log}), table)

        def copy() -> None:
            rows = archives.read_archive(spark, table).drop(PARTITION)
            rows.write.option("compression", "zstd").mode("overwrite").parquet(str(folder / "copy"))

        ours, native = timed(archive_anew, rounds), timed(copy, rounds)
        yield Row(
            "archive, with headers",
            f"{records / ours.wall / 1e6:.2f} M rows/s (Spark copying its rows from Parquet to Parquet: "
            f"{records / native.wall / 1e6:.2f} M)",
            "0.6 M, and faster than the copy",
        )
    if "audit" in only:
        nodes = write_indexes(folder / "indexes", AUDIT_RECORDS)
        took = timed(lambda: audit([DataDirectory(path) for path in nodes]), rounds)
        yield Row("audit of three nodes with 100 M records each, by their indexes", f"{took.wall:.1f} s", "10 s")
        shutil.rmtree(folder / "indexes")
    if "live" in only:
        yield from _live(spark, folder)


def _live(spark: Any, folder: Path) -> Iterator[Row]:
    """A stream from a node that is being published to, and an archive run of an idle one."""
    from qmq.spark.jobs import archive as archives
    from qmq.spark.reading.options import read_options

    with throwaway(folder, {}, None) as node:
        address = str(node.address)
        stream = spark.readStream.format("qmq").options(servers=address, columns="timestamp,sequence").load()
        lags: list[float] = []

        def note(batch: Any, _: int) -> None:
            newest = batch.agg({"timestamp": "max"}).collect()[0][0]
            if newest is not None:
                lags.append(time.time() - newest.timestamp())

        query = stream.writeStream.foreachBatch(note).option("checkpointLocation", str(folder / "lag")).start()
        bench = [sys.executable, "-m", "qmq", "bench", "latency", "--rate", str(LAG_RATE), "--seconds", "20"]
        subprocess.run([*bench, "--at", address, "--destination", "/queue/lag"], check=False, stdout=subprocess.DEVNULL)
        query.stop()
        steady = sorted(lags[len(lags) // 3 :])
        if steady:
            yield Row(
                f"a stream behind {LAG_RATE:,} records/s, at the end of each micro-batch, no trigger",
                f"median {steady[len(steady) // 2]:.2f} s, most {steady[-1]:.2f} s",
                "1 s",
            )
        table = str(folder / "idle")
        archives.archive(spark, read_options({"servers": address}), table)
        took = timed(lambda: archives.archive(spark, read_options({"servers": address}), table), 3)
        yield Row("archive run of an idle node, Spark running", f"{took.wall:.2f} s", "10 s in all")


def write_page(rows: list[Row], marks: tuple[str, str], command: str) -> None:
    """Replace these rows in the table between the marks; those that were not measured stay."""
    text = PAGE.read_text("utf-8")
    begin, end = text.index(marks[0]) + len(marks[0]), text.index(marks[1])
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text[begin:end].splitlines() if "|" in line]
    known = {row[0]: Row(*row) for row in cells[2:]}
    known.update({row.name: row for row in rows})
    lines = ["", f"`{command}`; 2 cores, shared.", "", "| what | measured | aim |", "|---|---|---|"]
    lines += [f"| {row.name} | {row.figure} | {row.aim} |" for row in known.values()]
    PAGE.write_text(text[:begin] + "\n".join(lines) + "\n" + text[end:], "utf-8")


def read_command(about: str, figures: Collection[str], *, rounds: int) -> argparse.Namespace:
    """The command line: `records`, `rounds`, `only`, which are names of figures, and `dry`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--only", default=",".join(figures), help="which figures, with commas: %(default)s")
    parser.add_argument("--dry", action="store_true", help="print only, leave docs/benchmarks.md alone")
    said = parser.parse_args()
    said.only = said.only.split(",")
    if wrong := {*said.only} - {*figures}:
        parser.error(f"there is no {', '.join(sorted(wrong))}; there are {', '.join(figures)}")
    return said


def main() -> None:
    said = read_command("Measure the data pipeline.", FIGURES, rounds=6)
    from qmq.spark.session import running

    with tempfile.TemporaryDirectory(prefix="qmq-spark-") as folder, running("benchmark") as spark:
        rows = []
        for row in measure(spark, Path(folder), said.records, said.rounds, said.only):
            print(json.dumps(row._asdict()), flush=True)
            rows.append(row)
    if not said.dry:
        write_page(rows, MARKS, "python -m benchmarks.spark")


if __name__ == "__main__":
    main()
