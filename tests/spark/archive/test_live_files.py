"""Which files of a table may have what is asked for, by what its log says of each."""

import json
from pathlib import Path
from typing import Any

import pytest

from qmq.model.dots import Origin
from qmq.spark.archive.live_files import live_files
from qmq.spark.archive.table import choice_of, commit, open_table
from qmq.spark.reading.options import Options, read_options

EVERYTHING = read_options({"path": "x"})


def entry(name: str, day: str, stats: dict[str, Any]) -> dict[str, Any]:
    path = f"day={day}/{name}.parquet"
    return {"path": path, "day": day, "size": 1, "rows": 1, "modified_ms": 0, "stats": json.dumps(stats)}


def bounds(day: str, begin: str, end: str, first: str, last: str) -> dict[str, Any]:
    return {
        "numRecords": 1,
        "minValues": {"timestamp": f"{day}T{begin}Z", "destination": first},
        "maxValues": {"timestamp": f"{day}T{end}Z", "destination": last},
    }


@pytest.fixture
def table(tmp_path: Path) -> str:
    made = str(tmp_path / "table")
    entries = [
        entry("early", "2026-11-20", bounds("2026-11-20", "01:00:00.000", "02:00:00.000", "/queue/a", "/queue/c")),
        entry("late", "2026-11-20", bounds("2026-11-20", "22:00:00.000", "23:00:00.001", "/queue/d", "/queue/d")),
        entry("next", "2026-11-21", bounds("2026-11-21", "00:00:00.000", "00:00:00.000", "/fanout/x", "/queue/z")),
        entry("unknown", "2026-11-21", {"numRecords": 1}),
    ]
    commit(made, {}, {Origin("a", 1): 4}, entries, choice_of(EVERYTHING))
    return made


def chosen(table: str, **said: str) -> list[str]:
    options: Options = read_options({"path": "x", **said})
    return sorted(Path(file.path).stem for file in live_files(open_table(table), options))


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({}, ["early", "late", "next", "unknown"]),
        ({"subscribe": "/queue/b"}, ["early", "next", "unknown"]),
        ({"subscribe": "/queue/d"}, ["late", "next", "unknown"]),
        ({"subscribe": "/fanout/a,/queue/c"}, ["early", "next", "unknown"]),
        ({"subscribe": "/queue/zz"}, ["unknown"]),
        ({"subscribePattern": "/queue/zz"}, ["early", "late", "next", "unknown"]),
        ({"startingTimestamp": "2026-11-20T02:00:00+00:00"}, ["early", "late", "next", "unknown"]),
        ({"startingTimestamp": "2026-11-20T02:00:00.000001+00:00"}, ["late", "next", "unknown"]),
        ({"startingTimestamp": "2026-11-20T23:00:00.001+00:00"}, ["late", "next", "unknown"]),
        ({"startingTimestamp": "2026-11-21T00:00:01+00:00"}, ["unknown"]),
        ({"startingTimestamp": "2026-11-22"}, []),
        ({"endingTimestamp": "2026-11-20T22:00:00+00:00"}, ["early"]),
        ({"endingTimestamp": "2026-11-20T22:00:00.000001+00:00"}, ["early", "late"]),
        ({"endingTimestamp": "2026-11-21T00:00:00+00:00"}, ["early", "late", "unknown"]),
        ({"endingTimestamp": "2026-11-20"}, []),
        ({"subscribe": "/queue/d", "endingTimestamp": "2026-11-20T23:00:00+00:00"}, ["late"]),
    ],
)
def test_files_are_chosen_by_day_time_and_destination(table: str, said: dict[str, str], names: list[str]) -> None:
    assert chosen(table, **said) == names


def test_without_bounds_in_the_log_days_are_left(tmp_path: Path) -> None:
    made = str(tmp_path / "table")
    entries = [entry(day, day, {"numRecords": 1}) for day in ("2026-11-20", "2026-11-21")]
    commit(made, {}, {Origin("a", 1): 4}, entries, choice_of(EVERYTHING))

    assert chosen(made, subscribe="/queue/a", startingTimestamp="2026-11-21") == ["2026-11-21"]
