"""The package of npm: what is in it, its types, and a program in Node.js that uses it over three real nodes."""

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from qmq import __version__

from ..support.cluster_mesh import ROOT
from .conftest import LIBRARIES, WebCluster

PROGRAM = """
import { connect } from "qmq";

const mesh = connect(JSON.parse(process.argv[2]));
const got = [];
const all = new Promise((resolve) => mesh.subscribe("/queue/node-js", (message) => {
  got.push(message.body);
  message.ack();
  if (got.length === 100) resolve();
}, { ack: "client-individual" }));
for (let number = 0; number < 100; number++) await mesh.send("/queue/node-js", `job ${number}`);
await all;
mesh.close();
console.log(JSON.stringify(got.sort()));
"""

TYPED = """
import { connect, QmqError, type Mesh, type Message } from "qmq";

const mesh: Mesh = connect("ws://127.0.0.1:61680/stomp", {
  token: "t",
  onState: (state, detail) => console.log(state, detail instanceof QmqError ? detail.code : detail),
});
const feed = mesh.subscribe("/fanout/log", (message: Message) => message.nack({ requeue: false }), { from: "next" });
const receipt: Promise<Record<string, string>> = mesh.send("/queue/jobs", new Uint8Array(3), { priority: 9 });
feed.unsubscribe();
"""

WRONG = """
import { connect } from "qmq";

connect("ws://127.0.0.1:61680/stomp").subscribe("/queue/jobs", () => {}, { ack: "client" });
"""


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm (Debian: apt install npm)")
    folder = tmp_path_factory.mktemp("npm")
    packed = run("make", "npm-package", f"DIST={folder}", folder=ROOT)
    assert packed.returncode == 0, packed.stderr
    (folder / "package.json").write_text('{"type": "module"}')
    installed = run("npm", "install", "--offline", "--no-audit", "--no-fund", f"./qmq-{__version__}.tgz", folder=folder)
    assert installed.returncode == 0, installed.stderr
    return folder


def node_js() -> list[str]:
    """The command that runs Node.js with a WebSocket."""
    node = shutil.which("node")
    assert node is not None
    version = re.match(r"v(\d+)", run(node, "--version", folder=ROOT).stdout)
    assert version is not None
    return [node] if int(version[1]) >= 22 else [node, "--experimental-websocket", "--no-warnings"]


def test_the_package_has_the_client_its_types_and_the_licence_in_the_version_of_the_node(program: Path) -> None:
    with tarfile.open(program / f"qmq-{__version__}.tgz") as packed:
        names = {one.name.removeprefix("package/") for one in packed.getmembers()}

    assert names == {"LICENSE", "README.md", "package.json", "qmq.d.ts", "qmq.js"}
    facts = json.loads((program / "node_modules/qmq/package.json").read_text())
    assert facts["version"] == __version__
    assert "dependencies" not in facts


def test_a_program_sends_and_consumes_over_the_mesh(program: Path, mesh: WebCluster) -> None:
    (program / "main.js").write_text(PROGRAM)

    done = run(*node_js(), "main.js", json.dumps(mesh.urls()), folder=program)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == sorted(f"job {number}" for number in range(100))


def test_without_a_websocket_the_error_says_what_to_do(program: Path) -> None:
    (program / "without.js").write_text(
        'import { connect } from "qmq";\n'
        "delete globalThis.WebSocket;\n"
        'try { connect("ws://127.0.0.1:1/stomp"); } catch (error) { console.log(error.code, error.message); }\n'
    )

    done = run(*node_js(), "without.js", folder=program)

    assert done.stdout.startswith("no-websocket ")
    assert "Node.js 22" in done.stdout


@pytest.mark.parametrize(("text", "is_valid"), [(TYPED, True), (WRONG, False)])
def test_types_accept_what_the_client_takes_and_nothing_else(program: Path, text: str, is_valid: bool) -> None:
    checker = LIBRARIES / "typescript/bin/tsc"
    if not checker.exists():
        pytest.skip("needs what npm installs: make browser-test")
    (program / "typed.ts").write_text(text)

    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext"]
    checked = run("node", str(checker), *options, "typed.ts", folder=program)

    assert (checked.returncode == 0) is is_valid, checked.stdout
    assert is_valid or "TS2322" in checked.stdout
