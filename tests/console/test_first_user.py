"""A mesh without users gets its first one from the page, which closes it for clients without login."""

import re
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_mesh import Cluster

from .conftest import CHROMIUM, Console, Problems, sync_api

expect = sync_api.expect


@pytest.fixture
def open_node(tmp_path: Path) -> Iterator[Console]:
    """A node without users, of this test alone."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian: apt install chromium)")
    with Cluster(tmp_path, members=["a"]) as made:
        made.start("a")
        yield Console(made, "a")


def test_the_first_user_is_an_administrator_and_the_page_goes_on_as_this_user(
    page: Any, open_node: Console, problems: Problems
) -> None:
    page.goto(f"{open_node.address}/#/users")
    expect(page.get_by_role("region", name="Users")).to_contain_text("No users")
    page.get_by_role("button", name="Add a user").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The first user closes the mesh")
    expect(dialog.get_by_label("Groups")).to_have_value("administrator")
    dialog.get_by_label("Name").fill("ann")
    dialog.get_by_label("Passcode").fill("of ann")
    dialog.get_by_label("Groups").fill("client")
    expect(dialog.get_by_role("alert")).to_contain_text("First add a user of the group administrator")
    expect(dialog.get_by_role("button", name="Add")).to_be_disabled()
    problems.clear()  # the refusal

    dialog.get_by_label("Groups").fill("administrator, keepers")
    expect(dialog).to_contain_text("No permission names the group keepers.")
    expect(dialog.get_by_role("alert")).to_have_count(0)
    dialog.get_by_role("button", name="Add").click()

    expect(page.get_by_role("row", name=re.compile("^ann"))).to_contain_text("administrator")
    expect(page.locator("#bar")).to_contain_text("ann")
    expect(page.locator("#said")).to_contain_text("ann is defined on all nodes.")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        open_node.depth("x")
    page.reload()
    expect(page.get_by_role("row", name=re.compile("^ann"))).to_be_visible()
