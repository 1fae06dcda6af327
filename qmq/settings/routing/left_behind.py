"""What stays when a right is taken away: bindings, dead letters and alternates that a user has declared.

They go on as before, because others may rely on them. So the response to the change names those for which their user
has not the rights any more, and the operator decides.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from qmq.access.rights import Need
from qmq.definitions.definition import Key
from qmq.errors import ConfigError
from qmq.mesh.peers.verb_request import ROWS_AT_ONCE
from qmq.model.routing_names import PREFIX
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.live import Changes, LiveDefinitions
from qmq.settings.definitions.users import PERMISSION, USER, UserDefinitions
from qmq.settings.routing.definitions import BINDING, EXCHANGE, RoutingDefinitions
from qmq.verbs.table import needs_of
from qmq.verbs.verb import Effect

NAMED_MAX: Final = 1000
"""Of what stays; of more the response says how many there are."""


@dataclass(eq=False, repr=False)
class LeftBehind:
    """Finds what stays, of all that this node knows to be declared."""

    _definitions: LiveDefinitions
    _declared: DeclaredQueues
    _routing: RoutingDefinitions
    _users: UserDefinitions

    async def after(self, changes: Changes) -> list[str]:
        """What stays after these changes of users and permissions, for people; nothing for other changes.

        Raises Refused for changes that are not allowed.
        """
        if not any(key.kind in (USER, PERMISSION) for key in changes):
            return []
        is_lost = self._users.losses(self._definitions.check(changes))
        named: list[str] = []
        count = 0
        for number, (user, needs, text) in enumerate(self._all_declared()):
            if number % ROWS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if is_lost(user, needs):
                count += 1
                if len(named) < NAMED_MAX:
                    named.append(f"{text} (declared by {user})")
        return [*named, *([f"and {count - NAMED_MAX} more"] if count > NAMED_MAX else [])]

    def _all_declared(self) -> Iterator[tuple[str, list[Need], str]]:
        """The user that has declared it, what it would need now, and how it is named."""
        author_of, declared = self._definitions.author_of, self._declared
        for binding in self._routing.bindings():
            user = author_of(Key(BINDING, binding.name))
            if user:
                lifetime = declared.lifetime(binding.queue)
                effect = Effect(is_private=lifetime is not None and bool(lifetime.exclusive_to_connection))
                needs = needs_of(f"/control/bind{binding.target}", {"source": binding.source}, effect)
                yield user, needs, f"the binding {binding.name}"
        for exchange in list(self._routing.table.exchanges.values()):
            user = author_of(Key(EXCHANGE, exchange.name)) if exchange.alternate else ""
            if user:
                effect = Effect(is_taking=True, sends_to=f"{PREFIX}{exchange.alternate}/*")
                needs = needs_of(f"/control/declare{PREFIX}{exchange.name}", effect=effect)
                yield user, needs, f"the alternate {exchange.alternate} of {PREFIX}{exchange.name}"
        for queue, text in list(declared.texts.items()):
            user = declared.owner_of(queue) if "dead_letter" in text or "overflow" in text else ""
            if user:
                with suppress(ConfigError):  # Written by a later version of the software: it has no effect here.
                    dead_letters = declared.dead_letters_of(queue, json.loads(text))
                    if dead_letters:
                        effect = Effect(is_taking=True, sends_to=dead_letters)
                        needs = needs_of(f"/control/declare{queue}", effect=effect)
                        yield user, needs, f"the dead letters of {queue} to {dead_letters}"
