"""Search from anywhere, by the keyboard."""

import re
from typing import Any

from .conftest import Console, Problems, sync_api

expect = sync_api.expect


def test_a_slash_opens_the_search_and_enter_goes_to_the_first_of_what_is_found(page: Any, node: Console) -> None:
    node.send("search.orders", {"body": "x"})
    node.send("search-log", {"body": "x"}, kind="fanouts")
    page.goto(f"{node.address}/#/audit")
    expect(page.get_by_role("heading", level=1)).to_have_text("Audit")

    page.keyboard.press("/")
    dialog = page.get_by_role("dialog", name="Search")
    expect(dialog).to_be_visible()
    page.keyboard.type("search")
    expect(dialog.get_by_role("link")).to_have_count(2)
    expect(dialog.get_by_role("link").first).to_have_text("queue search.orders")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("search-log")
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.keyboard.press("/")
    page.keyboard.type("search.or")
    expect(page.get_by_role("dialog").get_by_role("link")).to_have_text(["queue search.orders"])
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/queue/search.orders$"))


def test_pages_and_message_ids_are_found_without_the_nodes(page: Any, node: Console, problems: Problems) -> None:
    page.goto(node.address)
    expect(page.get_by_role("heading", level=1)).to_have_text("Mesh")
    page.get_by_role("button", name="Search").click()
    page.keyboard.type("conn")
    expect(page.get_by_role("dialog").get_by_role("link").first).to_have_text("page Connections")

    page.get_by_role("searchbox").fill("a-13adcd65c7db5687-2")
    expect(page.get_by_role("dialog").get_by_role("link").first).to_have_text("message a-13adcd65c7db5687-2")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/trace/a-13adcd65c7db5687-2$"))
    problems.clear()  # No node has it.


def test_a_slash_in_a_text_is_a_slash(page: Any, node: Console) -> None:
    page.goto(f"{node.address}/#/queues")
    field = page.get_by_role("searchbox")
    field.click()
    page.keyboard.press("/")

    expect(field).to_have_value("/")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_what_nothing_has_in_its_name_is_said(page: Any, node: Console) -> None:
    page.goto(node.address)
    page.get_by_role("button", name="Search").click()
    page.keyboard.type("no-such-thing")

    expect(page.get_by_role("dialog")).to_contain_text("Nothing has this in its name.")
