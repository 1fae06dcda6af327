"""Whether a running node may go from one peers file to another, each right by itself.

The mesh must never be cut in two by its own files: what one version says must overlap with the next, whichever of them
a node has read. So each version adds or removes one node, numbers tell which file is newer, and a node that held
messages leaves by `qmq mesh retire`, not by being left out.
"""

from collections.abc import Collection

from .peers import PeersFile


def check_change(old: PeersFile, new: PeersFile, node: str, retired: Collection[str] = ()) -> list[str]:
    """Why `node` cannot take up `new`, ready to print; empty when it can. `retired` are the nodes known to be."""
    before, after = {peer.name for peer in old.nodes}, {peer.name for peer in new.nodes}
    mistakes: list[str] = []
    if _content(old) == _content(new) and old.version == new.version:
        return mistakes
    if new.mesh != old.mesh:
        mistakes.append(
            f"peers file: mesh: is {old.mesh!r} and stays so, not {new.mesh!r}: another mesh is another node"
        )
    if new.version <= old.version:
        mistakes.append(
            f"peers file: version = {new.version}: must be more than {old.version}, because the file has changed"
        )
    for name in sorted(before - after):
        if name == node:
            mistakes.append(f"peers file: nodes: {name!r} is this node: stop it and retire it on another one")
        elif name not in retired:
            mistakes.append(
                f"peers file: nodes: {name!r} was left out and is not retired; `qmq mesh retire {name}` lets another "
                "node serve the messages that it leaves"
            )
    for name in sorted((after - before).intersection(retired)):
        mistakes.append(f"peers file: nodes: {name!r} was retired for good; give the node another name")
    count = len(before ^ after)
    if count > max(1, new.version - old.version):
        mistakes.append(
            f"peers file: nodes: {', '.join(sorted(before ^ after))}: each version adds or removes one node; let every "
            "node take up one before the next"
        )
    return mistakes


def _content(peers: PeersFile) -> tuple[object, ...]:
    """What it says, in whatever order."""
    return peers.mesh, peers.secret, {peer.name: peer for peer in peers.nodes}
