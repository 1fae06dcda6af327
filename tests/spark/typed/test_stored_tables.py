"""Typed tables in an object store that answers errors and cuts connections: each message once, or the last of a key."""

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake.exceptions import DeltaError

from qmq.errors import QmqError
from qmq.spark.archive.table import open_table
from qmq.spark.reading.options import read_options
from qmq.spark.typed.job import tables
from tests.spark.kills import SEED
from tests.spark.object_store import Faults, StoreProcess
from tests.spark.rig import A, batch, node, record

TABLE = "s3://bucket/typed"
RUNS, MESSAGES, KEYS = 12, 15, 7


def body(number: int) -> dict[str, Any]:
    """Of later ones there is more."""
    return {"id": number % KEYS, "value": number, **({"more": str(number)} if number > RUNS * MESSAGES // 2 else {})}


def found_by_readers() -> list[list[tuple[Any, ...]]]:
    columns = ["id", "value", "more"]
    delta = open_table(TABLE)
    with duckdb.connect() as database:
        database.register("typed", delta.to_pyarrow_dataset())
        by_duckdb = database.execute(f"select {', '.join(columns)} from typed").fetchall()
    by_delta = delta.to_pyarrow_table(columns=columns).to_pylist()
    by_polars = polars.scan_delta(TABLE).select(columns).collect().rows()
    return [sorted(by_duckdb), sorted(tuple(row.values()) for row in by_delta), sorted(by_polars)]


@pytest.mark.parametrize("key", ["", "id"])
def test_a_typed_table_is_exact_whatever_the_store_does(store: StoreProcess, tmp_path: Path, key: str) -> None:
    print(f"SEED={SEED}")
    rng = random.Random(SEED)
    journal = node(tmp_path, "a")
    last = failed = done = 0

    def run() -> None:
        tables(read_options({"path": str(tmp_path / "a")}), TABLE, key=key, evolve=True)

    for _ in range(RUNS):
        numbers = range(last + 1, last + MESSAGES + 1)
        bodies = [record(number, json.dumps(body(number)).encode()) for number in numbers]
        journal.segment([batch(A, last + 1, bodies)], {A: last} if last else {})
        last += MESSAGES
        # Before the first commit there is no table in which another client could be first.
        fault = rng.choice(["errors", "cut_commits", "lost_commits", "cut_reads", *(["beaten"] if done else [])])
        store.set(Faults(**{fault: rng.randrange(1, 3)}))
        try:
            run()
            done += 1
        except (QmqError, DeltaError, OSError):
            failed += 1  # it does not know whether a commit was made, and the next run looks
    store.set(Faults())
    run()

    rows = [body(number) for number in range(1, last + 1)]
    if key:
        rows = list({row["id"]: row for row in rows}.values())
    wanted = sorted((row["id"], row["value"], row.get("more")) for row in rows)
    assert found_by_readers() == [wanted] * 3
    assert failed < RUNS


def test_a_typed_table_is_in_any_store_what_it_is_on_a_disk(any_store: StoreProcess, tmp_path: Path) -> None:
    journal = node(tmp_path, "a")

    for first in (1, 6):
        bodies = [record(number, json.dumps(body(number)).encode()) for number in range(first, first + 5)]
        journal.segment([batch(A, first, bodies)], {A: first - 1} if first > 1 else {})
        for place in (TABLE, str(tmp_path / "typed")):
            tables(read_options({"path": str(tmp_path / "a")}), place, key="id")

    stored, here = (
        sorted(open_table(place).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
        for place in (TABLE, str(tmp_path / "typed"))
    )
    assert stored == here and [row["value"] for row in stored] == [7, 8, 9, 10, 4, 5, 6]
