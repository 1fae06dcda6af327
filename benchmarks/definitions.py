"""What definitions and bindings cost a node; one line of JSON for each figure.

    python -m benchmarks.definitions start [--kind policy]
    python -m benchmarks.definitions visible | match | send | totals

start    how much longer a node with 10,000 definitions takes from the start of its process until it serves
visible  a change on one of three nodes: the time from the request until both others have it
match    the queues of a name that was never asked for, with 10,000 bindings: by exact name, pattern and exchange
send     a SEND to a topic without bindings, beside 10,000 bindings of other topics, against a node without any
totals   SENDs, deliveries and ACKs with and without the counting of totals; on the pure build only

`match`, `send` and `totals` are processor time of the pure parts of a node: from bytes to bytes, without sockets and
disk. Each takes the best of many rounds, in which both sides have turns. `steps` are bytecodes, the same in every run.
"""

import argparse
import gc
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from qmq import __version__
from qmq.build import BUILD

DEFINITIONS = 10_000
STARTS = 3
CHANGES = 300
WAIT_SECONDS_MAX = 30.0
ROUNDS = 15
CALLS = 2000
TABLES = 3
TURNS = 3
MESSAGES = 100
"""Of one read, in `totals`."""

Figures = dict[str, float]


# start


def values_of(kind: str) -> dict[str, dict[str, object]]:
    """10,000 definitions of a kind, by name."""
    numbers = range(DEFINITIONS)
    if kind == "binding":
        sources = {f"/topic/*.{n}.#": f"/queue/q.{n}" for n in numbers}
        return {
            f"{source} {queue}": {"source": source, "queue": queue, "key": "", "arguments": {}}
            for source, queue in sources.items()
        }
    return {f"/queue/q.{n}": {"max_messages": n, "ttl_seconds": 60.0} for n in numbers}


def start(kind: str) -> Figures:
    """Seconds until a node serves, and of its processor: without definitions, and with those of `kind`."""
    from qmq.bench.process import usage
    from qmq.cli.throwaway import Throwaway
    from qmq.client.connection import NodeConnection

    def measure(node: Throwaway) -> Figures:
        found = []
        for _ in range(STARTS):
            began = time.monotonic()
            node.start()
            took = time.monotonic() - began
            used = usage(node.pid)
            found.append((took, 0.0 if used is None else used.cpu_seconds))
            node.stop()
        return {"seconds": min(took for took, _ in found), "cpu_seconds": min(cpu for _, cpu in found)}

    with tempfile.TemporaryDirectory(prefix="qmq-definitions-") as folder:
        node = Throwaway(Path(folder), {"body_bytes_max": 4 << 20}, None)
        try:
            node.start()
            node.stop()
            before = measure(node)
            node.start()
            file = {"qmq_definitions": 1, "definitions": {kind: values_of(kind)}}
            with NodeConnection(node.address, timeout_seconds=WAIT_SECONDS_MAX) as client:
                headers = [("destination", "/control/definitions/import")]
                answer = client.request("SEND", headers, json.dumps(file).encode()).head.headers
            if int(answer["changed"]) != DEFINITIONS:
                sys.exit(f"{answer['changed']} definitions have changed, not {DEFINITIONS}")
            node.stop()
            after = measure(node)
        finally:
            node.kill()
    more = {f"{name}_more": after[name] - before[name] for name in before}
    return _rounded({**before, **{f"{name}_with": value for name, value in after.items()}, **more})


# visible


