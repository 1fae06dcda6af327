"""Each block of code in the pages is what it says it is: programs parse and import what exists, commands are taken by
the command line, requests are in the description of the interface, files are read by the part that reads them.

Many blocks also run (docs/testing.md); this is for all of them. A block that nothing here can check has the comment
`<!-- not checked: reason -->` before it, which may name the test that runs it.
"""

import ast
import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlsplit

import click
import pytest

from qmq.cli import main
from qmq.config import load_node, load_peers
from qmq.errors import ConfigError
from qmq.protocols.http.openapi import openapi
from qmq.wire.stomp import Connection, Role
from tests.test_configuration import TO_REPLACE, printed_hash

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^<!-- not checked: ([^>]+) -->\n\n?)?^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


A_HASH = printed_hash("secret")


class Block(NamedTuple):
    place: str
    excuse: str
    kind: str
    text: str


def blocks() -> Iterator[Block]:
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        text = page.read_text("utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start(2)) + 1
            yield Block(f"{page.relative_to(ROOT)}:{line}", found[1] or "", found[2], found[3])


BLOCKS = list(blocks())


def check_python(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            wanted = [(node.module, alias.name) for alias in node.names]
        else:
            wanted = [(alias.name, "") for alias in node.names] if isinstance(node, ast.Import) else []
        for module, name in wanted:
            if module.partition(".")[0] == "qmq":
                try:
                    found = hasattr(import_module(module), name or "__name__")
                except ModuleNotFoundError as error:
                    assert not str(error.name).startswith("qmq")  # an extra is not installed
                else:
                    assert found or find_spec(f"{module}.{name}"), f"{module}.{name}"


@cache
def operations() -> Mapping[str, list[re.Pattern[str]]]:
    """Method → the paths of the description of the HTTP interface."""
    found: dict[str, list[re.Pattern[str]]] = {}
    for path, methods in json.loads(openapi())["paths"].items():
        for method in methods:
            pattern = re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path))
            found.setdefault(method.upper(), []).append(re.compile(pattern))
    return found


def check_request(words: list[str]) -> None:
    """A curl to a node."""
    (url,) = [word for word in words if re.match(r"https?://", word)]
    chosen = [after for word, after in zip(words, words[1:], strict=False) if word in ("-X", "--request")]
    sends = any(word in ("-d", "--data", "--data-binary") for word in words)
    method = chosen[0] if chosen else "POST" if sends else "GET"
    path = urlsplit(url).path
    if path not in ("/", "", "/qmq.js", "/openapi.json"):
        assert any(one.fullmatch(path) for one in operations()[method]), f"{method} {path} is not in the description"
    for word, after in zip(words, words[1:], strict=False):
        if word == "-d" and after.startswith("{"):
            json.loads(after)


OF_THE_READER = ("does not exist", "No such file", "'$", "must name at least one user")
"""What a part of a script or of a file lacks: files and variables of the reader, and users named elsewhere."""


def check_qmq(words: list[str]) -> None:
    """The command line takes these words; nothing runs."""
    command: click.Command = main
    context: click.Context | None = None
    name: str | None = "qmq"
    try:
        with ExitStack() as stack:
            while True:
                context = stack.enter_context(command.make_context(name, list(words), parent=context))
                if not isinstance(command, click.Group):
                    return
                name, chosen, words = command.resolve_command(context, [*context._protected_args, *context.args])
                assert chosen is not None
                command = chosen
    except click.exceptions.Exit:  # --help and --version
        return
    except click.UsageError as error:
        if not any(words in error.format_message() for words in OF_THE_READER):
            raise


def check_make(words: list[str]) -> None:
    for word in words:
        if "=" not in word and not word.startswith("-"):
            assert re.search(rf"^{re.escape(word)}:", MAKEFILE, re.MULTILINE), f"make has no target {word}"


def check_pip(words: list[str]) -> None:
    for word in words:
        for extras in re.findall(r"^(?:\.|qmq)\[([\w,]+)\]", word):
            assert set(extras.split(",")) <= EXTRAS.keys(), word


