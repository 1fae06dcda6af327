"""Requests about exchanges and bindings: declare, delete, bind, unbind, and the lists.

    /control/declare/exchange/NAME     headers type, alternate, internal and delayed, or a JSON body with these keys
    /control/delete/exchange/NAME      with its bindings; with `if-unused:true` only if it is the source of none
    /control/bind/queue/NAME           headers source and key; the JSON body has the arguments
    /control/bind/exchange/NAME        the same: this exchange gets the messages
    /control/unbind/queue/NAME         the same
    /control/unbind/exchange/NAME      the same
    /control/exchanges                 all exchanges
    /control/bindings                  all bindings

A change is answered when it is durable on this node; with `quorum:true` when a majority has it, or after some seconds
with `quorum:false`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qmq.access.rights import Rights
from qmq.access.rules import Principal
from qmq.broker.routing.binding import EXCHANGE_KEYS, Binding, read_binding, read_exchange
from qmq.definitions.definition import Key
from qmq.engine.turns import in_turns
from qmq.errors import Refused
from qmq.gateways.bound_queues import subscriber_of
from qmq.gateways.headers import is_said
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.verb_request import ROWS_AT_ONCE, json_object
from qmq.model.routing_names import PREFIX, is_reserved
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.live import Changes, LiveDefinitions, Value
from qmq.settings.routing.definitions import BINDING, EXCHANGE, IN_USE, RoutingDefinitions
from qmq.verbs.queues import Declare, Delete
from qmq.verbs.routing import Bind, ListBindings, ListExchanges, Unbind
from qmq.verbs.table import needs_of
from qmq.verbs.verb import Effect, Verb, VerbRequest


@dataclass(eq=False, repr=False)
class RoutingRequests:
    """Responds to them. `rights_of`: the rights of a client now."""

    _definitions: LiveDefinitions
    _declared: DeclaredQueues
    _exclusive: ExclusiveQueues
    _routing: RoutingDefinitions
    _rights_of: Callable[[Principal | None], Rights]

    async def declare_exchange(self, asked: VerbRequest[Declare]) -> Facts:
        """Declare an exchange. To declare it again as it is changes nothing; with other values it is refused."""
        name = _exchange_of(asked)
        value = _body(asked)
        value |= {key: asked.headers[key] for key in ("type", "alternate") if key in asked.headers}
        value |= {key: is_said(asked.headers, key) for key in ("internal", "delayed") if key in asked.headers}
        exchange = read_exchange(name, value)

        # What no binding matches goes to the alternate: that is to read this exchange, and to send to that one.
        target = f"{PREFIX}{exchange.alternate}/*" if exchange.alternate else ""
        whole = Effect(is_taking=bool(target), sends_to=target)

        def check() -> None:
            known = self._routing.table.exchanges.get(name)
            self._check_effect(asked, whole._replace(is_change=known != exchange))
            for key in EXCHANGE_KEYS if known is not None else ():
                before, after = _shown(getattr(known, key)), _shown(getattr(exchange, key))
                if before != after:
                    raise Refused("exchange-differs", f"exchange {name} exists: its {key} is {before}, not {after}")

        check()
        known = self._routing.table.exchanges.get(name)
        if known is not None and (is_reserved(name) or not self._may_do(asked, whole)):
            return {**exchange._asdict(), "changed": 0}
        # Again in its turn: another client may declare it while this change waits.
        return await self._change(asked, {Key(EXCHANGE, name): exchange.value}, exchange._asdict(), check)

    async def delete_exchange(self, asked: VerbRequest[Delete]) -> Facts:
        """Delete an exchange, and the bindings from it and to it, in one change."""
        name = _exchange_of(asked)
        table = self._routing.table
        if is_reserved(name):
            raise Refused("not-supported", f"The exchange {name} is predefined.")
        if name not in table.exchanges:
            raise Refused("unknown-destination", f"There is no exchange {name}.")
        changes: dict[Key, Value | None] = {}

        def decide() -> None:
            # Again in its turn: others may bind and unbind while this change waits.
            used = sum(1 for _ in table.bindings_of(name))
            if used and asked.options.if_unused:
                raise Refused(IN_USE, f"exchange {name} has {used} bindings")
            changes.clear()
            changes.update(dict.fromkeys([Key(BINDING, one.name) for one in table.bindings_with(name)]))
            changes[Key(EXCHANGE, name)] = None

        decide()
        facts = await self._change(asked, changes, {}, decide)
        return {"bindings": len(changes) - 1, **facts}

    async def bind(self, asked: VerbRequest[Bind]) -> Facts:
        """Bind a queue, or an exchange, to a source. To bind it again changes nothing."""
        binding = _binding(asked)
        declared = self._declared.texts
        is_declared = binding.queue in declared

        def check() -> None:
            is_change = not self._routing.table.has_binding(binding.name)
            self._check_effect(asked, self._effect(asked, is_change=is_change))
            if is_declared and binding.queue not in declared:
                # A binding that stayed behind would fill a queue without consumers.
                raise Refused("unknown-destination", f"{binding.queue} was deleted meanwhile.")

        check()
        is_bound = self._routing.table.has_binding(binding.name)
        if is_bound and not self._may_do(asked, self._effect(asked)):
            return {**binding.value, "changed": 0}
        return await self._change(asked, {Key(BINDING, binding.name): binding.value}, binding.value, check)

    async def unbind(self, asked: VerbRequest[Unbind]) -> Facts:
        """Delete exactly this binding. Raises Refused if there is none."""
        binding = _binding(asked)
        self._check_effect(asked, self._effect(asked))
        return await self._change(asked, {Key(BINDING, binding.name): None}, binding.value)

    async def list_exchanges(self, asked: VerbRequest[ListExchanges]) -> Facts:
        """All exchanges, predefined ones too."""
        table, exchanges = self._routing.table, sorted(self._routing.table.exchanges.values())
        rows: list[Facts] = []
        async for part in in_turns(exchanges, ROWS_AT_ONCE):
            rows += [
                {
                    "name": one.name,
                    "type": one.type,
                    "alternate": table.alternate_of(one.name),
                    "internal": one.internal,
                    "delayed": one.delayed,
                    "bindings": sum(1 for _ in table.bindings_of(one.name)),
                    "predefined": is_reserved(one.name),
                }
                for one in part
                if one.name in table.exchanges
            ]
        return {"exchanges": rows}

    async def list_bindings(self, asked: VerbRequest[ListBindings]) -> Facts:
        """All bindings, sorted by name. `effective` is false while an exchange of it is missing."""
        table, bindings = self._routing.table, self._routing.bindings()
        rows: list[Facts] = []
        async for part in in_turns(bindings, ROWS_AT_ONCE):
            rows += [{"name": one.name, **one.value, "effective": table.is_effective(one)} for one in part]
        return {"bindings": rows}

    def _check_effect(self, asked: VerbRequest[Verb], effect: Effect) -> None:
        self._rights_of(asked.principal).check_needs(needs_of(asked.destination, asked.headers, effect))

    def _may_do(self, asked: VerbRequest[Verb], whole: Effect) -> bool:
        """Whether the client may do this where it is not done yet. Else what is so already is not written again, so
        that it does not win over a deletion behind a cut.
        """
        return self._rights_of(asked.principal).has_all(needs_of(asked.destination, asked.headers, whole))

    def _effect(self, asked: VerbRequest[Verb], *, is_change: bool = True) -> Effect:
        queue = asked.about
        # That of a durable subscription belongs to the user that began it: others must not change what it gets.
        owner = subscriber_of(queue, self._declared.begun_by)
        is_others = bool(owner) and owner != asked.user
        return Effect(is_change, is_private=self._exclusive.is_owner(queue, asked.session), is_replacing=is_others)

    async def _change(
        self,
        asked: VerbRequest[Declare | Delete | Bind],
        changes: Changes,
        facts: Facts,
        guard: Callable[[], None] | None = None,
    ) -> Facts:
        quorum, is_dry_run = asked.options.quorum, asked.is_dry_run
        report = await self._definitions.change(changes, asked.user, quorum=quorum, guard=guard, is_dry_run=is_dry_run)
        return {**facts, **report.facts}


def _exchange_of(asked: VerbRequest[Verb]) -> str:
    name = asked.about.removeprefix(PREFIX)
    if not asked.about.startswith(PREFIX) or not name:
        raise Refused("bad-destination", f"{asked.verb} names one exchange, {PREFIX}NAME.")
    return name


def _binding(asked: VerbRequest[Bind]) -> Binding:
    source, key = asked.options.source, asked.options.key
    if source is None:
        raise Refused("missing-header", f"{asked.verb} needs the header source.")
    target = "exchange" if asked.about.startswith(PREFIX) else "queue"
    value = {"source": source, target: asked.about, "key": key}
    return read_binding({**value, "arguments": _body(asked)})


def _body(asked: VerbRequest[Verb]) -> dict[str, Any]:
    """The JSON object in the body; an empty body is an empty object."""
    if asked.value is not None:
        return dict(asked.value)
    return json_object(asked.body, asked.verb) if asked.body.strip() else {}


def _shown(value: str | bool) -> str:
    return str(value).lower() if value else "not set"
