"""Each page and each dialog in a browser: nothing hidden is shown, and nothing is wider than the window.

The pictures are in build/console, for eyes.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_mesh import Cluster

from .conftest import Console, Problems, sync_api

expect = sync_api.expect

LOOKS = Path(__file__).parents[2] / "build" / "console"
STATIC = Path(__file__).parents[2] / "qmq" / "admin" / "console" / "static"
TEXT = r"`[^`]*`|\"[^\"]*\""
"""A text of JavaScript."""
SIZES = {"light": (1280, 800), "dark": (390, 844)}

# Page, the tab or kind of definition in it, the button that opens a dialog (its name, or a selector), and the title.
DIALOGS = [
    ("mesh", "", "Search", "Search"),
    ("queue/looked", "", "Publish", "Send a message to looked"),
    ("queue/looked", "", "Pause", "Pause /queue/looked"),
    ("queue/paused", "", "Resume", "Resume /queue/paused"),
    ("queue/looked", "", "Move", "Move messages of /queue/looked"),
    ("queue/looked", "", "Redrive", "Redrive dead letters of /queue/looked"),
    ("queue/looked", "", "Purge", "Purge /queue/looked"),
    ("queue/looked", "", "Delete", "Delete /queue/looked"),
    ("queue/looked", "", "button.id", "Message"),
    ("queue/looked", "Consumers", "Kick", "End the connection b/"),
    ("queue/looked", "Policy", "Change the policy of /queue/looked", "Change the policy /queue/looked"),
    ("queue/looked", "Bindings", "Bind", "Bind /queue/looked"),
    ("queue/looked", "Bindings", "Unbind", "Unbind /queue/looked"),
    ("fanout/looked", "", "button.id", "Message"),
    ("fanout/looked", "", "Publish", "Send a message to looked"),
    ("fanout/looked", "", "Delete", "Delete /fanout/looked"),
    ("topics", "", "Subscribers", "Subscribers of /topic/looked"),
    ("topics", "", "Publish", "Send a message to looked"),
    ("exchanges", "", "Declare an exchange", "Declare an exchange"),
    ("exchanges", "", "[data-key=send-looked]", "Send a message to looked"),
    ("exchanges", "", "[data-key=bind-looked]", "Bind /exchange/looked"),
    ("exchanges", "", "[data-key=delete-looked]", "Delete the exchange looked"),
    ("exchanges", "", "tr:has-text('/exchange/looked') button.bad", "Unbind /queue/looked"),
    ("connections", "", "Kick", "End the connection "),
    ("users", "", "Add a user", "Add a user"),
    ("users", "", "[data-key=edit-ann]", "Change ann"),
    ("users", "", "[data-key=delete-ann]", "Delete the user ann"),
    ("users", "", "Add a permission", "Add a permission"),
    ("users", "", "[data-key^=change-]", "Change a permission"),
    ("users", "", "[data-key^=remove-]", "Delete a permission"),
    ("policies", "", "Add a policy", "Add a policy"),
    ("definitions", "Policies", "Add a policy", "Add a policy"),
    ("definitions", "Policies", "[data-key='change-/queue/looked']", "Change the policy /queue/looked"),
    ("definitions", "Policies", "[data-key='delete-/queue/looked']", "Delete the policy /queue/looked"),
    ("definitions", "Declared queues", "Add a declaration", "Add a declaration"),
    ("definitions", "Declared queues", "[data-key='change-/queue/declared']", "Change the declaration /queue/declared"),
    ("definitions", "Declared queues", "[data-key='delete-/queue/declared']", "Delete the declaration /queue/declared"),
    ("definitions", "Limits", "Add a limit", "Add a limit"),
    ("definitions", "Limits", "[data-key='change-user:looked']", "Change the limit user:looked"),
    ("definitions", "Limits", "[data-key='delete-user:looked']", "Delete the limit user:looked"),
    ("definitions", "Archives", "Add an archive", "Add an archive"),
    ("definitions", "Archives", "[data-key='change-looked']", "Change the archive looked"),
    ("definitions", "Archives", "[data-key='delete-looked']", "Delete the archive looked"),
    ("definitions", "Schemas", "Add a schema", "Add a schema"),
    ("definitions", "Schemas", "[data-key='change-looked']", "Change the schema looked"),
    ("definitions", "Schemas", "[data-key='delete-looked']", "Delete the schema looked"),
]
DEFINED: dict[str, dict[str, Any]] = {
    "policy/queue/looked": {"delivery_limit": 3, "dead_letter": "/queue/looked-dead"},
    "limit/user%3Alooked": {"connections_max": 10},
    "archive/looked": {"table": "/data/archive"},
    "schema/looked": {"type": "record", "name": "looked", "fields": [{"name": "order", "type": "long"}]},
    "permission/user%3Alooked%20allow%20send%20%2Fqueue%2Flooked": {
        "user": "looked",
        "allow": ["send"],
        "destinations": ["/queue/looked"],
    },
}
# A first user would close the mesh: the page gets this one in place of the answer of the node.
USERS = {"definitions": [{"name": "ann", "value": {"groups": ["operator"], "password_hash": "$argon2id$"}}]}
PAGES = ["mesh", "charts", "queues", "fanouts", "topics", "exchanges", "connections", "trace", "users", "policies"]
PAGES += ["definitions", "audit", "queue/looked", "fanout/looked"]

SHOWN_THOUGH_HIDDEN = """() => [...document.querySelectorAll("[hidden]")]
  .filter((one) => getComputedStyle(one).display !== "none").map((one) => one.textContent)"""
LABELS = """() => [...document.querySelectorAll("dialog label")]
  .filter((one) => one.checkVisibility()).map((one) => one.innerText)"""
CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)"""
TOO_WIDE = "() => document.documentElement.scrollWidth > innerWidth"


