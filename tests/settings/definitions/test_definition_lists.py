"""Lists and exports of definitions: many are read and encoded in turns."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from qmq.admin.definitions import DefinitionVerbs
from qmq.definitions.definition import Definition, Key, Version
from qmq.mesh.peers.verb_request import ROWS_AT_ONCE
from qmq.model.dots import Origin
from qmq.settings.definitions.kinds import DefinitionKinds
from qmq.verbs.definitions import ExportDefinitions, ListDefinitions
from qmq.verbs.verb import VerbRequest

NAMES = [f"{number:05d}" for number in range(5 * ROWS_AT_ONCE)]
ROWS = [{"kind": "queue", "name": name, "value": {"key": "k"}} for name in NAMES]


@pytest.mark.parametrize(
    ("verb", "path", "facts"),
    [
        (ListDefinitions(), "/queue", {"definitions": ROWS}),
        (
            ExportDefinitions(),
            "",
            {"document": {"qmq_definitions": 1, "definitions": {"queue": {name: {"key": "k"} for name in NAMES}}}},
        ),
    ],
    ids=["list", "export"],
)
async def test_many_definitions_are_read_and_encoded_in_turns(
    verb: Any, path: str, facts: dict[str, Any], nursery: trio.Nursery
) -> None:
    seeded = Version(1, 0, Origin("a", 1), 1)
    table = [Definition(Key("queue", name), seeded, '{"key":"k"}') for name in NAMES]
    any_kind: Any = None
    live: Any = SimpleNamespace(kinds=DefinitionKinds(queue=any_kind), of_kind=lambda kind: table)
    unused: Any = None
    verbs = DefinitionVerbs(unused, unused, live, unused, unused)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(count)
    response = await verbs.respond(VerbRequest(verb, path, {}))
    nursery.cancel_scope.cancel()

    assert json.loads(response.body) == facts
    assert "definitions" not in response.headers  # The rows do not fit.
    assert turns >= (7 if path else 3)
