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
        ({"path": "x", "minRecordsPerTrigger": "0"}, "from 1"),
        (
            {"path": "x", "minRecordsPerTrigger": "9", "maxRecordsPerTrigger": "8"},
            "above the maxRecordsPerTrigger of 8",
        ),
        ({"path": "x", "maxTriggerDelay": "15m"}, "minRecordsPerTrigger, which is not given"),
        ({"path": "x", "minRecordsPerTrigger": "9", "maxTriggerDelay": "soon"}, "like 30s, 15m, 1h"),
        ({"path": "x", "minRecordsPerTrigger": "9", "maxTriggerDelay": "0s"}, "like 30s, 15m, 1h"),
        ({"path": "x", "minRecordsPerTrigger": "9", "maxTriggerDelay": "5 weeks"}, "like 30s, 15m, 1h"),
        ({"servers": "localhost"}, "host:port"),
        ({"servers": "localhost:99999"}, "host:port"),
    ],
)
def test_a_bad_option_is_answered_with_what_may_stand_there(said: dict[str, str], hint: str) -> None:
    with pytest.raises(BadOption, match=hint):
        read_options(said)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("assign", "subscribe"),
        ("startingOffsetsByTimestamp", "startingTimestamp"),
        ("endingoffsetsbytimestamp", "endingTimestamp"),
        ("startingOffsetsByTimestampStrategy", "startingTimestamp"),
        ("maxRecordsPerPartition", "maxBytesPerPartition"),
        ("groupIdPrefix", "name is what nodes show"),
        ("kafka.bootstrap.servers", "servers names the nodes"),
        ("kafka.security.protocol", "cafile"),
        ("kafkaConsumer.pollTimeoutMs", "waited for"),
        ("fetchOffset.numRetries", "waited for"),
        ("topic", "subscribe says what is read"),
    ],
)
def test_an_option_of_kafka_that_does_nothing_here_is_an_error_that_says_what_does(theirs: str, ours: str) -> None:
    with pytest.raises(BadOption, match=ours):
        read_options({"path": "x", theirs: "1"})


def test_an_option_may_have_the_name_that_it_has_in_kafkas_source() -> None:
    options = read_options({"path": "x", "maxOffsetsPerTrigger": "70", "MINOFFSETSPERTRIGGER": "7"})

    assert (options.records_per_trigger, options.records_min, options.trigger_delay_seconds) == (70, 7, 900.0)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("15m", 900), ("2 min", 120), ("1h", 3600), ("250", 0.25)])
def test_a_delay_is_written_as_spark_writes_it(text: str, seconds: float) -> None:
    options = read_options({"path": "x", "minRecordsPerTrigger": "7", "maxTriggerDelay": text})

    assert options.trigger_delay_seconds == seconds


@pytest.mark.parametrize(
    "names", [("maxOffsetsPerTrigger", "maxRecordsPerTrigger"), ("maxRecordsPerTrigger", "MAXRECORDSPERTRIGGER")]
)
def test_two_names_of_one_option_must_say_the_same(names: tuple[str, str]) -> None:
    assert read_options({"path": "x", **dict.fromkeys(names, "7")}).records_per_trigger == 7

    with pytest.raises(BadOption, match=f"{names[0]} and {names[1]} are one option, and differ"):
        read_options({"path": "x", names[0]: "7", names[1]: "8"})


def test_no_value_is_in_the_error_about_two_names() -> None:
    with pytest.raises(BadOption) as found:
        read_options({"path": "x", "passcode": "secret", "PASSCODE": "hidden"})

    assert "secret" not in str(found.value) and "hidden" not in str(found.value)


@pytest.mark.parametrize(
    ("command", "said", "hint"),
    [
        (["archive", "/nowhere/table"], "startingOffsets=latest", "startingOffsets: the table decides that"),
        (["tables", "/nowhere/table"], "columns=body", "columns: the table decides that"),
        (["replay"], "maxOffsetsPerTrigger=7", "maxRecordsPerTrigger: it is of streams"),
        (["archive", "/nowhere/table", "--destination", "/queue/a"], "subscribe=/queue/b", "say this differently"),
    ],
)
def test_a_job_refuses_an_option_that_would_do_nothing(command: list[str], said: str, hint: str) -> None:
    found = CliRunner().invoke(main, ["pipeline", *command, "--path", "/nowhere", "--set", said])

    assert found.exit_code == 2 and hint in " ".join(found.output.split())


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


@pytest.mark.parametrize("said", ["s3://key:hidden@bucket/a", "s3:///hidden", "nowhere://hidden"])
def test_an_address_in_place_of_a_path_is_refused_and_not_shown(said: str) -> None:
    with pytest.raises(BadOption, match="a path is an address") as caught:
        local_path(said)
    assert "hidden" not in str(caught.value)


def test_a_history_is_no_stream() -> None:
    with pytest.raises(BadOption, match="startingOffsets: a history goes"):
        history(None, "/nowhere/table", path="x", startingOffsets="latest")  # type: ignore[arg-type]


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
