"""`/control/conditions`: of one node or of all, the most severe first, page by page."""

import json
from typing import Any

import pytest
from trio.testing import MockClock

from qmq.admin.list_verbs import CONDITIONS, PAST
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send


async def conditions_of(client: Client, destination: str = CONDITIONS, **headers: str) -> dict[str, Any]:
    await client.send(send(destination, "", "r", **headers))
    return dict((await client.next("RECEIPT")).head.headers)


async def test_the_conditions_of_all_nodes_come_the_most_severe_first(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")
        await eventually(lambda: not any(node.conditions.present() for node in mesh.nodes.values()))
        mesh.nodes["a"].raise_condition("reload", "a file")
        mesh.nodes["b"].raise_condition("disk-full", "no space")

        everywhere = await conditions_of(client, scope="mesh")
        here = await conditions_of(client)

    assert [(one["node"], one["code"]) for one in json.loads(everywhere["conditions"])] == [
        ("b", "disk-full"),
        ("a", "reload"),
    ]
    assert [one["code"] for one in json.loads(here["conditions"])] == ["reload"]


async def test_what_is_over_is_history(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        client = await mesh.connect("a")
        mesh.nodes["a"].raise_condition("clock", "ahead")
        mesh.nodes["a"].clear_condition("clock", "ahead")
        mesh.nodes["a"].add_event("gap", "records")

        now = await conditions_of(client)
        past = await conditions_of(client, PAST)

    assert json.loads(now["conditions"]) == []
    assert {one["code"]: "until_us" in one for one in json.loads(past["conditions"])} == {"clock": True, "gap": True}


async def test_many_conditions_come_in_pages_without_a_double_or_a_hole(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")
        await eventually(lambda: not any(node.conditions.present() for node in mesh.nodes.values()))
        for number in range(10):
            mesh.nodes["ab"[number % 2]].raise_condition("reload", f"{number}")
        found: list[str] = []
        after = ""
        while True:
            page = await conditions_of(client, scope="mesh", limit="3", after=after)
            found += [one["message"] for one in json.loads(page["conditions"])]
            after = page.get("next", "")
            if not after:
                break

    assert sorted(found) == [f"{number}" for number in range(10)]


@pytest.mark.parametrize("destination", ["/control/conditions/", "/control/conditions/queue/q", "/control/conditionss"])
async def test_another_spelling_is_refused(autojump_clock: MockClock, destination: str) -> None:
    async with MeshRig("a").run() as mesh:
        client = await mesh.connect("a")
        await client.send(send(destination, "", "r"))

        assert (await client.next("ERROR")).head.headers["error-code"] == "bad-destination"
