"""The protocols of one node, of the table in `qmq.protocols`."""

from importlib import import_module

from qmq.mesh.peers.calls import CallTable
from qmq.protocols import declarations
from qmq.sessions.clients.dialogue import ClientProtocol


class Protocols:
    """The protocols of one node. Each is loaded when the first listener, or the first request of a peer, needs it."""

    def __init__(self, node: object) -> None:
        self._node = node
        self._loaded: dict[str, ClientProtocol] = {}

    def of(self, name: str) -> ClientProtocol:
        """That of a line of the table (`qmq.protocols.PROTOCOLS`)."""
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = import_module(f"qmq.protocols.{name}.dialogue").protocol(self._node)
        return found

    def calls_of(self, kind: str) -> CallTable | None:
        """The calls of the protocol that has this kind of request; None if none has."""
        return next((self.of(one.name).calls for one in declarations() if kind in one.requests), None)