@pytest.fixture
def looked(node: Console, mesh: Cluster) -> Iterator[Console]:
    """What each page shows something of. What others would notice is taken back."""
    node.send("looked", {"body": '{"order": 1}', "headers": {"tenant": "acme"}})
    node.send("looked", {"body": "one"}, kind="fanouts")
    client = mesh.client("b")
    client.subscribe("/queue/looked", "s", ack="client-individual", headers={"prefetch-count": "1"})
    client.subscribe("/topic/looked", "t")
    node.send("paused", {"body": "one"})
    control = "/v1/control"
    node.post(f"{control}/pause/queue/paused")
    node.post(f"{control}/declare/queue/declared", {"delivery_limit": 3})
    node.post(f"{control}/declare/exchange/looked", {"type": "direct"})
    node.post(f"{control}/bind/queue/looked?source=/exchange/looked&key=eu", {})
    for name, value in DEFINED.items():
        node.post(f"{control}/definitions/put/{name}", value)
    yield node
    for name in [*DEFINED, "queue/queue/declared"]:
        node.post(f"{control}/definitions/delete/{name}")
    node.post(f"{control}/delete/exchange/looked")
    node.post(f"{control}/resume/queue/paused")


def look(page: Any, node: Console, scheme: str, path: str) -> None:
    """Show a page in one of the two sizes and schemes."""
    width, height = SIZES[scheme]
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{node.address}/#/{path}")
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator("#bar")).to_contain_text("3 nodes")


def photograph(page: Any, name: str) -> None:
    LOOKS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=LOOKS / f"{re.sub('[^a-z]+', '-', name.lower()).strip('-')}.png")


@pytest.mark.parametrize("scheme", SIZES)
@pytest.mark.parametrize("path", PAGES)
def test_page_fits_the_window(page: Any, looked: Console, path: str, scheme: str) -> None:
    look(page, looked, scheme, path)
    page.wait_for_load_state("networkidle") if path == "trace" else page.wait_for_timeout(300)

    photograph(page, f"{path}-{scheme}")

    assert page.evaluate(SHOWN_THOUGH_HIDDEN) == []
    assert not page.evaluate(TOO_WIDE)


