"""The kinds `exchange`, `binding` and `vhost`: from definitions of the mesh to the routing table of this node.

A change is refused when exchanges and bindings would not fit together: a binding or an alternate that names no
exchange, another type. Two sides of a cut can still make such changes. Then what does not fit
has no effect on any node, and the condition `bindings-unfit` names it.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, TypeVar

from qmq.broker.routing.binding import Binding, Exchange, predefined_of, read_binding, read_exchange
from qmq.broker.routing.table import RoutingTable
from qmq.config.destinations.policy import too_long
from qmq.definitions.definition import Key
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import NodeBasics
from qmq.errors import Refused
from qmq.gateways.rules import Rules
from qmq.model.routing_names import RESERVED, VHOST_DEFAULT, is_reserved, is_vhost_name, vhost_prefix
from qmq.settings.definitions.declared_queues import KIND as QUEUE
from qmq.settings.definitions.kinds import SimpleKind, Value
from qmq.settings.definitions.live import LiveDefinitions

EXCHANGE: Final = "exchange"
BINDING: Final = "binding"
VHOST: Final = "vhost"

UNFIT: Final = "bindings-unfit"
"""Code of the condition."""

IN_USE: Final = "exchange-in-use"
VHOST_IN_USE: Final = "vhost-in-use"

VHOSTS_MAX: Final = 1000

NAMED_MAX: Final = 3
"""Bindings that a refusal or a condition names; of more it says how many."""


T = TypeVar("T")


class RoutingDefinitions:
    """Exchanges and bindings of the mesh, in `table`; adds their kinds to the definitions."""

    def __init__(self, node: NodeBasics, definitions: LiveDefinitions, table: RoutingTable, rules: Rules) -> None:
        self._node = node
        self._definitions = definitions
        self.table = table
        self._rules = rules
        self._bindings: dict[str, Binding] = {}
        self._unread: set[str] = set()
        self._unfit = ConditionGroup(node, UNFIT)
        exchanges = SimpleKind(checked_exchange, partial(self._changed, EXCHANGE))
        definitions.follow(EXCHANGE, exchanges, fits=self._check_fit, is_authored=True)
        changed = partial(self._changed, BINDING)
        bindings = SimpleKind(self._checked_binding, changed, names_destinations=True)
        definitions.follow(BINDING, bindings, needs=EXCHANGE, is_authored=True)
        self._follow(EXCHANGE, definitions.values(EXCHANGE))
        self._follow(BINDING, definitions.values(BINDING))

    def bindings(self) -> list[Binding]:
        """All bindings, sorted by name."""
        return [self._bindings[name] for name in sorted(self._bindings)]

    def report(self) -> None:
        """Raise or clear the condition: bindings may have no effect, or have one again."""
        found = self.table.without_effect() + sorted(f"{one} (unreadable)" for one in self._unread)
        unfit = f"no effect, because an exchange is missing: {_some(found)}" if found else ""
        self._unfit.show([unfit] if unfit else [])

    # Changes

    def _changed(self, kind: str, names: Collection[str]) -> None:
        self._follow(kind, names)
        self._rules.replan()
        self.report()

    def _follow(self, kind: str, names: Collection[str]) -> None:
        follow = self._follow_binding if kind == BINDING else self._follow_exchange
        for name in names:
            if kind == BINDING or not is_reserved(name):
                follow(name, self._definitions.value(Key(kind, name)))

    def _follow_exchange(self, name: str, value: Value | None) -> None:
        exchange = self._read(f"{EXCHANGE} {name}", lambda: None if value is None else read_exchange(name, value))
        if exchange is None:
            self.table.remove_exchange(name)
        else:
            self.table.put_exchange(exchange)

    def _follow_binding(self, name: str, value: Value | None) -> None:
        binding = self._read(f"{BINDING} {name}", lambda: None if value is None else read_binding(value))
        known = self._bindings.pop(name, None)
        if known is not None:
            self.table.remove(known)
        if binding is not None:
            self._bindings[name] = binding
            self.table.add(binding)

    def _read(self, what: str, read: Callable[[], T]) -> T | None:
        try:
            found = read()
        except Refused:
            # Written by a later version of the software.
            self._unread.add(what)
            return None
        self._unread.discard(what)
        return found

    # Checks

    def _checked_binding(self, name: str, value: Value) -> Value:
        return checked_binding(name, value, self._node.settings.limits.destination_bytes_max)

    def _check_fit(self, changes: Mapping[Key, Value | None]) -> None:
        """Refuse changes after which exchanges and bindings would not fit together."""
        exchanges: Mapping[str, Exchange] = self.table.exchanges
        # Those that this request declares have their predefined exchanges when all of it counts.
        vhosts = [key.name for key, value in changes.items() if key.kind == VHOST and value is not None]
        if vhosts:
            predefined = [one for vhost in vhosts for one in predefined_of(vhost_prefix(vhost))]
            exchanges = {**exchanges, **{one.name: one for one in predefined}}
        changed = {
            key.name: None if value is None else read_exchange(key.name, value)
            for key, value in changes.items()
            if key.kind == EXCHANGE
        }
        if changed:
            exchanges = {name: one for name, one in exchanges.items() if name not in changed}
            exchanges |= {name: one for name, one in changed.items() if one is not None}
            for name, exchange in changed.items():
                if exchange is None:
                    self._check_deletion(name, exchanges, changes)
                else:
                    _check_exchange(exchange, self.table.exchanges.get(name), exchanges)
        bindings = [read_binding(value) for key, value in changes.items() if key.kind == BINDING and value is not None]
        for binding in bindings:
            for end, name in (("source", binding.exchange), ("exchange", binding.target_exchange)):
                if name and name not in exchanges:
                    raise Refused("bad-definition", f"{BINDING} {binding.name}: {end}: there is no exchange {name}")
        self.table.check_cost(bindings, exchanges)

    def _check_deletion(
        self, name: str, exchanges: Mapping[str, Exchange], changes: Mapping[Key, Value | None]
    ) -> None:
        left = [
            one.name for one in self.table.bindings_with(name) if changes.get(Key(BINDING, one.name), one) is not None
        ]
        if left:
            raise Refused(IN_USE, f"{EXCHANGE} {name} has bindings: {_some(left)}; delete them first, or with it")
        for other in exchanges.values():
            if other.alternate == name:
                raise Refused(IN_USE, f"{EXCHANGE} {name} is the alternate of the exchange {other.name}")


def checked_binding(name: str, value: Value, bytes_max: int) -> Value:
    """The canonical form of a definition. Raises Refused."""
    binding = read_binding(value)
    if binding.queue and (why := too_long(binding.queue, bytes_max)):
        raise Refused("bad-definition", f"{BINDING}: queue: {why}")
    if name != binding.name:
        raise Refused("bad-definition", f"{BINDING} {name}: the name must be {binding.name}, as the value says")
    return binding.value


def checked_exchange(name: str, value: Value) -> Value:
    """The canonical form of a definition. Raises Refused."""
    if is_reserved(name):
        raise Refused("bad-definition", f"{EXCHANGE} {name}: names that begin with {RESERVED} are predefined")
    return read_exchange(name, value).value


def _check_exchange(exchange: Exchange, known: Exchange | None, exchanges: Mapping[str, Exchange]) -> None:
    label = f"{EXCHANGE} {exchange.name}"
    if known is not None and known.type != exchange.type:
        raise Refused(
            "bad-definition", f"{label}: type is {known.type}, and cannot become {exchange.type}: delete it first"
        )
    if exchange.alternate and exchange.alternate not in exchanges:
        raise Refused("bad-definition", f"{label}: alternate: there is no exchange {exchange.alternate}")


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(sorted(names)[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


class VhostDefinitions:
    """Virtual hosts of AMQP; adds their kind to the definitions, and their predefined exchanges to `table`.

    A definition has no keys: it says that clients may open this virtual host. One is deleted only when no queue,
    exchange or binding is in it, and a connection that is open stays open.
    """

    def __init__(self, definitions: LiveDefinitions, table: RoutingTable, rules: Rules) -> None:
        self._definitions = definitions
        self._table = table
        self._rules = rules
        self.declared: set[str] = set()
        """All but `/`."""
        definitions.follow(VHOST, SimpleKind(checked_vhost, self._changed), fits=self._check_fit)
        self._follow()

    def exists(self, name: str) -> bool:
        """Whether clients may open it."""
        return name == VHOST_DEFAULT or name in self.declared

    def _changed(self, names: Collection[str]) -> None:
        self._follow()
        self._rules.replan()

    def _follow(self) -> None:
        # A later version of the software may allow more names.
        names = {name for name in self._definitions.values(VHOST) if is_vhost_name(name)}
        for name in self.declared - names:
            for exchange in predefined_of(vhost_prefix(name)):
                self._table.remove_exchange(exchange.name)
        for name in names - self.declared:
            for exchange in predefined_of(vhost_prefix(name)):
                self._table.put_exchange(exchange)
        self.declared = names

    def _check_fit(self, changes: Mapping[Key, Value | None]) -> None:
        """Refuse to delete a virtual host while something is in it, and too many of them."""
        added = {key.name for key, value in changes.items() if key.kind == VHOST and value is not None}
        deleted = {key.name for key, value in changes.items() if key.kind == VHOST and value is None}
        if len((self.declared | added) - deleted) > max(VHOSTS_MAX, len(self.declared)):
            raise Refused("too-many-definitions", f"There are {VHOSTS_MAX} virtual hosts at most.")
        for name in sorted(deleted):
            left = self._left_in(vhost_prefix(name), changes)
            if left:
                raise Refused(VHOST_IN_USE, f"{VHOST} {name} has {left}: delete that first, or with it")

    def _left_in(self, prefix: str, changes: Mapping[Key, Value | None]) -> str:
        """Something in a virtual host after these changes; "" for nothing."""
        predefined = {one.name for one in predefined_of(prefix)}
        exchanges = {name for name in self._table.exchanges if name.startswith(prefix)} - predefined
        for name in sorted(exchanges):
            if changes.get(Key(EXCHANGE, name), name) is not None:
                return f"the exchange {name}"
        for exchange in sorted(predefined):
            for binding in self._table.bindings_with(exchange):
                if changes.get(Key(BINDING, binding.name), binding) is not None:
                    return f"the binding {binding.name}"
        for queue in self._definitions.values(QUEUE):
            if queue.startswith(f"/queue/{prefix}") and changes.get(Key(QUEUE, queue), queue) is not None:
                return f"the queue {queue}"
        return ""


def checked_vhost(name: str, value: Value) -> Value:
    """The same of a virtual host. Raises Refused."""
    if not is_vhost_name(name):
        raise Refused(
            "bad-definition",
            f"{VHOST} {name}: a name has 1 to 64 characters, without slashes, blanks, ~, * and #; / always exists",
        )
    if value:
        raise Refused("bad-definition", f"{VHOST} {name}: {sorted(value)[0]} is unknown; there are no keys")
    return value