def visible() -> Figures:
    """Milliseconds of one change after the other. The nodes that must have it are asked all the time."""
    from qmq.client.connection import NodeConnection
    from tests.support.cluster_mesh import Cluster

    def is_there(client: NodeConnection, name: str, limit: int) -> bool:
        headers = [("destination", f"/control/definitions/get/policy{name}")]
        return bool(json.loads(client.request("SEND", headers).head.headers["value"])["max_messages"] == limit)

    name, taken = "/queue/changed", []
    with tempfile.TemporaryDirectory(prefix="qmq-definitions-") as folder, Cluster(Path(folder)) as mesh:
        mesh.make_healthy()
        clients = [NodeConnection(mesh.address(node)) for node in mesh.names]
        first, others = clients[0], clients[1:]

        def change(limit: int) -> None:
            headers = [("destination", f"/control/definitions/put/policy{name}")]
            first.request("SEND", headers, json.dumps({"max_messages": limit}).encode())

        change(1)
        mesh.wait_until_same()
        for limit in range(2, CHANGES + 2):
            began = time.monotonic()
            change(limit)
            waiting = list(others)
            while waiting:
                waiting = [client for client in waiting if not is_there(client, name, limit)]
                if time.monotonic() - began > WAIT_SECONDS_MAX:
                    sys.exit(f"a change is not everywhere after {WAIT_SECONDS_MAX:g} s")
            taken.append((time.monotonic() - began) * 1000)
        for client in clients:
            client.close()
    cuts = statistics.quantiles(taken, n=100)
    return {"p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2), "max_ms": round(max(taken), 2)}


# match, send, totals


def best_ns(actions: Sequence[Callable[[], object]], calls: int) -> list[float]:
    """Nanoseconds of processor time of one call of each action; they have turns, so that all meet the same machine."""
    best = [float("inf")] * len(actions)
    gc.collect()
    gc.freeze()  # As a node does when it has started: collections do not look at what stays.
    for _ in range(ROUNDS):
        for at, action in enumerate(actions):
            began = time.thread_time_ns()
            for _ in range(calls):
                action()
            best[at] = min(best[at], (time.thread_time_ns() - began) / calls)
    return best


def match() -> Figures:
    """Microseconds of one look-up of a new name, and against that by exact name or key."""
    from benchmarks.bindings import KINDS, look_ups

    labels = ("name", "pattern", "direct", "topic_exchange", "topic_exchange_hash_first", "headers")
    best = dict.fromkeys(labels, float("inf"))
    for _ in range(TABLES):
        for label, kind in zip(labels, KINDS, strict=True):
            best[label] = min(best[label], look_ups(kind)[0] / 1000)
    times = {
        "pattern_times": best["pattern"] / best["name"],
        "topic_exchange_times": best["topic_exchange"] / best["direct"],
        "topic_exchange_hash_first_times": best["topic_exchange_hash_first"] / best["direct"],
    }
    return {**{f"{label}_us": round(value, 2) for label, value in best.items()}, **_rounded(times)}


def send() -> Figures:
    """Microseconds of a SEND with a known header block and with a new one, to a topic without subscribers."""
    from benchmarks.bindings import KINDS, node_with
    from benchmarks.growth import Node
    from benchmarks.growth import send as send_frame
    from benchmarks.work import work_of

    nodes = (Node(), node_with(KINDS[0]), node_with(KINDS[1]))
    senders = [node.client() for node in nodes]
    frame = send_frame("/topic/of-no-binding")
    known = best_ns([partial(sender.say, frame) for sender in senders], CALLS)
    fresh = [iter(range(1 << 40)) for _ in senders]

    def say_new(at: int) -> None:
        senders[at].say(send_frame("/topic/of-no-binding", headers=[("number", f"{next(fresh[at]):09}")]))

    new = best_ns([partial(say_new, at) for at in range(len(senders))], CALLS // 4)
    labels = ("none", "names", "patterns")
    us = {f"{label}_us": known[at] / 1000 for at, label in enumerate(labels)}
    us |= {f"{label}_new_us": new[at] / 1000 for at, label in enumerate(labels)}
    us |= {f"{label}_new_steps": work_of(partial(say_new, at)).steps for at, label in enumerate(labels)}
    more = {f"{label}_more_percent": 100 * (known[at] / known[0] - 1) for at, label in enumerate(labels) if at}
    more |= {f"{label}_new_more_percent": 100 * (new[at] / new[0] - 1) for at, label in enumerate(labels) if at}
    return _rounded({**us, **more})


def totals() -> Figures:
    """Microseconds of one message that is sent to a queue, delivered and acknowledged, in reads of 100 and of one."""
    if BUILD != "pure":
        sys.exit("the counting is left out of sources: run it on the pure build")
    best: dict[str, float] = {}
    for _ in range(TURNS):
        for side in ("counted", "uncounted"):
            command = [sys.executable, "-m", "benchmarks.definitions", side]
            done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX * 4, check=True)
            for name, value in json.loads(done.stdout).items():
                key = f"{side}_{name}"
                best[key] = min(best.get(key, float("inf")), value)
    more = {
        f"{name}_more_percent": 100 * (best[f"counted_{name}"] / best[f"uncounted_{name}"] - 1)
        for name in ("run_us", "single_us", "run_steps", "single_steps")
    }
    return _rounded({**best, **more})


def messages(*, is_counted: bool) -> Figures:
    """One side of `totals`, in this process."""
    if not is_counted:
        from benchmarks import without_totals

        without_totals.install()
    from benchmarks.growth import Node
    from benchmarks.growth import send as send_frame
    from benchmarks.work import work_of
    from qmq.wire.stomp import encode_frame

    if not is_counted:
        assert len(without_totals.left_out) > 5, without_totals.left_out
    node = Node()
    consumer, sender = node.client(), node.client()
    headers = [("destination", "/queue/q"), ("id", "1"), ("ack", "client-individual"), ("prefetch-count", "1000")]
    consumer.say(encode_frame("SUBSCRIBE", headers))
    frame = send_frame("/queue/q", headers=[("persistent", "false")])

    def work(count: int) -> None:
        sender.say(frame * count)
        consumer.ack_all()

    run, single = best_ns([partial(work, MESSAGES), partial(work, 1)], CALLS // 40)
    steps = {
        "run_steps": work_of(partial(work, MESSAGES)).steps / MESSAGES,
        "single_steps": work_of(partial(work, 1)).steps,
    }
    return {"run_us": run / 1000 / MESSAGES, "single_us": single / 1000, **steps}


def _rounded(figures: Figures) -> Figures:
    return {name: round(value, 3) for name, value in figures.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    figures: dict[str, Callable[[], Figures]] = {
        "visible": visible,
        "match": match,
        "send": send,
        "totals": totals,
        "counted": partial(messages, is_counted=True),
        "uncounted": partial(messages, is_counted=False),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["start", *figures], metavar="FIGURE")
    parser.add_argument("--kind", choices=("policy", "queue", "binding"), default="policy", help="of start")
    options = parser.parse_args(arguments)
    found = start(options.kind) if options.figure == "start" else figures[options.figure]()
    if options.figure in ("counted", "uncounted"):
        print(json.dumps(found))
        return
    print(json.dumps({**found, "qmq": __version__, "build": BUILD, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
