"""Responses to control requests, and JSON in their bodies."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from qmq.definitions.definition import VALUE_BYTES_MAX
from qmq.engine.turns import in_turns
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts

ROWS_AT_ONCE: Final = 500
"""Rows of a list that are encoded before other tasks get a turn: some 2 ms."""

BODY_BYTES_MAX: Final = 4 * VALUE_BYTES_MAX
"""Of the JSON of one definition, with blanks. It is parsed in one turn: of empty lists so much takes some 13 ms."""


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """`headers` for the RECEIPT; `body`, JSON, for a client that used `reply-to`."""

    headers: dict[str, str]
    body: bytes


def json_object(body: bytes, label: str) -> dict[str, Any]:
    """The JSON object in `body`. Raises Refused, with `label` in front, for anything else, and for what is longer than
    BODY_BYTES_MAX, before it is parsed.
    """
    if len(body) > BODY_BYTES_MAX:
        raise Refused("bad-definition", f"{label}: the body must have at most {BODY_BYTES_MAX} bytes, not {len(body)}")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("bad-definition", f"{label}: the body must be a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise Refused("bad-definition", f"{label}: the body must be a JSON object")
    return value


async def encode_facts(facts: Facts) -> bytes:
    """`facts` as a JSON object; see `encode_fact`."""
    return joined_facts({name: await encode_fact(fact) for name, fact in facts.items()})


async def in_body(facts: Facts) -> ControlResponse:
    """A response with all facts in its body: a RECEIPT has no room for them."""
    return ControlResponse({}, await encode_facts(facts))


async def encode_fact(fact: object) -> str:
    """One fact as JSON. A list or an object that is long, or has long ones in it, is encoded in turns, and must not
    change meanwhile."""
    if isinstance(fact, list) and len(fact) > ROWS_AT_ONCE:
        return f"[{await _encode_rows(fact, list)}]"
    if isinstance(fact, dict) and len(fact) > ROWS_AT_ONCE:
        return f"{{{await _encode_rows(list(fact.items()), dict)}}}"
    if isinstance(fact, dict) and any(isinstance(one, dict | list) for one in fact.values()):
        return _joined({name: await encode_fact(one) for name, one in fact.items()})
    return json.dumps(fact, separators=(",", ":"))


async def _encode_rows(rows: list[Any], kind: Callable[[list[Any]], object]) -> str:
    """The rows of a list or an object, without its brackets."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return ",".join([encode(kind(part))[1:-1] async for part in in_turns(rows, ROWS_AT_ONCE)])


def joined_facts(texts: Mapping[str, str]) -> bytes:
    """The JSON object of facts that are JSON each."""
    return _joined(texts).encode()


def _joined(texts: Mapping[str, str]) -> str:
    return "{" + ",".join([f"{json.dumps(name)}:{text}" for name, text in texts.items()]) + "}"
