"""Whether a running node may change from one valid peers file to another.

The mesh must never be split by its own files: majorities of two successive versions must overlap, whichever of the two
a node has read. So each version adds or removes one node, and its number decides which file is newer. A node that held
messages is removed by `qmq mesh retire`, not by leaving it out.
"""

from collections.abc import Collection

from .peers import PeersFile


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
