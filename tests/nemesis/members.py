"""The mesh under fire changes: files are read again, nodes join and leave for good. See `fire.py`."""

import math
import random
import signal
import subprocess
import sys
import time

from tests.nemesis.fire import Fire, Steps, fault
from tests.support.cluster_mesh import ROOT

AGAIN_SECONDS = 2.0
"""After which a node that goes by another file is told once more."""


@fault(1)
def reload(fire: Fire, rng: random.Random) -> Steps:
    """SIGHUP to all that run, in any order."""
    for name in rng.sample(fire.mesh.names, len(fire.mesh.names)):
        if fire.is_free(name):  # else it may be just beginning to listen to signals
            _hang_up(fire, name)
        yield rng.uniform(0, 0.3)


@fault(1)
def join(fire: Fire, rng: random.Random) -> Steps:
    """A node of a new name joins, whatever else happens to the others."""
    if not fire.spares:
        return
    name = fire.spares[0]
    with fire.claim("members", name):
        fire.spares.remove(name)
        with fire.history.harm("joins", name):
            fire.mesh.change_peers([*fire.mesh.names, name])
            yield from _follow_file(fire, [other for other in fire.mesh.names if other != name])
            yield from fire.start(name)
            for told in fire.on_change:
                told()


@fault(1, is_alone=True)
def retire(fire: Fire, rng: random.Random) -> Steps:
    """A node that has joined during the run ends for good, and another takes over what it left."""
    joined = fire.mesh.names[fire.founders :]
    if not joined:
        return
    name = rng.choice(joined)
    with fire.claim("members", name):
        since = fire.until_covered()
        others = [other for other in fire.mesh.names if other != name]
        with fire.history.harm("retires", name, alone_since=since):
            fire.mesh.kill(name)
            fire.open()
            yield fire.long(rng)
            yield lambda: _is_retired(fire, name, rng.choice(others))
            fire.mesh.change_peers(others)
            for told in fire.on_change:
                told()
            yield from _follow_file(fire, others)


def _follow_file(fire: Fire, names: list[str]) -> Steps:
    """Until all of these go by the present peers file: SIGHUP to those that do not, now and then."""
    asked = dict.fromkeys(names, -math.inf)
    left = set(names)

    def all_do() -> bool:
        for name in sorted(left):
            # One that is stopped could not say by what it goes, one that starts reads the file by itself.
            if fire.is_free(name) and (membership := fire.mesh.status(name).get("membership")):
                if membership["peers_version"] == fire.mesh.peers_version:
                    left.discard(name)
                elif time.monotonic() - asked[name] > AGAIN_SECONDS:
                    asked[name] = time.monotonic()
                    _hang_up(fire, name)
        return not left

    yield all_do


def _hang_up(fire: Fire, name: str) -> None:
    process = fire.mesh.fleet.nodes[name].process
    assert process is not None
    process.send_signal(signal.SIGHUP)


def _is_retired(fire: Fire, name: str, place: str) -> bool:
    """Whether `place`, asked as an operator asks it, has retired the node."""
    if not fire.is_free(place):
        return False
    command = [sys.executable, "-m", "qmq", "mesh", "retire", name, "--at", fire.mesh.at(place)]
    return subprocess.run(command, capture_output=True, timeout=60, cwd=ROOT, check=False).returncode == 0
