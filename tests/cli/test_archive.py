"""`qmq archive` where no archive is made: errors on the command line, what is missing, and how it is stopped."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qmq.cli.pipeline.archiver import LOOK_SECONDS, behind_text, pauses, stopped_by_signals
from qmq.cli.pipeline.shared import in_one_line

from .conftest import Run
from .test_pipeline import HEAVY


def test_help_imports_nothing_of_the_extra() -> None:
    code = (
        "import sys, qmq.cli; qmq.cli.main(['archive', '--help'], standalone_mode=False); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_without_the_extra_it_says_how_to_install_it(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setitem(sys.modules, "numpy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace())

    result = run("archive", str(tmp_path / "table"), "--path", str(tmp_path))

    assert result.exit_code == 1 and "deltalake: pip install 'qmq[archive]'" in result.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "give the nodes to read: --servers, --config or --path"),
        (["--config", "node.toml", "--servers", "a:1"], "--config excludes --path and --servers"),
        (["--path", ".", "--every", "0"], "x>=1"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run("archive", "table", *more)

    assert result.exit_code == 2 and said in result.output and list(tmp_path.iterdir()) == []


def test_a_node_that_keeps_everything_in_memory_has_no_files_to_read(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('name = "a"\ndata = "memory"\n', "utf-8")

    result = run("archive", str(tmp_path / "table"), "--config", str(config))

    assert result.exit_code == 1
    assert "the node a keeps everything in memory: it has no files to read" in result.output


def test_without_a_table_the_definition_chooses_destinations(run: Run) -> None:
    result = run("archive", "--servers", "a:1", "--destination", "/queue/a")

    assert result.exit_code == 2 and "the definition says which destinations" in result.output


def test_a_pause_ends_when_the_definition_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    stop, waited, answers = threading.Event(), [], [False, True]

    class Waits:
        def wait(self, seconds: float) -> bool:
            waited.append(seconds)
            return stop.is_set()

    defined: Any = SimpleNamespace(has_changed=lambda now: answers.pop(0))
    pause = pauses(Waits(), defined)  # type: ignore[arg-type]

    assert pause(600.0) and waited == [LOOK_SECONDS, LOOK_SECONDS]
    assert "has changed" in capsys.readouterr().err
    assert not pauses(Waits(), None)(5.0)  # type: ignore[arg-type]
    stop.set()
    assert pauses(Waits(), None)(5.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "said"),
    [("ftp://host/table", "no address of a table"), ("s3://id:key@bucket/table", "must have no keys in it")],
)
def test_a_table_that_cannot_be_is_refused(run: Run, table: str, said: str) -> None:
    result = run("archive", table, "--servers", "a:1")

    assert result.exit_code == 2 and said in result.output and "id:key" not in result.output


def test_an_option_of_the_store_has_a_name_and_a_value_which_is_not_shown(run: Run) -> None:
    result = run("archive", "/table", "--servers", "a:1", "--storage-option", "secret")

    assert result.exit_code == 2 and "NAME=VALUE" in result.output and "'secret'" not in result.output


def test_an_error_of_a_store_is_one_line_without_signatures() -> None:
    error = OSError(
        "Generic error\n  \x1b[31m↳\x1b[0m GET https://host/x?sig=abc&se=1 in 2 s\n   \x1b[31m↳\x1b[0m denied"
    )

    assert in_one_line(error) == "Generic error: GET https://host/x in 2 s: denied"
    assert in_one_line(ValueError()) == "ValueError"


def test_lag_is_said_in_records_and_seconds() -> None:
    def behind(records: int, seconds: float | None) -> Any:
        return SimpleNamespace(records=records, seconds=seconds)

    assert behind_text(behind(0, 0.0)) == "nothing is left"
    assert behind_text(behind(1, None)) == "1 record behind"
    assert behind_text(behind(12, 2.04)) == "12 records behind, at most 2.0 s"


def test_the_first_signal_asks_to_stop_and_the_next_one_acts_as_usual() -> None:
    stop = threading.Event()
    with stopped_by_signals(stop):
        os.kill(os.getpid(), signal.SIGINT)

        assert stop.wait(10.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            stop.wait(0.0)
