"""The largest mesh on the first page: eight nodes, all links, one node killed and started again."""

import re
from typing import Any

import pytest

from tests.support.cluster_mesh import Cluster

from .conftest import CHROMIUM, Console, sync_api

expect = sync_api.expect

NODES = 8
LINKS = NODES * (NODES - 1) // 2
SECONDS = 90_000
"""For eight processes on few cores; each wait ends when its condition holds."""

PLACES = "(boxes) => boxes.map((box) => box.getBoundingClientRect().toJSON())"


def test_mesh_of_eight_shows_all_nodes_and_links_also_while_one_is_dead(
    page: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian: apt install chromium)")
    with Cluster(tmp_path_factory.mktemp("eight"), "eight.toml") as mesh:
        mesh.start(*mesh.names)
        last = mesh.names[-1]
        page.goto(Console(mesh, mesh.names[0]).address)
        drawing = page.locator("svg.picture")
        expect(page.locator("#bar")).to_contain_text("8 nodes", timeout=SECONDS)
        expect(drawing.locator("line.link")).to_have_count(LINKS)
        expect(drawing.locator("line.bad")).to_have_count(0, timeout=SECONDS)
        # All of one drawing: there is a new one each second.
        boxes = drawing.locator("rect.box").evaluate_all(
            "(all) => all.map((one) => one.getBoundingClientRect().toJSON())"
        )
        assert len(boxes) == NODES
        assert not any(overlap(one, other) for at, one in enumerate(boxes) for other in boxes[at + 1 :])

        mesh.kill(last)

        expect(page.locator("#bar")).to_contain_text("7 of 8 nodes respond", timeout=SECONDS)
        expect(drawing.locator("line.bad")).to_have_count(NODES - 1, timeout=SECONDS)
        expect(page.get_by_role("row", name=re.compile(f"^{last} "))).to_contain_text("Its numbers are missing here")
        mesh.start(last)
        expect(page.locator("#bar")).to_contain_text("8 nodes", timeout=SECONDS)
        expect(drawing.locator("line.bad")).to_have_count(0, timeout=SECONDS)
        expect(page.locator("section.flush tbody tr")).to_have_count(NODES)
        page.goto("about:blank")  # It asks no node that has ended.


def overlap(one: Any, other: Any) -> bool:
    """Whether two boxes of the picture cover each other."""
    return bool(
        one["x"] < other["x"] + other["width"]
        and other["x"] < one["x"] + one["width"]
        and one["y"] < other["y"] + other["height"]
        and other["y"] < one["y"] + one["height"]
    )
