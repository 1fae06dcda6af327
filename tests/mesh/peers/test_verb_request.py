"""The response to a control request: long lists are encoded in turns."""

import json

import trio

from qmq.mesh.peers.verb_request import ROWS_AT_ONCE, encode_facts


async def test_long_list_is_encoded_in_turns_and_as_it_is(nursery: trio.Nursery) -> None:
    facts = {"name": "é", "rows": [{"at": at} for at in range(5 * ROWS_AT_ONCE + 1)], "none": [], "few": ["a"]}
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
    assert turns >= 5
