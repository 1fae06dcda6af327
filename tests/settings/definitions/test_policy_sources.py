"""Which rules apply to a destination, and where each is from."""

from typing import Any

from trio.testing import MockClock

from tests.admin.test_connections import ask
from tests.node.rig import Rig
from tests.protocols.http.rig import dial, web_rig


def sources(facts: dict[str, Any], *keys: str) -> list[tuple[object, str]]:
    found = {row["key"]: (row["value"], row["from"]) for row in facts["rules"]}
    return [found[key] for key in keys]


async def test_each_rule_names_the_definition_the_setting_or_the_default_that_it_is_from(
    autojump_clock: MockClock,
) -> None:
    definitions = {
        "policy": {"/queue/*": {"delivery_limit": 3, "priority": 5}, "/queue/other": {"priority": 6}},
        "queue": {"/queue/q": {"priority": 7}},
    }
    async with Rig(definitions=definitions, limits={"queue_messages_max": 9}).run() as rig:
        facts = await ask(await rig.connect(), "policies/queue/q")

    assert facts["exists"] is True
    assert sources(facts, "priority", "delivery_limit", "max_messages", "overflow") == [
        (7, "queue /queue/q"),
        (3, "policy /queue/*"),
        (9, "limits.queue_messages_max"),
        ("refuse", "default"),
    ]
    assert facts["definitions"] == [
        {"kind": "queue", "name": "/queue/q", "value": {"priority": 7}, "from": "the node file of a"},
        {
            "kind": "policy",
            "name": "/queue/*",
            "value": {"delivery_limit": 3, "priority": 5},
            "from": "the node file of a",
        },
    ]


async def test_a_definition_that_an_operator_has_changed_is_from_that_change(autojump_clock: MockClock) -> None:
    rig = Rig(definitions={"policy": {"/queue/q": {"priority": 5}}})
    async with rig.run():
        await ask(await rig.connect(), "pause/queue/q", part="delivery")
        client = await rig.connect()
        await client.send('SEND\ndestination:/control/definitions/put/policy/queue/q\nreceipt:r\n\n{"priority":6}')
        await client.receipt()
    async with rig.run():
        facts = await ask(await rig.connect(), "policies/queue/q")

    assert [(one["kind"], one["from"]) for one in facts["definitions"]] == [
        ("pause-delivery", "a change on a"),
        ("policy", "a change on a"),
    ]
    assert sources(facts, "priority") == [(6, "policy /queue/q")]


async def test_other_kinds_have_their_rules_and_a_name_that_nothing_matches_its_defaults(
    autojump_clock: MockClock,
) -> None:
    async with web_rig(definitions={"policy": {"/topic/*": {"retain": True}}}).run() as rig:
        client = await dial(rig)
        topic = (await client.get("/v1/control/policies/topic/t")).facts
        queue = (await client.get("/v1/control/policies/queue/q")).facts
        pattern = await client.get("/v1/control/policies/queue/q*")

    assert sources(topic, "retain", "buffer_messages") == [(True, "policy /topic/*"), (0, "default")]
    assert (queue["exists"], queue["definitions"]) == (True, [])
    assert {row["from"] for row in queue["rules"]} == {
        "default",
        "limits.queue_messages_max",
        "limits.queue_bytes_max",
        "mesh.receipt",
        "mesh.ack_level",
    }
    assert pattern.facts["code"] == "bad-pattern"
