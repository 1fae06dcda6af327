"""Ports for nodes of tests: a port that a stopped node will need again is given to no other process of this machine."""

import subprocess
import sys

from tests.support.cluster_mesh import BLOCK, ROOT, free_ports

ASK = f"from tests.support.cluster_mesh import free_ports; print(*free_ports({BLOCK + 50}))"


def test_processes_that_run_at_once_get_different_ports() -> None:
    ours = free_ports(BLOCK + 50)
    said = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    theirs = [int(word) for word in said.split()]

    assert len(set(ours)) == len(set(theirs)) == BLOCK + 50
    assert not set(ours) & set(theirs)
