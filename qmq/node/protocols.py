"""The protocols of one node, of the table in `qmq.protocols`."""

from collections.abc import Callable
from importlib import import_module

from qmq.admin.protocol_parts import ProtocolParts
from qmq.mesh.peers.calls import CallTable
from qmq.protocols import declarations
from qmq.sessions.clients.dialogue import ClientProtocol


class Protocols:
    """The protocols of one node. Each is loaded when the first listener, or the first request of a peer, needs it."""

    def __init__(self, parts: Callable[[], ProtocolParts]) -> None:
        self._parts = parts
        self._loaded: dict[str, ClientProtocol] = {}

    def of(self, name: str) -> ClientProtocol:
        """That of a line of the table (`qmq.protocols.PROTOCOLS`)."""
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = import_module(f"qmq.protocols.{name}.dialogue").protocol(self._parts())
        return found

    def calls_of(self, kind: str) -> CallTable[ProtocolParts] | None:
        """The calls of the protocol that has this kind of request; None if none has."""
        return next((self.of(one.name).calls for one in declarations() if kind in one.requests), None)
