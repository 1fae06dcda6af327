"""Control requests: that of an administrative verb, as the functions of all verbs get it, and the response to any."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import trio

from qmq.access.rules import Principal
from qmq.errors import Refused
from qmq.gateways.headers import is_said
from qmq.mesh.peers.peer_json import Facts

COUNT_MAX: Final = 10**12

ROWS_AT_ONCE: Final = 500
"""Rows of a list that are encoded before other tasks get a turn: some 2 ms."""


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """`headers` for the RECEIPT; `body`, JSON, for a client that used `reply-to`."""

    headers: dict[str, str]
    body: bytes


def is_for_mesh(headers: Mapping[str, str]) -> bool:
    """Whether all nodes are asked. Raises Refused for a scope that is none."""
    scope = headers.get("scope", "node")
    if scope not in ("node", "mesh"):
        raise Refused("bad-scope", "The header scope is node or mesh.")
    return scope == "mesh"


def header_number(headers: Mapping[str, str], name: str, default: int, least: int, most: int, of: str = "") -> int:
    """The number in a header; `default` without it. Raises Refused."""
    text = headers.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 13 and least <= int(text) <= most):
        raise Refused(f"bad-{name}", f"The header {name} is a number{of} from {least} to {most}.")
    return int(text)


class VerbRequest(NamedTuple):
    """One SEND to `/control/VERB/…`. `about` is what follows the verb, with its slash; `principal` None: without
    login.
    """

    verb: str
    about: str
    headers: Mapping[str, str]
    principal: Principal | None
    address: str
    session: int
    body: bytes = b""

    @property
    def user(self) -> str | None:
        return None if self.principal is None else self.principal.name

    @property
    def destination(self) -> str:
        """The control destination."""
        return f"/control/{self.verb}{self.about}"

    @property
    def is_mesh(self) -> bool:
        return is_for_mesh(self.headers)

    @property
    def is_dry_run(self) -> bool:
        """Whether the response says what would happen, and nothing changes."""
        return is_said(self.headers, "dry-run")

    @property
    def messages_max(self) -> int:
        """At most so many messages; 0: no bound. Raises Refused."""
        return header_number(self.headers, "count", 0, 1, COUNT_MAX, " of messages")

    @property
    def offset(self) -> int:
        """Behind so many messages. Raises Refused."""
        return header_number(self.headers, "offset", 0, 0, COUNT_MAX, " of messages")


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
