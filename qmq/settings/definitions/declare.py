"""`/control/declare/queue/NAME`: declare a queue, on any node, for the whole mesh.

The declaration is in the body, a JSON object. Without a body, it is in headers of the same names with hyphens. To
declare a queue again with the same values changes nothing. A declaration with other values is refused, unless the
request has `replace:true`. With `passive:true` nothing is declared, and the response has the present declaration.

Rules of a queue can read it, by dead letters, and lose its messages. So a declaration needs the rights for its effect
(`qmq.verbs.table`), which is looked at again in the moment of the change.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from qmq.access.rights import Rights
from qmq.access.rules import Action, Principal
from qmq.config.destinations.declared import DECLARED_BY, QUEUE_KEYS
from qmq.errors import Refused
from qmq.gateways.bound_queues import subscriber_of
from qmq.gateways.durable_headers import check_owner
from qmq.mesh.peers.verb_request import json_object
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.verbs.queues import Declare
from qmq.verbs.table import needs_of
from qmq.verbs.verb import Effect, VerbRequest

EXCLUSIVE: Final = "exclusive_to_connection"

NOT_A_HEADER: Final = "receipt"
"""As a header of SEND it asks for a RECEIPT."""


@dataclass(eq=False, repr=False)
class DeclareRequests:
    """Responds to them. `rights_of`: the rights of a client now."""

    _declared: DeclaredQueues
    _exclusive: ExclusiveQueues
    _lifetimes: QueueLifetimes
    _rights_of: Callable[[Principal | None], Rights]

    async def declare(self, asked: VerbRequest[Declare], is_in_use: Callable[[], Awaitable[bool]]) -> dict[str, Any]:
        """Declare a queue as the request says: what has `changed`, 0 or 1, and its present `value`. Raises Refused.

        `is_in_use`: whether any node has messages or consumers of the queue; asked where only that decides.
        """
        declared = self._declared
        queue, headers, options, user = asked.about, asked.headers, asked.options, asked.user
        if options.passive:
            self._lifetimes.used(queue)
            known = declared.value_of(queue)
            if known is None:
                raise Refused("unknown-destination", f"{queue} is not declared.")
            return {"changed": 0, "value": known}
        value = _value(queue, headers, asked.body) if asked.value is None else dict(asked.value)
        if DECLARED_BY in value:
            raise Refused("bad-definition", f"queue {queue}: {DECLARED_BY}: must be left out: the node sets it")
        if EXCLUSIVE in value:
            value = self._owned(queue, value, asked.session)
        declared.check({queue: value})  # Before a name of it is in a refusal, which a frame must be able to carry.
        is_replacing = options.replace
        rights, destination = self._rights_of(asked.principal), asked.destination
        dead_letters = declared.dead_letters_of(queue, value)
        # Its messages are of others, unless the client could have consumed them.
        is_taking = bool(value) and queue not in declared.texts and not rights.allows(Action.SUBSCRIBE, queue)
        is_taking = bool(dead_letters) or (is_taking and await is_in_use())
        whole = Effect(is_taking=is_taking, sends_to=dead_letters)

        def check() -> bool:
            """Whether the queue is declared so already. Raises Refused."""
            is_others = not declared.is_own(queue, user) and not self._exclusive.is_orphan(queue)
            is_change = not declared.check_same(queue, value, is_replacing=True)
            effect = whole._replace(is_change=is_change, is_replacing=is_replacing and is_others)
            if is_change and is_taking:
                # Its dead letters are messages of the durable subscription.
                check_owner(rights, queue, subscriber_of(queue, declared.begun_by))
            rights.check_needs(needs_of(destination, headers, effect))
            return declared.check_same(queue, value, is_replacing=is_replacing)

        is_same = check()
        if options.dry_run:
            declared.with_owner(queue, value, user)
            return {"changed": int(not is_same), "value": declared.value_of(queue) or {}}
        self._lifetimes.declared_again(queue)
        if is_same and not rights.has_all(needs_of(destination, headers, whole)):
            # It is not written again, so that it does not win over a deletion behind a cut.
            return {"changed": 0, "value": declared.value_of(queue) or {}}
        facts = await declared.declare(queue, value, user, check, quorum=options.quorum)
        return {**facts, "value": declared.value_of(queue) or {}}

    def _owned(self, queue: str, value: Mapping[str, Any], session: int) -> dict[str, Any]:
        """The value, with the owner that it names by `exclusive_to_connection: true`. Raises Refused."""
        said = value[EXCLUSIVE]
        if type(said) is not bool:
            raise Refused("bad-definition", f"queue {queue}: {EXCLUSIVE} = {json.dumps(said)}: must be true or false")
        others = {key: one for key, one in value.items() if key != EXCLUSIVE}
        return {**others, EXCLUSIVE: self._exclusive.claim(queue, session)} if said else others


def _value(queue: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    if not body.strip():
        named = {key: headers.get(key.replace("_", "-")) for key in QUEUE_KEYS if key != NOT_A_HEADER}
        return {key: _read(text) for key, text in named.items() if text is not None}
    return json_object(body, f"queue {queue}")


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
