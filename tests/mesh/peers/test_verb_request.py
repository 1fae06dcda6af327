"""The response to a control request: long lists and objects are encoded in turns."""

import json

import pytest
import trio

from qmq.mesh.peers.verb_request import ROWS_AT_ONCE, encode_facts

LONG = range(5 * ROWS_AT_ONCE + 1)


@pytest.mark.parametrize(
    "facts",
    [
        {"name": "é", "rows": [{"at": at} for at in LONG], "none": [], "few": ["a"]},
        {
            "document": {
                "qmq_definitions": 1,
                "definitions": {"policy": {}, "queue": {f"/queue/{at}": {} for at in LONG}},
            }
        },
    ],
    ids=["list", "definitions"],
)
async def test_what_is_long_is_encoded_in_turns_and_as_it_is(facts: dict[str, object], nursery: trio.Nursery) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(count)
    body = await encode_facts(facts)
    nursery.cancel_scope.cancel()

    assert body == json.dumps(facts, separators=(",", ":")).encode()
    assert turns >= 4
