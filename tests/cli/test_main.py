"""The command line as a whole: quick help, exit codes, failures in one line."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from qmq import __version__
from qmq.build import BUILD
from qmq.cli import main
from qmq.cli.output import printable
from qmq.config import NodeSettings

from .conftest import Run

HEAVY = ("trio", "qmq.config", "sqlite_utils", "msgpack", "argon2", "qmq.wire", "qmq.node", "qmq.storage")


MODULES_MAX = {"qmq.cli; qmq.cli.main(['--help'], standalone_mode=False)": 115, "qmq.cli.serve, qmq.node.main": 815}
"""Code behind an import → modules that it may load, those of Python included. Most of the time until the help is there,
or a node accepts, is their import: lower a number when there are fewer, and see `python -X importtime` when there are
more. 112 and 797 on Python 3.11 with all that tests need; up to 811 elsewhere."""


@pytest.mark.parametrize("code", MODULES_MAX)
def test_a_start_loads_no_more_modules_than_it_needs(code: str) -> None:
    counted = f"import sys; before = len(sys.modules); import {code}; print(len(sys.modules) - before)"

    done = subprocess.run([sys.executable, "-c", counted], capture_output=True, text=True, check=True)

    assert int(done.stdout.splitlines()[-1]) <= MODULES_MAX[code]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, qmq.cli; qmq.cli.main(['--help'], standalone_mode=False); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_commands_that_ask_a_node_do_not_load_its_configuration() -> None:
    modules = ("send", "listen", "status", "log")
    admin = ("access", "bulk", "conditions", "connections", "delete", "listing", "messages", "queues", "routing")
    imports = ", ".join(f"qmq.cli.{name}" for name in (*modules, *(f"admin.{name}" for name in admin)))

    code = f"import sys, {imports}; print([name for name in ('trio', 'msgpack', 'qmq.config') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_a_node_does_not_load_what_it_may_not_need() -> None:
    names = (
        "qmq.auth.callback",
        "qmq.auth.plugins",
        "qmq.auth.tokens",
        "importlib.metadata",
        "h11",
        "qmq.protocols.http.dialogue",
        "pamqp",
        "qmq.protocols.amqp.dialogue",
        "qmq.protocols.beanstalk.dialogue",
        "qmq.client",
        "qmq.definitions.rabbitmq",
        "difflib",
    )
    code = f"import sys, qmq.cli.serve, qmq.node.main; print([name for name in {names} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_a_node_with_http_does_not_load_prometheus_before_the_first_scrape() -> None:
    code = "import sys, qmq.node.main, qmq.protocols.http.dialogue; print('prometheus_client' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["numpy", "pandas"])
def test_a_node_does_not_import_what_only_spark_needs(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('it is imported')", "utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import qmq.node.main; print({name!r} in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("False\n", "")


def test_help_lists_every_command_with_what_it_does(run: Run) -> None:
    result = run("--help")

    assert result.exit_code == 0
    shown = " ".join(result.output.split())
    for line in ("serve Run one node", "mesh Show and change a mesh", "send Send messages", "log Verify"):
        assert line in shown


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "qmq", "--version"], capture_output=True, text=True, check=True)

    assert done.stdout == f"qmq {__version__} ({BUILD} Python)\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("send",),
        ("send", "/queue/a", "body", "--at", "nowhere"),
        ("send", "/queue/a", "body", "--header", "no colon"),
        ("send", "/queue/a", "body", "--count", "0"),
        ("send", "/queue/a", "body", "--lines", "-"),
        ("listen", "/queue/a", "--ack", "maybe"),
        ("listen", "/queue/a", "--json", "--body-only"),
        ("send", "/queue/a", "body", "--at", "a..b:61613"),
        ("status", "--patience", "inf"),
        ("status", "--patience", "nan"),
        ("status", "--patience", "1e10"),
        ("listen", "/queue/a", "--timeout", "inf"),
        ("listen", "/queue/a", "--timeout", "nan"),
        ("listen", "/queue/a", "--timeout", "4294967.4"),
        ("bench", "topic", "--seconds", "nan"),
        ("bench", "topic", "--warmup", "inf"),
        ("bench", "latency", "--rate", "inf"),
        ("config", "check"),
        ("mesh", "up"),
    ],
)
def test_a_wrong_command_line_ends_with_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_serve_prints_all_errors_of_the_files_with_exit_code_2(run: Run, tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text('nam = "a"\n[limits]\nprefetch_max = 0\n', "utf-8")

    result = run("serve", "--config", str(node))

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"{node}:1: nam: unknown key; did you mean name?\n"
        f"{node}:3: limits.prefetch_max = 0: must be at least 1\n"
        "qmq: 2 errors in the configuration\n"
    )


def all_commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    """Every command as its words, groups included."""
    yield names
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from all_commands(command, *names, name)
            else:
                yield (*names, name)


def test_no_help_names_a_file_that_only_the_checkout_has(run: Run) -> None:
    folders = ("cluster/", "docs/", "tests/", "benchmarks/", "README", "Makefile")
    named = {}
    for words in all_commands(main):
        result = run(*words, "--help")
        assert result.exit_code == 0, words
        named.update({(words, folder): result.output for folder in folders if folder in result.output})

    assert not named


def test_serve_listens_where_the_command_line_says(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("qmq.node.main.serve", lambda settings, peers, read, **_: seen.append((settings, read)) or 0)

    result = run("serve", "--listen", "127.0.0.1:7001")

    assert result.exit_code == 0, result.output
    ((settings, read),) = seen
    assert [str(one.address) for one in settings.stomp] == ["127.0.0.1:7001"]
    assert read is None


def test_a_listener_in_the_file_and_one_on_the_command_line_are_one_too_many(run: Run, tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text('[[stomp]]\naddress = "127.0.0.1:7000"\n', "utf-8")

    result = run("serve", "--config", str(node), "--listen", "127.0.0.1:7001")

    assert result.exit_code == 2
    assert f"{node}: stomp: is given by the file and on the command line; leave out one" in result.stderr


@pytest.mark.parametrize("command", [("send", "/queue/a", "x"), ("listen", "/queue/a"), ("status",)])
def test_an_address_without_a_node_is_reported_in_one_line(run: Run, command: tuple[str, ...]) -> None:
    result = run(*command, "--at", "127.0.0.1:1")

    assert result.exit_code == 1
    assert result.stderr == "qmq: 127.0.0.1:1: Connection refused; is a node running there?\n"


def test_what_could_control_a_terminal_or_hide_in_a_name_is_shown_by_its_code() -> None:
    assert printable("a\x1b[31m\u202eevil\u200b\u2028\u2066\ufeff\tb\n") == (
        "a\\x1b[31m\\u202eevil\\u200b\\u2028\\u2066\\ufeff\tb\n"
    )
    assert printable("می\u200cخواهم 👩\u200d🔧") == "می\u200cخواهم 👩\u200d🔧"


def test_serve_without_a_disk_excludes_a_directory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NodeSettings] = []
    monkeypatch.setattr("qmq.node.main.serve", lambda settings, peers, read, **_: seen.append(settings) or 0)

    assert run("serve", "--memory").exit_code == 0
    result = run("serve", "--memory", "--data", "d")

    assert [settings.directory for settings in seen] == [None]
    assert result.exit_code == 2
    assert "--memory excludes --data" in result.output
