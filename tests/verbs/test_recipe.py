"""The recipe for a control verb in CONTRIBUTING, followed for a toy: what is declared once is reached everywhere."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from trio.testing import MockClock

from qmq.access.rules import Action
from qmq.admin.verbs import RESPOND
from qmq.protocols.http.openapi import openapi
from qmq.verbs.table import VERBS, needs_of
from qmq.verbs.verb import Changing, VerbRequest, option
from tests.admin.test_bulk_jobs import refusal
from tests.admin.test_connections import ask
from tests.cli.admin.test_connections import answers, sent
from tests.cli.conftest import Run, run
from tests.node.rig import Rig, subscribe
from tests.protocols.http.rig import dial, web_rig

__all__ = ["run"]


class Ring(Changing):
    """Ring the bell of a queue.

    Nothing else happens.
    """

    form = "ring/queue/NAME"
    command = "ring"

    times: Annotated[int, option("How often.", metavar="N", of=" of times", ge=1, le=9)] = 1
    by_whom: Annotated[str, option("The ringer.", audited="ringer")] = "nobody"


async def ring(to: object, asked: VerbRequest[Ring]) -> dict[str, Any]:
    return {"sound": "ding " * asked.options.times, "changed": 0 if asked.is_dry_run else asked.options.times}


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(VERBS, Ring.word(), Ring)
    monkeypatch.setitem(RESPOND, Ring.word(), ring)
    openapi.cache_clear()
    yield
    openapi.cache_clear()


async def test_it_is_a_control_request_with_typed_options_and_an_event_of_the_audit(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, watcher = await rig.connect(), await rig.connect()
        await watcher.send(subscribe("/system/audit"))
        await watcher.receipt()

        facts = await ask(client, "ring/queue/q", times="2", by_whom="ann")
        event = json.loads((await watcher.next("MESSAGE")).body)

        assert facts == {"destination": "/queue/q", "sound": "ding ding ", "changed": 2, "dry_run": False}
        assert (event["event"], event["destination"]) == ("ring", "/queue/q")
        assert (event["ringer"], event["count"]) == ("ann", 2)
        assert (await ask(client, "ring/queue/q", dry_run="true"))["dry_run"] is True
        assert await refusal(await rig.connect(), "ring/queue/q", times="10") == "bad-times"
        assert await refusal(await rig.connect(), "ring/queue/q", dry_run="perhaps") == "bad-header"


async def test_it_is_a_request_over_http_by_its_method(autojump_clock: MockClock) -> None:
    async with web_rig().run() as rig:
        client = await dial(rig)

        rung = await client.post("/v1/control/ring/queue/q?times=3", {})
        asked = await client.get("/v1/control/ring/queue/q")

    assert (rung.status, rung.facts["sound"]) == (200, "ding ding ding ")
    assert asked.status == 405


def test_it_is_described_in_openapi() -> None:
    (operation,) = json.loads(openapi())["paths"]["/v1/control/ring/queue/{name}"].values()

    assert (operation["operationId"], operation["summary"]) == ("ring", "Ring the bell of a queue.")
    parameters = {one["name"]: one for one in operation["parameters"]}
    assert set(parameters) == {"name", "times", "by_whom", "dry_run"}
    assert parameters["times"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 9}
    assert parameters["times"]["description"] == "How often."


def test_it_needs_the_right_that_it_says() -> None:
    assert [(need.action, need.about) for need in needs_of("/control/ring/queue/q")] == [
        (Action.ADMINISTER, "/queue/q")
    ]


def test_it_is_a_command_with_its_help_and_options(run: Run) -> None:
    with answers(sound="ding", changed=2) as node:
        result = run("ring", "/queue/q", "--times", "2", "--dry-run", "--at", node.at)
    shown = run("ring", "--help").output

    assert (result.exit_code, result.output) == (0, "sound: ding\nchanged: 2\n")
    assert sent(node) == {"destination": "/control/ring/queue/q", "times": "2", "dry-run": "true"}
    assert "Ring the bell of a queue." in run("--help").output
    assert "Nothing else happens." in shown and "--times N" in shown and "How often." in shown
    assert run("ring", "/queue/q", "--times", "10").exit_code == run("ring", "/topic/t").exit_code == 2