CHECKED: Mapping[str, Callable[[list[str]], None]] = {
    "qmq": check_qmq,
    "curl": check_request,
    "make": check_make,
    "pip": check_pip,
}
BEFORE = re.compile(r"[A-Za-z_]\w*=.*|sudo|exec|do|then|else|if|while|until|!|time|nohup")
"""Words that may stand before the word of a command."""


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script, without documents that it writes."""
    script = re.sub(r"<<-?\s*'?(\w+)'?([^\n]*)\n.*?^\1$", r"\2", script, flags=re.MULTILINE | re.DOTALL)
    for inner in re.findall(r"\$\((?!\()([^()]*)\)", script):
        yield from commands(inner)
    script = re.sub(r"\$\(([^()]*)\)", "x", script.replace("\\\n", " "))
    lexer = shlex.shlex(script.replace("\n", "\n;"), posix=True, punctuation_chars=";|&<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    skipped = False
    for token in lexer:
        if skipped:  # the file of a redirection
            skipped = False
        elif set(token) <= set("<>&") and token not in ("&", "&&"):
            skipped = True
            if words and words[-1].isdigit():
                words.pop()
        elif set(token) <= set(";|&()"):
            yield words
            words = []
        elif words or not BEFORE.fullmatch(token):
            words.append(token)
    yield words


def check_shell(script: str) -> None:
    subprocess.run(["bash", "-n", "-c", script], check=True)
    for words in commands(script):
        if words and Path(words[0]).name in CHECKED:
            CHECKED[Path(words[0]).name](words[1:])


def check_console(text: str) -> None:
    """Commands after `$` with their output, or what the commands of the block before print."""
    found = re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    if found:
        check_shell("\n".join(found))
    else:
        check_text(text)


def check_toml(text: str) -> None:
    """A node file, a peers file, or a part of one. The files that it names are the reader's."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "example.toml")
        path.write_text(text.replace(TO_REPLACE, A_HASH), "utf-8")
        try:
            load_peers(path) if "[[nodes]]" in text else load_node(path)
        except ConfigError as error:
            assert [one for one in error.diagnostics if not any(words in one for words in OF_THE_READER)] == []


def check_json(text: str) -> None:
    for line in [text] if text.count("\n{") == 0 else text.splitlines():
        json.loads(line)


def check_stomp(text: str) -> None:
    """Frames of a client, with an empty line between them."""
    server = Connection(Role.SERVER)
    server.receive(b"CONNECT\naccept-version:1.2\nhost:qmq\n\n\0")
    for frame in text.strip().split("\n\n"):
        assert server.receive(f"{frame}\n\n\0".encode()), server.error


def check_javascript(text: str) -> None:
    node = shutil.which("node")
    if node is not None:
        subprocess.run([node, "--check", "--input-type=module", "-"], input=text, text=True, check=True)


def check_html(text: str) -> None:
    for script in re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL):
        check_javascript(script)


def check_ini(text: str) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read_string(text)
    for command in re.findall(r"^Exec\w+=(.*)$", text, re.MULTILINE):
        check_shell(command)


def check_cron(text: str) -> None:
    """Lines of a file in /etc/cron.d: when, as which user, what."""
    for line in text.splitlines():
        when, user, command = re.fullmatch(r"((?:[\d*/,-]+ ){5})(\w+) (.+)", line).groups()  # type: ignore[union-attr]
        assert when and user
        check_shell(command)


def check_sql(text: str) -> None:
    """A query of a dbt model, which `tests/spark` runs."""
    assert re.match(r"select\b", text)


def check_yaml(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    yaml.safe_load(text)


def check_text(text: str) -> None:
    """Output, or a drawing: nothing that a reader would type."""
    assert not re.search(r"^(?:\$ |(?:qmq|curl|pip|make|python3?) \w|(?:SEND|SUBSCRIBE)$)", text, re.MULTILINE)


KINDS: Mapping[str, Callable[[str], None]] = {
    "bash": check_shell,
    "console": check_console,
    "cron": check_cron,
    "html": check_html,
    "ini": check_ini,
    "javascript": check_javascript,
    "json": check_json,
    "python": check_python,
    "sh": check_shell,
    "sql+jinja": check_sql,
    "stomp": check_stomp,
    "text": check_text,
    "toml": check_toml,
    "yaml": check_yaml,
}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_each_block_of_code_is_what_it_says_it_is(block: Block) -> None:
    if block.excuse:
        assert len(block.excuse.split()) >= 3, "a reason is a sentence"
        for test in re.findall(r"tests/[\w./]+", block.excuse):
            assert (ROOT / test).exists(), test
    else:
        assert block.kind in KINDS, "no check knows this kind of block: add one, or say why there is none"
        KINDS[block.kind](block.text)
