"""Histories that are drawn, and cut off anywhere: after each step the table has what it says, each message once.

Nodes join and leave, are behind each other, and have clocks that differ by months. Retention overtakes the archive. A
run, a compaction or a registration with Iceberg is killed at a drawn moment. Another archiver, or a compaction, comes
first at the moment of a commit. `SEED=N` gives the first seed of a run that failed.
"""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from qmq.model.dots import Origin, Vector
from qmq.spark.archive import archiver as archivers
from qmq.spark.archive import files, upkeep
from qmq.spark.archive import iceberg as icebergs
from qmq.spark.archive import table as tables
from qmq.spark.archive.archiver import Archiver
from qmq.spark.archive.files import DayFile
from qmq.spark.archive.table import ArchiveError, Overtaken, open_table, table_vector
from qmq.spark.archive.upkeep import compact, vacuum
from qmq.spark.reading.options import read_options
from qmq.spark.reading.plan import DataLoss
from tests.spark.archive.test_iceberg import NAME, catalog, registered
from tests.spark.kills import KILLS, SEED
from tests.spark.rig import START_US, Journal, batch, node, record

__all__ = ["catalog"]
STEPS = 60
DAY_US = 24 * 3600 * 1_000_000
MOMENTS_MAX = 12
"""Of a run that may be killed: so many files, row groups and commits, and it lives."""

Key = tuple[str, int]
"""Of a message: its origin and sequence."""


class Killed(BaseException):
    """The process is gone."""


