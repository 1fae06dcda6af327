"""Pages in a real Chromium, three real nodes that they use, and the small servers that the pages come from.

A page is empty, and a test runs scripts in it. It comes from `site`, whose origin the nodes list, from `stranger`,
whose origin they do not, or from a node. Clients of others are in build/browser, where `make browser-test` puts them.

The nodes have one user, ann. Clients without login may do everything but what has `locked` in its name.
"""

import contextlib
import shutil
import threading
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qmq.cli import main

from ..support.cluster_mesh import ROOT, Cluster
from ..support.cluster_wait import PATIENCE_SECONDS

HERE = Path(__file__).parent
LIBRARIES = ROOT / "build" / "browser" / "node_modules"
CLUSTER = pytest.StashKey[Cluster]()

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP rebound.example 127.0.0.1",
)
PATIENCE_MS = PATIENCE_SECONDS * 1000
PASSCODE = "correct horse"


class Site(BaseHTTPRequestHandler):
    """An empty page at every path, the helpers, and the clients of others below /lib/."""

    def do_GET(self) -> None:
        kind, body = "text/html; charset=utf-8", b'<!doctype html><script src="/helpers.js"></script>'
        if self.path == "/helpers.js":
            kind, body = "text/javascript", (HERE / "helpers.js").read_bytes()
        elif self.path.startswith("/lib/"):
            kind, body = "text/javascript", (LIBRARIES / self.path.removeprefix("/lib/")).read_bytes()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The origin of a server of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    with serving() as origin:
        yield origin


@pytest.fixture(scope="session")
def stranger() -> Iterator[str]:
    with serving() as origin:
        yield origin


class WebCluster(Cluster):
    """Nodes with a web port each."""

    def web(self, name: str) -> str:
        """HOST:PORT of the web port of a node."""
        host, port = self.web_address(name)
        return f"{host}:{port}"

    def urls(self, *names: str) -> list[str]:
        """Where WebSockets of STOMP go."""
        return [f"ws://{self.web(name)}/stomp" for name in names or self.names]


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory, site: str) -> Iterator[WebCluster]:
    hashed = CliRunner().invoke(main, ["config", "hash"], input=PASSCODE + "\n").output.split()[-1]
    with WebCluster(tmp_path_factory.mktemp("browser")) as made:
        for name in made.names:
            made.node_files[name] += f"""
[[stomp]]
address = "{made.at(name)}"
anonymous = true

[[http]]
address = "{made.web(name)}"
anonymous = true
origins = ["{site}"]

[[users]]
name = "ann"
password_hash = '{hashed}'
groups = ["client"]

[[permissions]]
user = "anonymous"
allow = ["send", "subscribe", "declare", "administer", "observe"]
destinations = ["/*"]

[[permissions]]
user = "anonymous"
deny = ["send", "subscribe"]
destinations = ["/queue/locked*", "/fanout/locked*"]
"""
        yield made


@pytest.fixture
def mesh(cluster: WebCluster, request: pytest.FixtureRequest) -> Iterator[WebCluster]:
    """Three nodes a, b, c, healthy."""
    request.node.stash[CLUSTER] = cluster
    cluster.make_healthy()
    yield cluster
    cluster.close_clients()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`: make browser-test")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Chromium (Debian: apt install chromium)")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        opened.close()


class Tab:
    """One page of its own context. What its scripts throw, and do not catch, fails the test."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, url: str) -> "Tab":
        self.page.goto(url)
        return self

    def load(self, *libraries: str) -> "Tab":
        """Scripts of build/browser, by their path there."""
        for library in libraries:
            if not (LIBRARIES / library).exists():
                pytest.skip("needs the clients that npm installs: make browser-test")
            self.page.add_script_tag(url=f"/lib/{library}")
        return self

    def run(self, script: str, *arguments: object) -> Any:
        """Call a function of JavaScript; a promise is awaited."""
        return self.page.evaluate(f"(given) => ({script})(...given)", list(arguments))


@pytest.fixture
def tabs(browser: Any) -> Iterator[Any]:
    """Makes tabs: `tabs(url)`."""
    opened: list[Tab] = []
    contexts: list[Any] = []

    def open_tab(url: str) -> Tab:
        context = browser.new_context()
        contexts.append(context)
        tab = Tab(context.new_page())
        opened.append(tab)
        return tab.open(url)

    yield open_tab
    for context in contexts:
        context.close()
    assert [error for tab in opened for error in tab.errors] == []


@pytest.fixture
def tab(tabs: Any, site: str) -> Tab:
    """A page of an origin that the nodes list."""
    page: Tab = tabs(site)
    return page


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cluster = item.stash.get(CLUSTER, None)
    if cluster is not None and report.failed:
        for name, text in cluster.log_tails():
            report.sections.append((f"node {name}: the end of its log", text))
    return report
