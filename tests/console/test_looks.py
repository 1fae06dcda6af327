"""Each page and each dialog in a browser: nothing hidden is shown, and nothing is wider than the window.

The pictures are in build/console, for eyes.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_mesh import Cluster

from .conftest import Console, Problems, sync_api

expect = sync_api.expect

LOOKS = Path(__file__).parents[2] / "build" / "console"
SIZES = {"light": (1280, 800), "dark": (390, 844)}

MESSAGE = "a message"
# Page, the tab of it, and the button that opens a dialog.
DIALOGS = [
    ("mesh", "", "Search"),
    ("queue/looked", "", "Publish"),
    ("queue/looked", "", "Pause"),
    ("queue/looked", "", "Move"),
    ("queue/looked", "", "Redrive"),
    ("queue/looked", "", "Purge"),
    ("queue/looked", "", "Delete"),
    ("queue/looked", "", MESSAGE),
    ("queue/looked", "Consumers", "Kick"),
    ("queue/looked", "Policy", "Change the policy of /queue/looked"),
    ("queue/looked", "Bindings", "Bind"),
    ("fanout/looked", "", MESSAGE),
    ("topics", "", "Subscribers"),
    ("topics", "", "Publish"),
    ("exchanges", "", "Declare an exchange"),
    ("exchanges", "", "Publish"),
    ("exchanges", "", "Bind"),
    ("connections", "", "Kick"),
    ("users", "", "Add a user"),
    ("users", "", "Add a permission"),
    ("policies", "", "Add a policy"),
]
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
def looked(node: Console, mesh: Cluster) -> Console:
    """What each page shows something of."""
    node.send("looked", {"body": '{"order": 1}', "headers": {"tenant": "acme"}})
    node.send("looked", {"body": "one"}, kind="fanouts")
    client = mesh.client("b")
    client.subscribe("/queue/looked", "s", ack="client-individual", headers={"prefetch-count": "1"})
    client.subscribe("/topic/looked", "t")
    return node


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


@pytest.mark.parametrize("scheme", SIZES)
@pytest.mark.parametrize(("path", "tab", "button"), DIALOGS)
def test_dialog_asks_only_what_it_must(
    page: Any, looked: Console, problems: Problems, path: str, tab: str, button: str, scheme: str
) -> None:
    look(page, looked, scheme, path)
    if tab:
        page.get_by_role("tab", name=tab).click()
    opens = page.locator("button.id") if button == MESSAGE else page.get_by_role("button", name=button, exact=True)
    opens.first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    command = page.locator("dialog .cli code")
    if command.count():
        expect(command).not_to_be_empty()

    photograph(page, f"{path}-{tab}-{button}-{scheme}")

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
