"""Lists of definitions: many are encoded in turns."""

import json
from types import SimpleNamespace
from typing import Any

import trio

from qmq.admin.definitions import definitions_response
from qmq.mesh.peers.verb_request import ROWS_AT_ONCE
from qmq.verbs.definitions import ListDefinitions
from qmq.verbs.verb import VerbRequest


async def test_many_definitions_are_encoded_in_turns(nursery: trio.Nursery) -> None:
    values = {f"{number:05d}": {"key": "k"} for number in range(5 * ROWS_AT_ONCE)}
    live = SimpleNamespace(kinds={"binding": None}, values=lambda kind: values)
    context: Any = SimpleNamespace(definitions=live)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(count)
    response = await definitions_response(context, VerbRequest(ListDefinitions(), "/binding", {}))
    nursery.cancel_scope.cancel()

    rows = [{"kind": "binding", "name": name, "value": value} for name, value in values.items()]
    assert json.loads(response.body) == {"definitions": rows}
    assert response.headers == {}  # The rows do not fit.
    assert turns >= 4
