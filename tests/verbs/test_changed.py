"""The response of each verb that changes something says how much has `changed`, or would in a dry run."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from trio.testing import MockClock

from qmq.verbs.table import VERBS
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, send

QUEUE: Final = "declare/queue/q"
EXCHANGE: Final = "declare/exchange/e"
BIND: Final = "bind/queue/q"
E: Final = {"source": "/exchange/e", "key": "k"}
USER: Final = "definitions/put/vhost/shop"

CASES: Final[list[tuple[str, Mapping[str, str], int]]] = [
    ("declare/queue/new", {}, 1),
    (QUEUE, {}, 0),
    ("declare/exchange/new", {"type": "direct"}, 1),
    (EXCHANGE, {"type": "direct"}, 0),
    (BIND, {"source": "/exchange/e", "key": "other"}, 1),
    (BIND, E, 0),
    ("unbind/queue/q", E, 1),
    ("definitions/put/vhost/new", {}, 1),
    (USER, {}, 0),
    ("definitions/delete/vhost/shop", {}, 1),
    ("definitions/import", {}, 1),
    ("pause/queue/q", {}, 1),
    ("resume/queue/q", {}, 0),
    ("purge/queue/q", {}, 2),
    ("move/queue/q", {"to": "/queue/other"}, 2),
    ("redrive/queue/other", {}, 0),
    ("delete/queue/q", {}, 2),
    ("delete/exchange/e", {}, 2),
    ("delete/fanout/f", {}, 1),
    ("delete/topic/t", {}, 1),
    ("kick/", {"user": "no such user"}, 0),
    ("drain/", {}, 1),
    ("undrain/", {}, 0),
]
BODIES: Final = {
    "definitions/put/vhost/new": "{}",
    USER: "{}",
    "definitions/import": '{"qmq_definitions": 1, "definitions": {"vhost": {"shop": {}, "imported": {}}}}',
}


async def ask(client: Client, request: str, **headers: str) -> dict[str, Any]:
    await client.send(send(f"/control/{request}", BODIES.get(request, ""), reply_to="/temp-queue/r", **headers))
    found: dict[str, Any] = json.loads((await client.next("MESSAGE")).body)
    return found


async def prepare(client: Client) -> None:
    for request, headers in ((QUEUE, {}), (EXCHANGE, {"type": "direct"}), (BIND, E), (USER, {})):
        await ask(client, request, **headers)
    for number, (destination, headers) in enumerate(
        [("/queue/q", {}), ("/queue/q", {}), ("/fanout/f", {}), ("/topic/t", {"retain": "set"})]
    ):
        await client.send(send(destination, "x", str(number), **headers))
        await client.receipt()


@pytest.mark.parametrize("is_dry_run", [True, False], ids=["dry-run", "done"])
@pytest.mark.parametrize(("request_", "headers", "changed"), CASES, ids=[f"{one}-{n}" for one, _, n in CASES])
async def test_each_verb_says_how_much_has_changed(
    autojump_clock: MockClock, request_: str, headers: Mapping[str, str], changed: int, is_dry_run: bool
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await prepare(client)
        dry_run = {"dry_run": "true"} if is_dry_run else {}

        facts = await ask(client, request_, **headers, **dry_run)

        assert facts["changed"] == changed
        assert facts["dry_run"] is is_dry_run


async def test_a_drain_that_was_begun_before_changes_nothing(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("a")

        for request, changed in (("drain/b", 1), ("drain/b", 0), ("undrain/b", 1), ("undrain/b", 0)):
            assert (await ask(client, request))["changed"] == changed


def test_no_verb_is_left_out() -> None:
    """The others are about a disk, or end a node: their own tests have them."""
    asked = {VERBS_OF[request] for request, *_ in CASES}

    assert {word for word, verb in VERBS.items() if verb.changes} - asked == {"retire", "backup"}


VERBS_OF: Final = {
    request: next(word for word in sorted(VERBS, key=len, reverse=True) if f"{request}/".startswith(f"{word}/"))
    for request, *_ in CASES
}
