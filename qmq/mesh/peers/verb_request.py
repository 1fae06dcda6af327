"""Responses to control requests, and JSON in their bodies."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio

from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts

ROWS_AT_ONCE: Final = 500
"""Rows of a list that are encoded before other tasks get a turn: some 2 ms."""


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """`headers` for the RECEIPT; `body`, JSON, for a client that used `reply-to`."""

    headers: dict[str, str]
    body: bytes


def json_object(body: bytes, label: str) -> dict[str, Any]:
    """The JSON object in `body`. Raises Refused, with `label` in front, for anything else."""
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


async def encode_fact(fact: object) -> str:
    """One fact as JSON. A long list is encoded in turns, and must not change meanwhile."""
    if not isinstance(fact, list) or len(fact) <= ROWS_AT_ONCE:
        return json.dumps(fact, separators=(",", ":"))
    parts = []
    for begin in range(0, len(fact), ROWS_AT_ONCE):
        parts.append(json.dumps(fact[begin : begin + ROWS_AT_ONCE], separators=(",", ":"))[1:-1])
        await trio.lowlevel.checkpoint()
    return f"[{','.join(parts)}]"


def joined_facts(texts: Mapping[str, str]) -> bytes:
    """The JSON object of facts that are JSON each."""
    return ("{" + ",".join([f"{json.dumps(name)}:{text}" for name, text in texts.items()]) + "}").encode()
