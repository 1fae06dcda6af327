"""The tutorial about a web page, as it is written, on ports of its own: three nodes, one of which is killed."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qmq.testing.ports import free_ports

from ..support.pages import blocks, moved, paste

PAGE = "docs/web-page.md"
START, TO_PAGE, FROM_PAGE, KILL, STOP = blocks(PAGE, "bash")
(HTML,) = blocks(PAGE, "html")
USUAL = [f"127.0.0.1:{port + number}" for port in (61613, 61680, 61713) for number in range(3)]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The origin of a server of this folder, as `python3 -m http.server` is one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.timeout(300)
def test_the_page_shows_messages_sends_one_and_goes_on_when_its_node_is_killed(
    tabs: Any, served: str, tmp_path: Path
) -> None:
    places = dict(zip(USUAL, (f"127.0.0.1:{port}" for port in free_ports(len(USUAL))), strict=True))
    places["http://127.0.0.1:8000"] = served

    def run(script: str) -> str:
        done = paste(moved(script, places), tmp_path)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def shown() -> list[str]:
        lines: list[str] = tab.page.locator("li").all_text_contents()
        return lines

    (tmp_path / "page.html").write_text(moved(HTML, places))
    run(START)
    try:
        first, second = TO_PAGE.splitlines()
        run(first)
        tab = tabs(f"{served}/page.html")
        tab.page.locator("li").nth(0).wait_for()
        run(second)
        tab.page.locator("li").nth(1).wait_for()
        assert shown() == ["good morning", "from node c"]

        tab.page.get_by_placeholder("a question").fill("how are you?")
        tab.page.get_by_role("button").click()
        assert "/queue/questions  how are you?" in run(FROM_PAGE)
        tab.page.get_by_text("sent: how are you?").wait_for()

        run(KILL)
        tab.page.locator("li").nth(2).wait_for()
        assert shown() == ["good morning", "from node c", "node a is gone"]
    finally:
        run(STOP)
