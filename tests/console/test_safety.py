"""Logins and roles, hostile messages, and pages of other origins."""

import base64
import http.server
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Console, sync_api

expect = sync_api.expect

OTHER_PAGE = """<!doctype html><title>other</title><script>
const node = new URLSearchParams(location.search).get("node");
const PURGE = "/v1/control/purge/queue/safe";
const json = { "content-type": "application/json" };
async function tried(path, options) {
  try {
    const response = await fetch(node + path, { credentials: "include", ...options });
    return response.type === "opaque" ? "opaque" : String(response.status);
  } catch {
    return "refused";
  }
}
async function run() {
  return {
    read: await tried("/v1/control/connections?scope=mesh"),
    blind: await tried("/v1/control/connections", { mode: "no-cors" }),
    post: await tried(PURGE, { method: "POST", headers: json }),
    form: await tried(PURGE, { method: "POST", mode: "no-cors", body: "x" }),
    login: await tried("/v1/console/login"),
  };
}
</script>"""

FRAME = """(address) => {
  const frame = document.createElement("iframe");
  frame.src = address;
  document.body.append(frame);
}"""


@pytest.fixture
def problems() -> Any:
    """What is refused is an error line of the browser; exceptions of the page are none."""

    class Expected(list[str]):
        def watch(self, page: Any) -> None:
            page.on("pageerror", lambda error: self.append(str(error)))

    return Expected()


