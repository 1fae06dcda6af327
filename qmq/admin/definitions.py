"""`/control/definitions/…`: list, get, put, delete, export and import definitions, on any node, for the whole mesh.

    /control/definitions/list/KIND          all definitions of a kind
    /control/definitions/keys/KIND          what a value of the kind may have: keys, types, bounds, defaults
    /control/definitions/get/KIND/NAME      one
    /control/definitions/put/KIND/NAME      the body is its value, a JSON object
    /control/definitions/delete/KIND/NAME
    /control/definitions/export             all definitions, as a file
    /control/definitions/import             the body is such a file, or one that RabbitMQ exported: all of it or nothing

The response is a JSON object, in the body for a client that uses `reply-to`. A change is answered when it is durable on
this node; with `quorum:true` when a majority has it, or after some seconds with `quorum:false`. With `dry-run:true`
everything is checked and nothing changes.
"""

from dataclasses import dataclass
from typing import Any, Final

import argon2

from qmq.admin.facts.system import SystemTopics
from qmq.config.keys import keys_of
from qmq.definitions.definition import Key
from qmq.definitions.document import Values, document, read_document
from qmq.engine.runtime.contexts import Configured
from qmq.engine.turns import in_turns
from qmq.environment import Environment
from qmq.errors import Refused
from qmq.mesh.peers.verb_request import ROWS_AT_ONCE, ControlResponse, encode_fact, joined_facts, json_object
from qmq.settings.definitions.live import Changes, LiveDefinitions, Value
from qmq.settings.routing.left_behind import LeftBehind
from qmq.verbs.verb import CONTROL, VerbRequest

FILE_BYTES_MAX: Final = 8 << 20
"""Of a file to import, before it is parsed: room for 50,000 queues of RabbitMQ. The parser of Python holds up all
threads, for some 20 ms for each MiB.
"""

HEADER_BYTES_MAX: Final = 64 << 10
"""Of a response in the RECEIPT; a longer one is in the body only."""


ENDING_KEY: Final = "exclusive_to_connection"
"""Of a queue that ends with a connection."""


@dataclass(eq=False, repr=False)
class DefinitionVerbs:
    """Responds to them."""

    _node: Configured
    _environment: Environment
    _definitions: LiveDefinitions
    _left_behind: LeftBehind
    _system: SystemTopics

    async def respond(self, asked: VerbRequest[Any]) -> ControlResponse:
        """The response to a request. Raises Refused; then nothing has changed anywhere.

        A change is an event of the audit, without the values.
        """
        live, body = self._definitions, asked.body

        async def change(changes: Changes, facts: dict[str, Any]) -> ControlResponse:
            stays = await self._left_behind.after(changes)
            facts |= {"left_behind": stays} if stays else {}
            is_dry_run, quorum = asked.is_dry_run, asked.options.quorum
            report = await live.change(changes, asked.user, quorum=quorum, is_dry_run=is_dry_run)
            done = {**facts, **report.facts, "dry_run": is_dry_run}
            said = {name: fact for name, fact in done.items() if name not in ("left_out", "left_behind")}
            self._system.audit(f"definitions-{verb}", user=asked.user, address=asked.address, **said)
            return await _response(done)

        verb, path = asked.verb.removeprefix("definitions/"), asked.about.removeprefix("/")
        if verb == "export" and not path:
            return await _response({"document": document(await _lasting(live))})
        if verb == "import" and not path:
            values, left_out = await self._read(body)
            changes = {Key(kind, name): value for kind, found in values.items() for name, value in found.items()}
            return await change(changes, {"definitions": len(changes), "left_out": left_out})
        if verb == "list" and path:
            live.kinds.of(path)
            found = (await _values(live, path))[path]
            rows = [{"kind": path, "name": name, "value": found[name]} for name in found]
            return await _response({"definitions": rows})
        if verb == "keys" and path:
            live.kinds.of(path)
            return await _response({"kind": path, "keys": keys_of(path)})
        if verb in ("get", "put", "delete") and path.partition("/")[2]:
            key = _key(live, path)
            facts = {"kind": key.kind, "name": key.name}
            if verb == "get":
                known = live.value(key)
                if known is None:
                    raise Refused("unknown-definition", f"there is no {key}")
                return await _response({**facts, "value": known})
            if verb == "put" and key.kind == "user" and ":" in key.name and live.value(key) is None:
                raise Refused(
                    "bad-definition", f"{key}: a new name must be without a colon: HTTP (Basic) cannot carry it"
                )
            value = json_object(body, str(key)) if verb == "put" else None
            return await change({key: value}, facts)
        raise Refused("bad-destination", f"The request is {CONTROL}{asked.options.form}.")

    async def _read(self, body: bytes) -> tuple[Values, list[str]]:
        """What a file defines, and what is left out. In a thread: thousands of queues take a second. Raises Refused."""
        if len(body) > FILE_BYTES_MAX:
            why = f"a file must have at most {FILE_BYTES_MAX} bytes, not {len(body)}"
            raise Refused("bad-definitions", f"{why}; import it in parts")
        from qmq.definitions.rabbitmq import ImportTarget  # Few nodes ever import a file.

        run = self._environment.run_blocking
        hashes = await run(_hashes, body)  # Before anything else is looked at: it takes long.
        present = await _values(self._definitions, "vhost", "user", "policy", "queue", "exchange")
        bytes_max = self._node.settings.limits.destination_bytes_max
        return await run(read_document, body, ImportTarget(present, hashes, bytes_max))


def _hashes(file: bytes) -> dict[str, str]:
    """Of the passwords that it has in clear."""
    from qmq.definitions.rabbitmq_users import clear_passwords

    return {password: argon2.PasswordHasher().hash(password) for password in clear_passwords(file)}


async def _values(live: LiveDefinitions, *kinds: str) -> dict[str, dict[str, Value]]:
    """As `LiveDefinitions.values` of these kinds, all of one moment; read in turns."""
    rows = [one for kind in kinds for one in sorted(live.of_kind(kind))]
    values: dict[str, dict[str, Value]] = {kind: {} for kind in kinds}
    async for part in in_turns(rows, ROWS_AT_ONCE):
        for one in part:
            values[one.key.kind][one.key.name] = one.value or {}
    return values


async def _lasting(live: LiveDefinitions) -> dict[str, dict[str, Value]]:
    """All definitions, without those of queues that end with a connection."""
    values = await _values(live, *live.kinds)
    ending = {name for name, value in values["queue"].items() if value.get(ENDING_KEY)}
    return {
        kind: {
            name: value
            for name, value in found.items()
            if (value.get("queue") if kind == "binding" else name) not in ending
        }
        for kind, found in values.items()
    }


def _key(live: LiveDefinitions, path: str) -> Key:
    kind, _, name = path.partition("/")
    return Key(kind, f"/{name}" if live.kinds.of(kind).names_destinations else name)


async def _response(facts: dict[str, Any]) -> ControlResponse:
    """Each fact is a header, too, as far as they fit."""
    texts = {name: await encode_fact(fact) for name, fact in facts.items()}
    headers: dict[str, str] = {}
    room = HEADER_BYTES_MAX
    for name, fact in facts.items():
        text = fact if type(fact) is str else texts[name]
        if len(text) <= room:
            room -= len(text)
            headers[name.replace("_", "-")] = text
    return ControlResponse(headers, joined_facts(texts))
