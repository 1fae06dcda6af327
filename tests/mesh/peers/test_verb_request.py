"""JSON of control requests: a body has a bound, and long lists and objects of a response are encoded in turns."""

import json

import pytest
import trio

from qmq.errors import Refused
from qmq.mesh.peers.verb_request import BODY_BYTES_MAX, ROWS_AT_ONCE, encode_facts, json_object

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


def test_a_body_that_is_too_long_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = b'{"x":1' + b" " * (BODY_BYTES_MAX - 7) + b"}"
    assert json_object(longest, "queue /queue/q") == {"x": 1}
    monkeypatch.setattr(json, "loads", None)

    with pytest.raises(Refused) as refused:
        json_object(b'{"x":[' + b"[]," * BODY_BYTES_MAX + b"1]}", "queue /queue/q")

    assert refused.value.code == "bad-definition"
    assert refused.value.message.startswith(f"queue /queue/q: the body must have at most {BODY_BYTES_MAX} bytes, not ")
