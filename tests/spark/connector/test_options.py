"""Options that make no sense are refused with what would."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qmq.cli import main
from qmq.cli.pipeline.shared import read_source
from qmq.spark import history
from qmq.spark.archive.table import archive_choice, choice_of, commit, open_table
from qmq.spark.jobs.archive import read_archive
from qmq.spark.reading.options import BadOption, local_path, read_options
from tests.spark.rig import A


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ({}, "path"),
        ({"path": "x", "servers": "h:1"}, "not both"),
        ({"path": " , "}, "path names nothing"),
        ({"servers": ","}, "servers names nothing"),
        ({"path": "x", "view": "mesages"}, "messages, records"),
        ({"path": "x", "subscibe": "y"}, "did you mean subscribe"),
        ({"path": "x", "zzz": "y"}, "there are: path"),
        ({"path": "x", "subscribe": "a", "subscribePattern": "b"}, "exclude"),
        ({"path": "x", "subscribePattern": "("}, "subscribePattern"),
        ({"path": "x", "subscribePattern": ""}, "matches nothing"),
        ({"path": "x", "startingOffsets": "first"}, "earliest, latest"),
        ({"path": "x", "view": "log", "startingOffsets": "latest"}, "has no startingOffsets"),
        ({"path": "x", "subscribe": " , "}, "subscribe names nothing"),
        ({"path": "x", "subscribe": "[]"}, "subscribe names nothing"),
        ({"path": "x", "subscribe": '["/queue/a"'}, "begins like a list of JSON"),
        ({"path": "x", "subscribe": "[1]"}, "a list of names"),
        ({"path": "x", "columns": ""}, "columns names nothing"),
        ({"path": "x", "startingOffsets": "[1]"}, "is wanted"),
        ({"path": "x", "startingOffsets": '{"a": 1}'}, "is no origin"),
        ({"path": "x", "startingOffsets": f'{{"{A}": -1}}'}, "from 0"),
        ({"path": "x", "endingOffsets": "earliest"}, "latest"),
        ({"path": "x", "startingTimestamp": "yesterday"}, "ms since 1970"),
        ({"path": "x", "startingTimestamp": "²"}, "ms since 1970"),
        ({"path": "x", "endingTimestamp": "9" * 19}, "ms since 1970"),
        ({"path": "x", "endingTimestamp": "20261350"}, "ms since 1970"),
        ({"path": "x", "endingTimestamp": "1767225600"}, "takes ms: 1767225600000"),
        ({"path": "x", "startingTimestamp": "2026"}, "January 1970"),
        ({"path": "x", "endingTimestamp": "202601"}, "January 1970"),
        ({"path": "x", "startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"}, "nothing lies between"),
        ({"path": "x", "startingTimestamp": "2026-01-02", "endingTimestamp": "20260102"}, "nothing lies between"),
        ({"path": "x", "destination": "/queue/a"}, "destination is an option of writing; subscribe says"),
        ({"path": "x", "rate": "5"}, "rate is an option of writing"),
        ({"path": "x", "failOnDataLoss": "no"}, "true or false"),
        ({"path": "x", "maxRecordsPerTrigger": "0"}, "from 1"),
        ({"servers": "localhost"}, "host:port"),
        ({"servers": "localhost:99999"}, "host:port"),
    ],
)
def test_a_bad_option_is_answered_with_what_may_stand_there(said: dict[str, str], hint: str) -> None:
    with pytest.raises(BadOption, match=hint):
        read_options(said)


@pytest.mark.parametrize("text", ["20260101", "2026-01-01", "1767225600000", "2026-01-01T01:00:00+01:00"])
def test_a_time_may_be_a_day_ms_or_iso(text: str) -> None:
    assert read_options({"path": "x", "startingTimestamp": text}).starting_us == 1_767_225_600_000_000


@pytest.mark.parametrize("names", [["/queue/a"], ["/queue/a", "/queue/b"], ["/queue/a,b"], ["/queue/ä ", "/queue/b"]])
def test_a_name_may_have_commas_and_blanks(names: list[str], tmp_path: Path) -> None:
    """On the command line, and in what an archive says that it was started with."""
    nobody: Any = dict.fromkeys(("servers", "login", "passcode", "cafile", "pattern", "begin", "end"))

    said = read_source(paths=("x",), destinations=tuple(names), more=(), **nobody)
    commit(str(tmp_path), {}, {A: 1}, [], choice_of(said))

    assert said.destinations == frozenset(names)
    choice = archive_choice(open_table(str(tmp_path)), str(tmp_path))
    assert read_options({"path": "x", **choice}).destinations == frozenset(names)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--destination", "subscribe names nothing"),
        ("--pattern", "matches nothing"),
        ("--from", "ms since 1970"),
        ("--to", "ms since 1970"),
    ],
)
def test_an_empty_choice_is_a_mistake_and_not_everything(option: str, hint: str) -> None:
    """A variable of the shell that is not set must not replay the whole past."""
    found = CliRunner().invoke(main, ["pipeline", "archive", "/nowhere/table", "--path", "/nowhere", option, ""])

    assert found.exit_code == 2 and hint in found.output


def test_options_are_understood_in_any_case() -> None:
    options = read_options(
        {
            "PATH": "x, y",
            "startingoffsets": f'{{"{A}": 7}}',
            "endingtimestamp": "2026-01-01T00:00:00Z",
            "includeheaders": "TRUE",
            "subscribe": "/queue/a, /queue/b",
        }
    )

    assert options.paths == ("x", "y")
    assert options.starting == {A: 7}
    assert options.ending_us == 1_767_225_600_000_000
    assert options.include_headers
    assert options.includes("/queue/b") and not options.includes("/queue/c")


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("file:///data/a", "/data/a"),
        ("FILE:/data/a", "/data/a"),
        ("/data/s3://a", "/data/s3://a"),
        ("a:61613", "a:61613"),
        ("x:y/z", "x:y/z"),
    ],
)
def test_a_path_may_be_written_as_an_address_of_this_machine(said: str, path: str) -> None:
    assert local_path(said) == path and read_options({"path": said}).paths == (path,)


@pytest.mark.parametrize(
    "work",
    [
        partial(history, None, path="x"),
        partial(read_archive, None),
    ],
)
def test_an_address_of_another_kind_is_no_table(work: Any) -> None:
    with pytest.raises(BadOption, match="is no address of a table"):
        work("hdfs://name/table")
