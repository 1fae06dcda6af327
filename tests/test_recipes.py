"""The recipes of CONTRIBUTING for a header, a metric, a setting and a protocol, each followed in a copy of the package.

The recipe for a control verb is followed in `tests/verbs/test_recipe.py`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qmq

PACKAGE = Path(qmq.__file__).parent
CONTRIBUTING = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
RECIPES = dict(re.findall(r"^### ([^\n]+)\n\n(.*?)(?=\n\n#|\Z)", CONTRIBUTING, re.MULTILINE | re.DOTALL))
START_SECONDS = 60

LISTENER = """
from qmq.address import Address
from qmq.protocols.declaration import Declaration

DECLARATION = Declaration("echo", "Echo", default=Address("127.0.0.1", 7))
"""

DIALOGUE = """
from qmq.sessions.clients.dialogue import ClientDialogue, ClientProtocol


class EchoDialogue(ClientDialogue):
    def __init__(self, session, pipe, login):
        self.session, self.came = session, b""

    def receive(self, data):
        self.came += data

    async def respond(self):
        came, self.came = self.came, b""
        self.session.outbox.put(came)
        self.session.outbox.flush()


def protocol(context):
    return ClientProtocol("echo", EchoDialogue, lambda refused: b"")
"""


RUN_NODE = """
import pathlib, re, socket, subprocess, sys

section, title, sent = "%s", "%s", b"%s"
listeners = [f'[[{name}]]\\naddress = "127.0.0.1:0"\\n' for name in ("stomp", section)]
text = 'name = "a"\\ndata = "data"\\n\\n' + "".join(listeners)
pathlib.Path("node.toml").write_text(text, "utf-8")
serve = [sys.executable, "-m", "qmq", "serve", "--config", "node.toml"]
node = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
try:
    said = []
    for line in node.stderr:
        said.append(line)
        if found := re.search(f"serves (?:{title}) on 127.0.0.1:(\\\\d+)", line):
            break
    assert found, said
    with socket.create_connection(("127.0.0.1", int(found[1])), 20) as client:
        client.sendall(sent)
        while more := client.recv(65536):
            sys.stdout.write(more.decode())
            if section == "echo":
                break
finally:
    node.terminate()
    node.wait()
"""


class Copy:
    """A copy of the package in which a recipe is followed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copytree(PACKAGE, path / "qmq", ignore=shutil.ignore_patterns("__pycache__", "*.so"))

    def change(self, name: str, old: str, new: str) -> None:
        path = self.path / name
        text = path.read_text("utf-8")
        assert text.count(old) == 1, f"{name}: the recipe says where, and there is no {old!r}"
        path.write_text(text.replace(old, new), "utf-8")

    def run(self, code: str) -> str:
        """What `code` prints; if it fails, its traceback."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": str(self.path)},
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        return done.stdout if done.returncode == 0 else done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_at_most_ten_lines_and_names_what_exists(recipe: str) -> None:
    text = RECIPES[recipe]
    named = re.findall(r"`((?:qmq|tests|docs)/[\w./]+)`", text)

    assert len(text.splitlines()) <= 10
    assert named and [name for name in named if not (Path(__file__).parents[1] / name).exists()] == []


def test_there_is_a_recipe_for_each_frequent_change() -> None:
    assert {"A control verb", "A STOMP header", "A metric", "A setting", "A protocol"} <= set(RECIPES)


def test_a_header_is_read_once_and_refused_if_it_means_nothing(copy: Copy) -> None:
    options = "qmq/broker/messages/send_options.py"
    copy.change(options, "(priority|expires|", "(bell|priority|expires|")
    copy.change(options, '"ack_timeout_us", "delay_us"', '"ack_timeout_us", "bell_us", "delay_us"')
    copy.change(options, "        self.ttl_us = 0\n", "        self.ttl_us = 0\n        self.bell_us = 0\n")
    copy.change(
        options,
        '    elif name == "ack-timeout":\n',
        '    elif name == "bell":\n        options.bell_us = read_seconds(text, name)\n'
        '    elif name == "ack-timeout":\n',
    )

    said = copy.run("""
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope
from qmq.broker.messages.send_options import check_options, options_of
from qmq.errors import Refused

print(Envelope("/queue/q", DestinationKind.QUEUE, b"a:1\\nbell:2\\n", True).options.bell_us)
print(options_of(b"bell:loud\\n").bell_us)
try:
    check_options(b"bell:loud\\n")
except Refused as refused:
    print(refused.code)
""")

    assert said.split() == ["2000000", "0", "bad-header"]


def test_a_metric_is_a_line_of_the_page(copy: Copy) -> None:
    copy.change(
        "qmq/protocols/http/metrics.py",
        "        _add_mesh(families, self._links, self._takeover)\n",
        """        _add_mesh(families, self._links, self._takeover)
        families.counters("qmq_bells", "Bells.", ("tower",), [(("north",), 1)])
""",
    )

    said = copy.run(RUN_NODE % ("http", "HTTP", "GET /metrics HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n"))

    assert [line for line in said.splitlines() if "bells" in line] == [
        "# HELP qmq_bells_total Bells.",
        "# TYPE qmq_bells_total counter",
        'qmq_bells_total{tower="north"} 1.0',
    ]


def test_a_setting_is_a_field_with_its_type_and_bounds(copy: Copy) -> None:
    first = "    login_seconds: Seconds = 5.0\n"
    copy.change("qmq/config/limits.py", first, '    bells_max: Count = 3\n    """Of one tower."""\n' + first)
    for name, value in (("good", "4"), ("bad", "-1")):
        text = f'name = "a"\ndata = "data"\n\n[limits]\nbells_max = {value}\n'
        (copy.path / f"{name}.toml").write_text(text, "utf-8")

    said = copy.run("""
from pathlib import Path
from qmq.config import LimitSettings
from qmq.config.load import load_node
from qmq.errors import QmqError

print(LimitSettings().bells_max, load_node(Path("good.toml")).limits.bells_max)
try:
    load_node(Path("bad.toml"))
except QmqError as error:
    print(error)
""")

    assert said.startswith("3 4\n")
    assert "bad.toml" in said and "bells_max" in said and ":5: " in said, "the error names file, key and line"


def test_a_protocol_is_a_folder_and_a_line_of_the_table(copy: Copy) -> None:
    room = copy.path / "qmq/protocols/echo"
    room.mkdir()
    for name, text in (("__init__", '"""Echo."""\n'), ("listener", LISTENER), ("dialogue", DIALOGUE)):
        (room / f"{name}.py").write_text(text, "utf-8")
    copy.change("qmq/protocols/__init__.py", '    "stomp",\n', '    "stomp",\n    "echo",\n')

    said = copy.run(RUN_NODE % ("echo", "Echo", "hello"))

    assert said == "hello"
