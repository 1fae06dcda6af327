"""The kind `vhost`: virtual hosts of AMQP, each a prefix of names (`qmq.routing_names`).

A definition has no keys: it says that clients may open this virtual host. What is in one are queues, exchanges and
bindings as all others. So one is deleted only when nothing is in it, and a connection that is open stays open.
"""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from qmq.broker.routing.binding import predefined_of
from qmq.broker.routing.table import RoutingTable
from qmq.definitions.definition import Key
from qmq.errors import Refused
from qmq.gateways.rules import Rules
from qmq.routing_names import VHOST_DEFAULT, is_vhost_name, vhost_prefix
from qmq.server.definitions.declared_queues import KIND as QUEUE
from qmq.server.definitions.live import LiveDefinitions, SimpleKind, Value
from qmq.server.routing.definitions import BINDING, EXCHANGE, VHOST

IN_USE: Final = "vhost-in-use"

VHOSTS_MAX: Final = 1000


class VhostContext(Protocol):
    definitions: LiveDefinitions
    rules: Rules


class VhostDefinitions:
    """Virtual hosts of the mesh; adds their kind to the definitions, and their predefined exchanges to `table`."""

    def __init__(self, context: VhostContext, table: RoutingTable) -> None:
        self._context = context
        self._table = table
        self._names: set[str] = set()
        context.definitions.kinds[VHOST] = SimpleKind(_checked, self._changed)
        context.definitions.fits.append(self._check_fit)
        self._follow()

    def exists(self, name: str) -> bool:
        """Whether clients may open it."""
        return name == VHOST_DEFAULT or name in self._names

    @property
    def declared(self) -> Collection[str]:
        """All but `/`."""
        return self._names

    def _changed(self, names: Collection[str]) -> None:
        self._follow()
        self._context.rules.generation += 1

    def _follow(self) -> None:
        # A later version of the software may allow more names.
        names = {name for name in self._context.definitions.values(VHOST) if is_vhost_name(name)}
        for name in self._names - names:
            for exchange in predefined_of(vhost_prefix(name)):
                self._table.remove_exchange(exchange.name)
        for name in names - self._names:
            for exchange in predefined_of(vhost_prefix(name)):
                self._table.put_exchange(exchange)
        self._names = names

    def _check_fit(self, changes: Mapping[Key, Value | None]) -> None:
        """Refuse to delete a virtual host while something is in it, and too many of them."""
        declared = {key.name for key, value in changes.items() if key.kind == VHOST and value is not None}
        deleted = {key.name for key, value in changes.items() if key.kind == VHOST and value is None}
        if len((self._names | declared) - deleted) > max(VHOSTS_MAX, len(self._names)):
            raise Refused("too-many-definitions", f"There are {VHOSTS_MAX} virtual hosts at most.")
        for name in sorted(deleted):
            left = self._left_in(vhost_prefix(name), changes)
            if left:
                raise Refused(IN_USE, f"{VHOST} {name} has {left}: delete that first, or with it")

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
        for queue in self._context.definitions.values(QUEUE):
            if queue.startswith(f"/queue/{prefix}") and changes.get(Key(QUEUE, queue), queue) is not None:
                return f"the queue {queue}"
        return ""


def _checked(name: str, value: Value) -> Value:
    if not is_vhost_name(name):
        raise Refused(
            "bad-definition",
            f"{VHOST} {name}: a name has 1 to 64 characters, without slashes, blanks, ~, * and #; / always exists",
        )
    if value:
        raise Refused("bad-definition", f"{VHOST} {name}: {sorted(value)[0]} is unknown; there are no keys")
    return value
