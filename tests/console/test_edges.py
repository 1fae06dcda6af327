"""A user with few rights, hostile names, and a dialog that its page leaves behind."""

import re
from typing import Any

from tests.support.cluster_mesh import Cluster

from .conftest import Console, Problems, sync_api
from .test_safety import log_in, log_out

expect = sync_api.expect

HOSTILE = "ü-漢字-\u202eevil\u200b"


def test_a_user_without_the_right_to_observe_is_shown_that_and_no_pages(
    page: Any, guarded: Console, problems: Problems
) -> None:
    log_in(page, guarded, "root")
    expect(page.get_by_role("heading", level=1)).to_have_text("Mesh")
    page.evaluate(
        """async () => {
          const { change } = await import("/console/api.js");
          const { password_hash } = await change("password-hash", {}, { passcode: "secret" });
          await change("definitions/put/user/plain", {}, { password_hash, groups: ["client"] });
        }"""
    )
    log_out(page)

    log_in(page, guarded, "plain")

    expect(page.locator("main")).to_contain_text("You may not observe this node")
    expect(page.locator("#nav a")).to_have_count(0)
    expect(page.locator("#bar")).not_to_contain_text("connecting")
    page.goto(f"{guarded.address}/#/audit")
    expect(page.locator("main")).to_contain_text("it is for administrators")
    log_out(page)
    problems[:] = [one for one in problems if "401" not in one]  # Before each login.


def test_text_that_shows_nothing_or_turns_the_direction_of_writing_is_shown_by_its_code(
    page: Any, node: Console
) -> None:
    """Whatever becomes text of the page or a label: destinations have no such characters, other names may."""
    page.goto(node.address)
    page.evaluate(
        """async (text) => {
          const { h } = await import("/console/dom.js");
          document.body.append(h("p", { "aria-label": text, "data-key": text }, "name ", text));
        }""",
        HOSTILE,
    )

    paragraph = page.locator("body > p")
    expect(paragraph).to_have_text("name ü-漢字-‹U+202E›evil‹U+200B›")
    expect(paragraph).to_have_attribute("aria-label", "ü-漢字-‹U+202E›evil‹U+200B›")
    expect(paragraph).to_have_attribute("data-key", HOSTILE)


def test_a_dialog_closes_when_another_page_is_shown(page: Any, node: Console) -> None:
    node.send("left", {"body": "x"})
    page.goto(f"{node.address}/#/queue/left")
    page.locator("tbody button.id").click()
    expect(page.get_by_role("dialog")).to_be_visible()

    page.evaluate("location.hash = '#/mesh'")

    expect(page.get_by_role("heading", level=1)).to_have_text("Mesh")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_what_takes_time_says_so_until_it_is_there(page: Any, node: Console) -> None:
    page.route(re.compile("/peek/|dry-run=true"), lambda route: None)
    node.send("slow", {"body": "one"})
    page.goto(f"{node.address}/#/queue/slow")
    expect(page.locator("main")).to_contain_text("Reading …")
    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Counting …")

    page.unroute_all()  # What was held goes on.

    expect(dialog).to_contain_text("1 waiting message would be deleted")
    expect(page.locator("main")).not_to_contain_text("Reading …")
    expect(page.locator("dd").nth(4)).to_have_text("0")


def test_the_number_of_queues_is_never_less_than_what_is_shown(page: Any, node: Console, mesh: Cluster) -> None:
    for name in mesh.names:
        Console(mesh, name).send(f"counted.{name}", {"body": "x"})
    page.goto(f"{node.address}/#/queues")
    expect(page.locator("tbody")).to_contain_text("counted.c")

    shown = re.search(r"1–(\d+) of (\d+)", page.locator("main .row.top").inner_text())
    assert shown is not None and int(shown[1]) <= int(shown[2])


def test_a_takeover_is_no_missing_node_in_the_dialog_of_a_purge(page: Any, node: Console, mesh: Cluster) -> None:
    Console(mesh, "c").send("served", *[{"body": "x"}] * 3)
    mesh.kill("c")
    page.goto(node.address)
    expect(page.locator("svg.picture")).to_contain_text(re.compile("serves (a|b), c"), timeout=60_000)
    page.goto(f"{node.address}/#/queue/served")

    page.get_by_role("button", name="Purge").click()

    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 waiting messages would be deleted")
    expect(dialog).to_contain_text("serves its messages, and they are counted")
    expect(dialog).not_to_contain_text("Not counted")
