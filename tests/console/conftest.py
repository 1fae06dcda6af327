"""A real browser on real nodes: three without users, and one with users for logins and roles.

Skipped where Chromium, Playwright or axe-core is missing; `make console-test` installs all but Chromium.
"""

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import PATIENCE_SECONDS, eventually

sync_api = pytest.importorskip("playwright.sync_api", reason="make console-test installs Playwright")
PATIENCE_MS = PATIENCE_SECONDS * 1000
sync_api.expect.set_options(timeout=PATIENCE_MS)

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "docs" / "images"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = HERE / "node_modules" / "axe-core" / "axe.min.js"

# No graphics card, no sandbox of its own inside a container, and no requests of the browser to anywhere else.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

USERS = """
[[users]]
name = "root"
password_hash = "{hash}"
groups = ["administrator", "client"]

[[users]]
name = "night"
password_hash = "{hash}"
groups = ["operator"]

[[users]]
name = "watch"
password_hash = "{hash}"
groups = ["observer"]
"""


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian: apt install chromium)")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Console:
    """The console of one node, and the node itself over HTTP."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        peer = cluster.fleet.peers.peer(node)
        assert peer is not None and peer.http is not None
        self.address = f"http://127.0.0.1:{peer.http.port}"

    def post(self, path: str, body: object = None, **headers: str) -> Any:
        lines = {
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, method="POST", headers=lines)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def send(self, queue: str, *messages: dict[str, Any], kind: str = "queues") -> None:
        self.post(f"/v1/{kind}/{queue}/messages", {"messages": list(messages)}, qmq_batch="true")

    def show(self, verb: str) -> Any:
        with urllib.request.urlopen(f"{self.address}/v1/control/{verb}", timeout=30) as response:
            return json.load(response)

    def depth(self, queue: str) -> int:
        """Messages of the queue on all nodes."""
        return int(self.show(f"count-msgs/queue/{queue}?scope=mesh")["num_messages"])

    def samples(self, node: str) -> int:
        """How many a node of the mesh has taken, one in 10 seconds."""
        return len(self.show("history?scope=mesh")["nodes"][node]["at_us"])


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian: apt install chromium)")
    with Cluster(tmp_path_factory.mktemp("three")) as made:
        made.make_healthy()
        yield made


@pytest.fixture
def node(mesh: Cluster) -> Console:
    """Node a of a healthy mesh, whose nodes deliver: a moment after their start they may not yet."""
    mesh.make_healthy()
    eventually(
        lambda: all(mesh.status(name).get("held") is False for name in mesh.names),
        lambda: f"a node delivers nothing: {[mesh.status(name).get('held') for name in mesh.names]}",
    )
    return Console(mesh, "a")


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A node with users; the passcode of each is `secret`."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian: apt install chromium)")
    from argon2 import PasswordHasher

    text = USERS.format(hash=PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret"))
    with Cluster(tmp_path_factory.mktemp("guarded"), members=["a"], node_files={"a": text}) as made:
        made.logins["a"] = ("watch", "secret")
        made.start("a")
        yield Console(made, "a")


class Problems(list[str]):
    """What the browser reports as wrong: exceptions, and what its policies have stopped."""

    def watch(self, page: Any) -> None:
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("console", lambda line: self.append(line.text) if line.type == "error" else None)


@pytest.fixture
def problems() -> Problems:
    return Problems()


@pytest.fixture
def page(chromium: Any, problems: Problems) -> Iterator[Any]:
    """An empty page of a browser without cookies. At the end of the test nothing may have gone wrong in it."""
    context = chromium.new_context(viewport={"width": 1340, "height": 740})
    context.set_default_timeout(PATIENCE_MS)
    made = context.new_page()
    problems.watch(made)
    yield made
    context.close()
    assert problems == []


def picture(page: Any, name: str) -> None:
    """A picture for the docs, if they are wanted."""
    if os.environ.get("QMQ_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        page.screenshot(path=PICTURES / f"{name}.png")
