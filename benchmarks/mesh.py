"""Measure what a mesh of three real nodes does when one of them is away; one line of JSON for each figure.

    python -m benchmarks.mesh [takeover] [heal] [stopped] [--rounds 3]

takeover  `kill -9` of a node with messages in a queue: seconds until a consumer on another node has all of them, and
          how much of that is beyond `takeover_after_seconds`
heal      a network partition between one node and the two others, with publishers on both sides: seconds from its end
          until all three have the same records
stopped   `qmq bench send` and `qmq bench topic` at a node while one of its peers is stopped (SIGSTOP), against the
          same with all of them running: how much slower, and how much more memory the node uses

Nodes run with the defaults, or with those of --node-file. Each figure is the median of the rounds, which are printed,
too. Meanwhile each node gets a status request fifty times a second.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

from qmq.config import MeshSettings
from tests.support.cluster_bodies import numbered
from tests.support.cluster_mesh import Cluster

POLL_SECONDS = 0.02
WAIT_SECONDS_MAX = 60.0
MESSAGES = 1000
"""Of the queue that is taken over, and on each side of a cut."""
CUT_SECONDS = 5.0
"""After it was noticed, so that nodes dial no more often than they do in a long one."""
BENCH_SECONDS = 2.0
DEFAULTS = MeshSettings()


def until(condition: Callable[[], bool], what: str) -> float:
    """When it is so, by the clock that `time.monotonic` shows. Ends the program when it does not become so."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {WAIT_SECONDS_MAX:g} s")
        time.sleep(POLL_SECONDS)
    return time.monotonic()


def is_same(mesh: Cluster, names: Sequence[str]) -> bool:
    """Whether these have the same records."""
    first, *others = [mesh.status(name).get("vector") for name in names]
    return bool(first) and all(other == first for other in others)


def take_over(mesh: Cluster, number: int) -> dict[str, float]:
    """Fill, kill, consume elsewhere; then all is as before."""
    queue = f"/queue/taken.{number}"
    until(lambda: all(serves_itself(mesh, name) for name in mesh.names), "every node serves itself")
    mesh.client("a").publish(queue, *numbered("taken", MESSAGES))
    until(lambda: is_same(mesh, mesh.names), "the messages are everywhere")
    killed = time.monotonic()
    mesh.kill("a")
    got = mesh.client("c").consume(queue)
    took = until(lambda: len(got) >= MESSAGES, "another node delivers them") - killed
    mesh.make_healthy()
    mesh.close_clients()
    return {"seconds": took, "beyond_takeover_after": took - DEFAULTS.takeover_after_seconds}


def serves_itself(mesh: Cluster, name: str) -> bool:
    status = mesh.status(name)
    return bool(status) and status["takeover"]["serves"] == [name] and not status["held"]


def heal(mesh: Cluster, number: int) -> dict[str, float]:
    """Cut one off, publish on both sides, heal."""
    for other in ("a", "b"):
        mesh.cut("c", other)
    until(lambda: mesh.misses("a", "c") and mesh.misses("c", "a"), "the partition is noticed")
    time.sleep(CUT_SECONDS)
    for name in ("a", "c"):
        mesh.client(name).publish(f"/fanout/healed.{number}", *numbered(name, MESSAGES), **{"receipt-level": "fsync"})
    for other in ("a", "b"):
        mesh.heal("c", other)
    healed = time.monotonic()
    took = until(lambda: is_same(mesh, mesh.names), "all have the same records") - healed
    mesh.close_clients()
    mesh.wait_for_links()
    return {"seconds": took}


def stopped(mesh: Cluster, number: int) -> dict[str, float]:
    """The throughput of a node with all peers, and with one that is stopped."""
    found: dict[str, float] = {}
    for workload in ("topic", "send"):
        before = throughput(mesh, workload)
        resident = resident_mib(mesh)
        with paused(mesh, "c"):
            during = throughput(mesh, workload)
            found[f"{workload}_resident_mib_more"] = resident_mib(mesh) - resident
        again = throughput(mesh, workload)
        found[f"{workload}_per_second"] = (before + again) / 2
        found[f"{workload}_per_second_stopped"] = during
        found[f"{workload}_slower_percent"] = 100 * (1 - 2 * during / (before + again))
    return found


@contextmanager
def paused(mesh: Cluster, name: str) -> Iterator[None]:
    mesh.pause(name)
    try:
        yield
    finally:
        mesh.resume(name)
        mesh.wait_for_links()
        until(lambda: is_same(mesh, mesh.names), "the node has caught up")


def throughput(mesh: Cluster, workload: str) -> float:
    """Messages a second at node a; the other nodes are linked, and have no interest in them."""
    command = [sys.executable, "-m", "qmq", "bench", workload, "--at", mesh.at("a"), "--line", "--no-pin"]
    command += ["--seconds", str(BENCH_SECONDS), "--no-progress"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    facts = json.loads(done.stdout)
    return float(facts["per_second"])


def resident_mib(mesh: Cluster) -> float:
    process = mesh.fleet.nodes["a"].process
    assert process is not None
    text = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:")) / 1024


FIGURES: dict[str, Callable[[Cluster, int], dict[str, float]]] = {
    "takeover": take_over,
    "heal": heal,
    "stopped": stopped,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], metavar="FIGURE", help=", ".join(FIGURES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--node-file", default="", help="text of the nodes' configuration instead of the defaults")
    options = parser.parse_args(arguments)
    for name in options.figures or FIGURES:
        with tempfile.TemporaryDirectory(prefix="qmq-mesh-") as folder:
            with Cluster(Path(folder), cuttable=combinations("abc", 2) if name == "heal" else ()) as mesh:
                mesh.node_files = dict.fromkeys(mesh.names, options.node_file)
                mesh.make_healthy()
                rounds = [FIGURES[name](mesh, number) for number in range(options.rounds)]
        medians = {key: round(statistics.median(one[key] for one in rounds), 2) for key in rounds[0]}
        values = {key: [round(one[key], 2) for one in rounds] for key in rounds[0]}
        print(json.dumps({"figure": name, **medians, "rounds": values}), flush=True)


if __name__ == "__main__":
    main()
