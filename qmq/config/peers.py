"""The peers file: the nodes of the mesh and their addresses. The same file on every node.

It is the only source of addresses: a node never dials an address from the wire. The secret is for a mesh on one
machine. Between machines, links use TLS, and a certificate names its node.
"""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from .model import AddressText, NodeName, Section

NODES_MAX = 8
SECRET_CHARACTERS_MIN = 16


class Peer(Section):
    """One `[[nodes]]`: `client` is the address for STOMP clients, `mesh` the one for other nodes."""

    name: NodeName
    client: AddressText
    mesh: AddressText


class PeersFile(Section):
    """The whole peers file."""

    mesh: NodeName
    """Id of the mesh, in the characters of a node's name. Nodes with another id are refused."""
    version: Annotated[int, Field(ge=1, le=2**53)]
    """The operator raises it with every change of the file."""
    nodes: tuple[Peer, ...]
    secret: Annotated[str | None, Field(repr=False)] = None
    """Proves membership on loopback; at least 16 characters."""

    def peer(self, name: str) -> Peer | None:
        """The node of that name, or None."""
        return next((peer for peer in self.nodes if peer.name == name), None)

    @property
    def is_loopback(self) -> bool:
        """Whether every mesh address is on this machine."""
        return all(peer.mesh.is_loopback for peer in self.nodes)

    @field_validator("nodes")
    @classmethod
    def _nodes_differ(cls, nodes: tuple[Peer, ...]) -> tuple[Peer, ...]:
        if not 1 <= len(nodes) <= NODES_MAX:
            raise ValueError(f"must list 1 to {NODES_MAX} nodes, not {len(nodes)}")
        seen: dict[object, str] = {}
        for peer in nodes:
            if peer.name in seen:
                raise ValueError(f"must not have two nodes named {peer.name!r}")
            seen[peer.name] = peer.name
            for address in (peer.client, peer.mesh):
                if address.port == 0:
                    raise ValueError(f"must have a fixed port for node {peer.name!r}: other nodes dial it")
                if address in seen:
                    raise ValueError(f"must not use {address} twice: nodes {seen[address]!r} and {peer.name!r}")
                seen[address] = peer.name
        return nodes

    @field_validator("secret")
    @classmethod
    def _secret_stays_on_this_machine(cls, secret: str | None, info: ValidationInfo) -> str | None:
        if secret is None:
            return None
        if len(secret) < SECRET_CHARACTERS_MIN:
            raise ValueError(f"must have at least {SECRET_CHARACTERS_MIN} characters")
        outside = [peer for peer in info.data.get("nodes", ()) if not peer.mesh.is_loopback]
        if outside:
            raise ValueError(
                f"must be left out: {outside[0].mesh} is not on loopback, so links need TLS "
                "([mesh.tls] in each node file, certificates named as the nodes)"
            )
        return secret