class Killer:
    """Counts the moments at which a process may end, and lets others come first at a commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.rival: Callable[[], object] | None = None
        self.is_dead = False
        remove = files.remove
        monkeypatch.setattr(files, "remove", lambda *said: None if self.is_dead else remove(*said))
        for place, name in (
            (DayFile, "write"),
            (DayFile, "finish"),
            (tables, "_commit_once"),
            (upkeep, "replace"),
            (icebergs.IcebergTable, "_register_once"),
        ):
            monkeypatch.setattr(place, name, self._counted(getattr(place, name), lets=name == "_commit_once"))

    def _counted(self, work: Callable[..., Any], *, lets: bool) -> Callable[..., Any]:
        def counted(*said: Any, **more: Any) -> Any:
            self._moment()
            rival, self.rival = (None, self.rival) if not lets else (self.rival, None)
            if rival is not None:
                rival()
            found = work(*said, **more)
            self._moment()
            return found

        return counted

    def _moment(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.is_dead = True
                raise Killed

    def kills(self, work: Callable[[], object], moments: int | None) -> bool:
        """Whether `work` was killed."""
        self.left, self.is_dead = moments, False
        try:
            work()
            return False
        except Killed:
            return True
        finally:
            self.left, self.is_dead = None, False


class Node:
    """A data directory, what it holds, and what it has not got yet."""

    def __init__(self, root: Path, name: str, incarnation: int, skew_us: int) -> None:
        self.origin = Origin(name, incarnation)
        self.path = root / name
        self.skew_us = skew_us
        self.vector: Vector = {}
        self.segments: list[tuple[Path, list[tuple[Origin, int, int]]]] = []
        self.behind: list[tuple[Origin, int, int, bytes]] = []
        self._journal: Journal = node(root, name)

    def catch_up(self, batches: int) -> None:
        now, self.behind = self.behind[:batches], self.behind[batches:]
        if now:
            path = self._journal.segment([data for *_, data in now], dict(self.vector))
            self.segments.append((path, [(origin, first, last) for origin, first, last, _ in now]))
            self.vector.update({origin: last for origin, _, last, _ in now})

    def drop_oldest(self) -> None:
        if len(self.segments) > 1:
            path, _ = self.segments.pop(0)
            path.unlink()

    def holds(self) -> set[Key]:
        ranges = (one for _, found in self.segments for one in found)
        return {(str(origin), number) for origin, first, last in ranges for number in range(first, last + 1)}


class World:
    def __init__(self, root: Path, rng: random.Random, killer: Killer) -> None:
        self.root, self.rng, self.killer = root, rng, killer
        self.table = str(root / "table")
        self.nodes: list[Node] = []
        self.lost: set[Key] = set()
        """What no node had any more when the table came to it."""
        self.last: Vector = {}
        self.batches: list[tuple[Origin, int, int, bytes]] = []
        self.made = 0
        self.join()

    # What happens

    def publish(self) -> None:
        """Some messages at one node; others get them later."""
        chosen = self.rng.choice(self.nodes)
        first = self.last.get(chosen.origin, 0) + 1
        last = first + self.rng.randrange(8)
        at_us = START_US + chosen.skew_us + self.rng.randrange(3) * DAY_US
        found = [
            record(number, b"%d" % number, f"/queue/{self.rng.choice('xyz')}", at_us=at_us + number)
            for number in range(first, last + 1)
        ]
        self.last[chosen.origin] = last
        made = (chosen.origin, first, last, batch(chosen.origin, first, found))
        self.batches.append(made)
        for one in self.nodes:
            one.behind.append(made)
            one.catch_up(len(one.behind) if one is chosen else self.rng.randrange(3))

    def join(self) -> None:
        """A node with a clock of its own gets all that there is."""
        if len(self.nodes) == 4:
            return
        self.made += 1
        new = Node(self.root, f"n{self.made}", self.made, self.rng.choice([0, 0, -90, 400]) * DAY_US)
        held = self.held()
        new.behind = [one for one in self.batches if (str(one[0]), one[1]) in held]
        new.vector = {}
        for origin, first, _, _ in new.behind:
            new.vector.setdefault(origin, first - 1)
        new.catch_up(len(new.behind))
        self.nodes.append(new)

    def leave(self) -> None:
        """What it alone had is with the others first."""
        if len(self.nodes) == 1:
            return
        gone = self.nodes.pop(self.rng.randrange(len(self.nodes)))
        for one in self.nodes:
            one.catch_up(len(one.behind))
        before = self.held() | gone.holds()
        shutil.rmtree(gone.path)
        self._lose(before)

    def retain(self) -> None:
        """All nodes forget the oldest, whether the table has it or not."""
        before = self.held()
        for one in self.nodes:
            one.catch_up(len(one.behind))
        before |= self.held()
        for one in self.nodes:
            for _ in range(self.rng.randrange(4)):
                one.drop_oldest()
        self._lose(before)

    def archive(self) -> None:
        """A run, perhaps killed, perhaps with another one at the moment of its commit."""
        archiver = self._archiver()
        if self.rng.randrange(3) == 0:
            self.killer.rival = self.rng.choice([self._run_another, self._compact])
        with_moments = self.rng.randrange(MOMENTS_MAX) if self.rng.randrange(2) else None
        try:
            self.killer.kills(lambda: self._run(archiver), with_moments)
        finally:
            self.killer.rival = None
            archiver.close()

    def tidy(self) -> None:
        self.killer.kills(self._compact, self.rng.randrange(MOMENTS_MAX) if self.rng.randrange(2) else None)

    def vacuum(self) -> None:
        if self._vector():
            vacuum(self.table, hours=0)

    # How it is done

    def _archiver(self, **more: Any) -> Archiver:
        path = ",".join(str(one.path) for one in self.nodes)
        options = read_options({"path": path, "maxBytesPerPartition": "600", "name": "archive", **more})
        return Archiver(options, self.table, every_seconds=1.0, iceberg=icebergs.IcebergTable(NAME, self.table))

    def _run(self, archiver: Archiver) -> None:
        have = self._vector()
        wanted = {key for key in self.lost if have and key[1] > have.get(key[0], 0)}
        with suppress(Overtaken):
            try:
                archiver.run()
            except DataLoss as loss:
                assert wanted, f"{loss} is said to be lost"
                said = {(origin, n) for origin, first, last in ranges_named(loss) for n in range(first, last + 1)}
                assert said <= self.lost and said & wanted, (said, wanted)
                self._run_another()
            archiver.register()

    def _run_another(self) -> None:
        other = self._archiver(failOnDataLoss="false")
        other.run()
        other.close()

    def _compact(self) -> None:
        if self._vector():
            compact(self.table)

    def held(self) -> set[Key]:
        return {key for one in self.nodes for key in one.holds()}

    def _lose(self, before: set[Key]) -> None:
        have = self._vector()
        self.lost |= {key for key in before - self.held() if key[1] > have.get(key[0], 0)}

    def _vector(self) -> dict[str, int]:
        try:
            delta = open_table(self.table)
        except ArchiveError:
            return {}
        return {str(origin): last for origin, last in table_vector(delta, self.last).items()}

    def wanted(self) -> list[Key]:
        """Of the table, by what it says of itself."""
        found = {(origin, number) for origin, last in self._vector().items() for number in range(1, last + 1)}
        return sorted(found - self.lost)

    def rows(self) -> list[Key]:
        if not self._vector():
            return []
        rows = open_table(self.table).to_pyarrow_table(columns=["origin", "sequence"]).to_pylist()
        return sorted((row["origin"], row["sequence"]) for row in rows)

    def end(self) -> None:
        """All have all, and a run ends well."""
        for one in self.nodes:
            one.catch_up(len(one.behind))
        archiver = self._archiver(failOnDataLoss="false")
        archiver.run()
        archiver.register()
        archiver.close()


def ranges_named(loss: DataLoss) -> Iterator[tuple[str, int, int]]:
    """The ones that its text has: the first few."""
    for origin, first, last in re.findall(r"(\S+) from (\d+) to (\d+)", str(loss)):
        yield origin, int(first), int(last)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(KILLS))
def test_a_table_has_what_it_says_after_each_step_of_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    print(f"SEED={SEED + number}")
    rng = random.Random(SEED + number)
    monkeypatch.setattr(archivers, "PARTS_PER_COMMIT", 2)
    world = World(tmp_path, rng, Killer(monkeypatch))
    steps = (
        [world.publish] * 8 + [world.archive] * 5 + [world.tidy, world.join, world.leave, world.retain, world.vacuum]
    )
    done: list[str] = []
    for _ in range(STEPS):
        step = rng.choice(steps)
        done.append(step.__name__)
        step()
        assert world.rows() == world.wanted(), done

    world.end()

    wanted = world.wanted()
    assert world._vector() == {str(origin): last for origin, last in world.last.items()}
    assert world.rows() == wanted
    assert sorted(polars.scan_delta(world.table).select("origin", "sequence").collect().rows()) == wanted
    for rows in (open_table(world.table).to_pyarrow_dataset(), registered().scan().to_arrow()):
        with duckdb.connect() as database:
            database.register("archive", rows)
            assert sorted(database.execute("select origin, sequence from archive").fetchall()) == wanted