@pytest.fixture
def other_origin() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802 (the name that the library calls)
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(OTHER_PAGE.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def log_in(page: Any, node: Console, user: str, passcode: str = "secret") -> None:
    page.goto(node.address)
    page.get_by_label("User").fill(user)
    page.get_by_label("Passcode").fill(passcode)
    page.get_by_role("button", name="Log in").click()


def log_out(page: Any) -> None:
    """Until the page says so: a page that is left at once may take the request with it."""
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def pages_of(page: Any) -> list[str]:
    expect(page.locator("#nav a").first).to_be_visible()
    return [text.strip() for text in page.locator("#nav a").all_inner_texts()]


def test_wrong_passcode_is_said_and_the_right_one_counts(page: Any, guarded: Console) -> None:
    log_in(page, guarded, "night", "wrong")
    expect(page.get_by_role("alert")).to_contain_text("wrong")

    log_in(page, guarded, "night")

    expect(page.get_by_role("heading", level=1)).to_have_text("Mesh")
    page.reload()
    expect(page.locator("#bar")).to_contain_text("night")


def test_logout_ends_the_login(page: Any, guarded: Console) -> None:
    log_in(page, guarded, "watch")
    expect(page.get_by_role("heading", level=1)).to_have_text("Mesh")

    log_out(page)

    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def test_roles_decide_which_pages_and_buttons_there_are(page: Any, guarded: Console) -> None:
    root = "Basic " + base64.b64encode(b"root:secret").decode()
    guarded.post("/v1/queues/roles/messages", {"messages": [{"body": "x"}]}, authorization=root, qmq_batch="true")

    log_in(page, guarded, "watch")
    assert not {"Users", "Definitions", "Audit"} & set(pages_of(page))
    page.goto(f"{guarded.address}/#/queue/roles")
    expect(page.locator("main")).to_contain_text("You may not read messages of this queue.")
    expect(page.get_by_role("button", name=re.compile("Purge|Pause|Publish|Delete"))).to_have_count(0)
    log_out(page)

    log_in(page, guarded, "night")
    assert "Users" not in pages_of(page)
    page.goto(f"{guarded.address}/#/queue/roles")
    expect(page.get_by_role("button", name="Purge")).to_be_visible()
    expect(page.get_by_role("button", name="Publish")).to_have_count(0)
    expect(page.locator("tbody button.id")).to_have_count(1)
    log_out(page)

    log_in(page, guarded, "root")
    assert {"Users", "Definitions", "Audit"} <= set(pages_of(page))


def test_user_is_added_and_may_log_in_and_its_rights_are_shown(page: Any, guarded: Console) -> None:
    log_in(page, guarded, "root")
    expect(page.get_by_role("heading", level=1)).to_have_text("Mesh")
    page.goto(f"{guarded.address}/#/users")
    page.get_by_role("button", name="Add a user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("ann")
    dialog.get_by_label("Groups").fill("client")
    dialog.get_by_label("Passcode").fill("of ann")
    expect(dialog.get_by_role("button", name="Add")).to_be_enabled()
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_role("row", name=re.compile("^ann"))).to_contain_text("client")
    page.get_by_role("row", name=re.compile("^ann")).get_by_role("button", name="What may it do?").click()
    page.get_by_label("Destination", exact=True).fill("/queue/jobs")
    page.get_by_role("button", name="Show").click()

    expect(page.locator("main")).to_contain_text("may send")
    expect(page.locator("main")).to_contain_text("may not administer")
    log_out(page)
    log_in(page, guarded, "ann", "of ann")
    expect(page.locator("#bar")).to_contain_text("ann")


HOSTILE = {
    "markup": {"body": '<script>document.title="taken"</script><img src=x onerror="document.title=\'taken\'">'},
    "direction": {"body": "pay \u202e000,1 ‮ \u2066to\u2069 mallory\u200b"},
    "bytes": {"body_base64": base64.b64encode(b"\xff\xfe\x00\x80(\xc3\x28)").decode()},
    "large": {"body": "<b>" * 333_333},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_body_is_only_text(page: Any, node: Console, kind: str) -> None:
    node.send(f"hostile.{kind}", {**HOSTILE[kind], "headers": {"<b>x</b>": "<img src=x onerror=alert(1)>"}})
    dialogs: list[str] = []
    page.on("dialog", lambda one: (dialogs.append(one.message), one.dismiss()))
    page.goto(f"{node.address}/#/queue/hostile.{kind}")
    page.locator("tbody button.id").click()
    dialog = page.get_by_role("dialog")
    for tab in ("Text", "JSON", "Hex"):
        dialog.get_by_role("tab", name=tab).click()

    dialog.get_by_role("tab", name="Text").click()
    text = dialog.locator("pre").inner_text()

    assert dialogs == []
    assert page.title().startswith(f"hostile.{kind}")
    assert page.locator("main img, dialog img, main script, dialog script, main b > b").count() == 0
    if kind == "markup":
        assert text == HOSTILE[kind]["body"]
    if kind == "direction":
        assert "‹U+202E›" in text and "\u202e" not in text and "‹U+200B›" in text
    if kind == "bytes":
        assert "not UTF-8" in dialog.inner_text()
    if kind == "large":
        assert len(text) <= 70_000
        expect(dialog).to_contain_text("999,999 characters are shown")


def test_hostile_name_of_a_queue_is_only_text(page: Any, node: Console) -> None:
    name = "<img src=x onerror=alert(1)>\u202e"
    node.send("%3Cimg%20src=x%20onerror=alert(1)%3E", {"body": "x"})
    page.goto(f"{node.address}/#/queues")
    page.get_by_role("searchbox").fill("<img")

    page.get_by_role("link", name=re.compile("<img")).click()

    expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("main img").count() == 0
    assert name.startswith("<img")


def test_page_of_another_origin_reads_and_changes_nothing(page: Any, guarded: Console, other_origin: str) -> None:
    log_in(page, guarded, "root")
    expect(page.get_by_role("heading", level=1)).to_have_text("Mesh")

    page.goto(f"{other_origin}/?node={guarded.address}")
    found = page.evaluate("run()")

    assert found["read"] == "refused"
    assert found["post"] == "refused"
    assert found["login"] == "refused"
    assert found["blind"] == found["form"] == "refused"


def test_page_of_another_origin_does_nothing_to_a_node_without_users(
    page: Any, node: Console, other_origin: str
) -> None:
    node.send("safe", *[{"body": "x"}] * 3)

    page.goto(f"{other_origin}/?node={node.address}")
    found = page.evaluate("run()")

    assert found["read"] == found["post"] == "refused"
    assert node.depth("safe") == 3


def test_page_cannot_be_framed(page: Any, node: Console, other_origin: str) -> None:
    page.goto(f"{other_origin}/?node={node.address}")

    page.evaluate(FRAME, node.address)
    page.wait_for_timeout(1000)

    assert all(
        not frame.url.startswith(node.address) or not frame.query_selector("#nav a") for frame in page.frames[1:]
    )
