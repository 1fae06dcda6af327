"""Every way to harm a mesh; importing this registers them all in `faults.NEMESES`."""

from tests.simulation.nemeses import disks, links, members, processes, rows

__all__ = ["disks", "links", "members", "processes", "rows"]