def dialogs_of_the_source() -> Counter[str]:
    """Titles of all dialogs that the console's source opens, as regular expressions (`Pause .+`), and how many places
    open one.
    """
    sources = {one.name: one.read_text() for one in STATIC.rglob("*.js")}
    assert [name for name, text in sources.items() if ".showModal(" in text] == ["dialogs.js"], "all are made there"
    kinds = re.findall(r' one: "(\w+)"', sources["forms.js"])
    found: Counter[str] = Counter()
    for name, text in sources.items():
        imported = re.search(r'import \{([^}]*)\} from "\.{1,2}/dialogs\.js"', text)
        names = dict((one.strip().split(" as ") * 2)[:2] for one in imported[1].split(",")) if imported else {}
        openers = [names[one] for one in ("act", "ask") if one in names]
        for call in re.finditer(
            rf"(?<![\w.])(?<!function )({'|'.join([*openers, 'bulk'])})\((.{{0,160}})", text, re.DOTALL
        ):
            if not openers or re.match(r"\{\s*\.\.\.what", call[2]):
                continue  # The callers of `bulk` give the title.
            start = rf'(?:"\w+", destination, )?(?:{{\s*title: )?(?:\w+ \? ({TEXT}) : )?({TEXT}),'
            given = re.match(start, call[2])
            assert given is not None, f"{name}: a dialog without a title at its beginning: {call[0]}"
            for title in filter(None, given.groups()):
                each = kinds if "${about.one}" in title else [""]
                found.update({pattern_of(title[1:-1].replace("${about.one}", kind)) for kind in each})
    return found


def pattern_of(template: str) -> str:
    return ".+".join(map(re.escape, re.split(r"\$\{(?:[^{}]|\{[^}]*\})*\}", template)))


def test_each_dialog_of_the_source_is_looked_at() -> None:
    of_source = dialogs_of_the_source()
    looked_at: Counter[str] = Counter()
    for title in {title for *_, title in DIALOGS}:
        # `Delete .+` fits other titles, too: the longest is meant.
        looked_at.update(sorted((one for one in of_source if re.match(one, title)), key=len)[-1:])

    assert of_source - looked_at == Counter()


@pytest.mark.parametrize("scheme", SIZES)
@pytest.mark.parametrize(("path", "tab", "button", "title"), DIALOGS)
def test_dialog_asks_only_what_it_must(
    page: Any, looked: Console, problems: Problems, path: str, tab: str, button: str, title: str, scheme: str
) -> None:
    if path == "users":
        page.route("**/control/definitions/list/user*", lambda route: route.fulfill(json=USERS))
    look(page, looked, scheme, path)
    if tab:
        page.locator("[role=tab], [aria-pressed]").filter(has_text=tab).click()
    is_selector = "[" in button or "." in button
    opens = page.locator(button) if is_selector else page.get_by_role("button", name=button, exact=True)
    opens.first.click()
    expect(page.get_by_role("dialog").get_by_role("heading")).to_contain_text(title)
    command = page.locator("dialog .cli code")
    if command.count():
        expect(command).not_to_be_empty()

    photograph(page, f"{path}-{tab}-{button}-{title}-{scheme}")

    labels = page.evaluate(LABELS)
    problems.clear()  # A deletion of what has consumers is refused, and the dialog says so.
    assert page.evaluate(SHOWN_THOUGH_HIDDEN) == []
    assert not any(label.startswith("Type ") for label in labels), labels
    assert not page.evaluate(TOO_WIDE)
    inside = page.locator("dialog").bounding_box()
    assert inside["x"] >= 0 and inside["x"] + inside["width"] <= SIZES[scheme][0]


def test_no_column_of_the_mesh_is_cut_off_while_a_node_is_down(
    page: Any, node: Console, mesh: Cluster, problems: Problems
) -> None:
    mesh.kill("c")
    look(page, node, "light", "mesh")
    expect(page.locator("main")).to_contain_text("c does not respond")

    photograph(page, "mesh-node-down")

    problems.clear()
    assert page.evaluate(CUT) == []
