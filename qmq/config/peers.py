"""The peers file: the nodes of the mesh and their addresses. The same file on every node.

It is the only source of addresses: a node never dials an address from the wire. The secret is for a mesh on one
machine. Between machines, links use TLS, and a certificate names its node.

A running node may change from one file to another (`check_change`). The mesh must never be split by its own files:
majorities of two successive versions must overlap, whichever of the two a node has read. So each version adds or
removes one node, and its number decides which file is newer. A node that held messages is removed by `qmq mesh retire`,
not by leaving it out.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from qmq.address import Address
from qmq.protocols import declarations
from qmq.section import AddressText, FilePath, NodeName, Section, extended

NODES_MAX = 8
SECRET_CHARACTERS_MIN = 16
OTHERS = tuple(one.name for one in declarations() if one.name != "stomp")
"""Protocols for whose clients a node may have an address, besides that for STOMP."""


class Peer(Section):
    """One `[[nodes]]`: `client` is the address for STOMP clients, `mesh` the one for other nodes."""

    name: NodeName
    client: AddressText
    mesh: AddressText
    memory: bool = False
    """It has no disk: no node counts it as a copy, and it has no vote."""

    @property
    def served(self) -> dict[str, Address]:
        """Protocols besides STOMP → the addresses for their clients."""
        found = {name: getattr(self, name) for name in OTHERS}
        return {name: address for name, address in found.items() if address is not None}

    @property
    def addresses(self) -> list[Address]:
        return [self.client, self.mesh, *self.served.values()]


class MeshWideSettings(Section):
    """What the peers file says about the listeners of all nodes."""


if not TYPE_CHECKING:
    # From the table of protocols: an address of a node for each, and what is the same on all nodes.
    Peer = extended(Peer, {name: (AddressText | None, None) for name in OTHERS})
    keys = {key: (kind, ()) for one in declarations() for key, kind in one.of_mesh.items()}
    MeshWideSettings = extended(MeshWideSettings, keys)


class PeersFile(MeshWideSettings):
    """The whole peers file."""

    mesh: NodeName
    """Id of the mesh, in the characters of a node's name. Nodes with another id are refused."""
    version: Annotated[int, Meta(ge=1, le=2**53)]
    """The operator raises it with every change of the file."""
    nodes: tuple[Peer, ...]
    secret: str | None = None
    """Proves membership on loopback; at least 16 characters."""
    secret_file: FilePath | None = None
    """A file with the secret, in place of it. `qmq mesh up` draws one if it is missing."""

    def peer(self, name: str) -> Peer | None:
        """The node of that name, or None."""
        return next((peer for peer in self.nodes if peer.name == name), None)

    @property
    def with_disk(self) -> list[str]:
        """The nodes that count as copies and have votes, by name."""
        return [peer.name for peer in self.nodes if not peer.memory]

    @property
    def is_loopback(self) -> bool:
        """Whether every mesh address is on this machine."""
        return all(peer.mesh.is_loopback for peer in self.nodes)

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        if key == "nodes":
            _check_nodes(value)
        elif key == "secret" and value is not None:
            if len(value) < SECRET_CHARACTERS_MIN:
                raise ValueError(f"must have at least {SECRET_CHARACTERS_MIN} characters")
            outside = [peer for peer in seen.get("nodes", ()) if not peer.mesh.is_loopback]
            if outside:
                raise ValueError(
                    f"must be left out: {outside[0].mesh} is not on loopback, so links need TLS "
                    "([mesh.tls] in each node file, certificates named as the nodes)"
                )


def _check_nodes(nodes: tuple[Peer, ...]) -> None:
    if not 1 <= len(nodes) <= NODES_MAX:
        raise ValueError(f"must list 1 to {NODES_MAX} nodes, not {len(nodes)}")
    if all(peer.memory for peer in nodes):
        raise ValueError("must have a node without memory = true: one that has a disk, and a vote")
    seen: dict[object, str] = {}
    for peer in nodes:
        if peer.name in seen:
            raise ValueError(f"must not have two nodes named {peer.name!r}")
        seen[peer.name] = peer.name
        for address in peer.addresses:
            if address.port == 0:
                raise ValueError(f"must have a fixed port for node {peer.name!r}: other nodes dial it")
            if address.is_wildcard:
                raise ValueError(f"must be an address that other nodes can dial for node {peer.name!r}, not {address}")
            if address in seen:
                raise ValueError(f"must not use {address} twice: nodes {seen[address]!r} and {peer.name!r}")
            seen[address] = peer.name


def check_change(old: PeersFile, new: PeersFile, node: str, retired: Collection[str] = ()) -> list[str]:
    """Errors that keep `node` from applying `new`; empty if it may. `retired` are the nodes known to be retired."""
    before, after = {peer.name for peer in old.nodes}, {peer.name for peer in new.nodes}
    diagnostics: list[str] = []
    if _content(old) == _content(new) and old.version == new.version:
        return diagnostics
    if new.mesh != old.mesh:
        diagnostics.append(
            f"peers file: mesh: is {old.mesh!r} and cannot become {new.mesh!r}: a node stays in its mesh"
        )
    if new.version <= old.version:
        diagnostics.append(
            f"peers file: version = {new.version}: must be more than {old.version}, because the file has changed"
        )
    for name in sorted(before & after):
        if (name in old.with_disk) != (name in new.with_disk):
            diagnostics.append(
                f"peers file: nodes: {name!r}: memory cannot change: retire the node, and give it another name"
            )
    for name in sorted(before - after):
        if name == node:
            diagnostics.append(f"peers file: nodes: {name!r} is this node: stop it, and retire it from another node")
        elif name not in retired:
            diagnostics.append(
                f"peers file: nodes: {name!r} was left out and is not retired: run `qmq mesh retire {name}`, and "
                "another node adopts its queue messages"
            )
    for name in sorted((after - before).intersection(retired)):
        diagnostics.append(f"peers file: nodes: {name!r} was retired for good; give the node another name")
    count = len(before ^ after)
    if count > max(1, new.version - old.version):
        diagnostics.append(
            f"peers file: nodes: {', '.join(sorted(before ^ after))}: each version adds or removes one node; apply "
            "each version on every node before the next"
        )
    return diagnostics


def _content(peers: PeersFile) -> tuple[object, ...]:
    """The content of the file, independent of its order."""
    return peers.mesh, peers.secret, {peer.name: peer for peer in peers.nodes}
