"""Run `qmq` in this process, on a leash: the kernel signals it when the tests that started it are gone.

Started by path, as `python cluster_leash.py PARENT SIGKILL serve …`. A test run that is itself killed (kill -9, out
of memory) gets no chance to end its nodes, and a node that outlives it would keep ports and processor for ever. Linux
only; elsewhere the fixtures' own ends are all there is.
"""

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1

parent = int(sys.argv.pop(1))
number = signal.Signals[sys.argv.pop(1)]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
if os.getppid() != parent:  # it ended before the leash was on
    sys.exit(f"the test run {parent} is gone")
# Not this folder, which is first for a program started by path, but the project that the tests are of.
sys.path[0] = str(Path(__file__).parents[2])
runpy.run_module("qmq", run_name="__main__", alter_sys=True)
