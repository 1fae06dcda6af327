"""What a protocol may use of its node: the parts of each room, by the names of the rooms."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from qmq.admin.facts.conditions import Conditions
from qmq.admin.parts import AdminParts
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.mesh.parts import MeshParts
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.dialogue import ClientProtocol
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.parts import SessionParts
from qmq.settings.parts import SettingsParts


class ServingNode(NodeBasics, Protocol):
    """The node, and how far its start and its end are."""

    @property
    def has_asked_peers(self) -> bool: ...

    @property
    def is_listening(self) -> bool: ...

    @property
    def ended(self) -> trio.Event: ...


@dataclass(frozen=True, slots=True)
class ProtocolParts:
    """Of one node, for all its protocols. `clients` are those that are logged in, by id, and stay live."""

    node: ServingNode
    engine: EngineParts
    mesh: Mesh
    mesh_parts: MeshParts
    rpc: PeerRpc
    membership: Membership
    settings: SettingsParts
    sessions: SessionParts
    admin: AdminParts
    clients: dict[int, ClientSession]
    beats: Heartbeats
    conditions: Conditions
    protocol: Callable[[str], ClientProtocol]
    """Another one of the table in `qmq.protocols`."""
