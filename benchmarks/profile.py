"""Where a node spends its processor time under one workload of `qmq bench`, in microseconds per message.

    python -m benchmarks.profile queue --memory
    python -m benchmarks.profile mesh --kind fanout --nodes 3
    make profile WORKLOAD="send"

Starts a throwaway node that takes a sample of itself each millisecond of processor time (`benchmarks.sampled`), lets
`qmq bench` measure it with the options given, and prints a table by parts of the node, and the functions that took
most.
The samples say how the time divides; the measurement says what a message costs in all. The start of the node is
cut out by name, so that seconds of load are compared with seconds of load.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qmq.address import Address
from qmq.cli.throwaway import PEER, PEERS_FILE, free_addresses

PARTS = (
    ("parsing frames", ("qmq.wire.",)),
    ("gateway", ("qmq.gateways.stomp", "qmq.gateways.ack_frames", "qmq.gateways.retries", "qmq.gateways.headers")),
    ("broker", ("qmq.broker.", "qmq.model.dots", "namedtuple_Dot")),
    (
        "encoding frames and receipts",
        (
            "qmq.gateways.",
            "qmq.sessions.delivery.effect_dispatcher",
            "qmq.engine.commit.receipts",
            "qmq.engine.commit.replica_acks",
        ),
    ),
    ("encoding records of the journal", ("qmq.record_codec", "qmq.storage.format.record", "qmq.storage.format.batch")),
    (
        "the journal's file and its syncs",
        ("qmq.storage.log.journal", "qmq.storage.disk.disk", "qmq.storage.log.chain", "qmq.storage.format.segment"),
    ),
    ("checkpoint", ("qmq.storage.", "sqlite", "namedtuple_")),
    ("links", ("qmq.replication.",)),
    ("sockets", ("qmq.engine.runtime.sockets", "qmq.sessions.clients.outbox")),
    ("sessions and commits", ("qmq.node.",)),
    ("trio and threads", ("trio", "outcome", "threading", "<attrs generated", "contextlib", "sniffio")),
)
"""Part, and how the modules begin that belong to it; the first that fits."""

START_MODULES = ("importlib.", "attr.", "re.", "enum", "msgspec", "abc", "typing", "dataclasses", "click", "zipimport")
"""What runs before the first client comes, and nearly nothing afterwards."""

FUNCTIONS_SHOWN = 20
READY_SECONDS = 20.0
STOP_SECONDS = 20.0

NODE_FILE = """\
name = "profile"
data = "{data}"

[[stomp]]
address = "{address}"
"""

NAMES = "abcdefgh"

Row = tuple[str, str, int]


@dataclass
class Node:
    """A throwaway node. `samples` is the file that it writes when it ends."""

    name: str
    address: Address
    samples: Path
    process: "subprocess.Popen[bytes] | None" = None


def part_of(module: str) -> str:
    """The part that a module belongs to."""
    for part, beginnings in PARTS:
        if module.startswith(beginnings):
            return part
    return "everything else"


def tables(rows: list[Row], micros: float) -> str:
    """Parts and functions with their share of `micros` per message."""
    rows = [row for row in rows if not row[0].startswith(START_MODULES) and row[1] != "<module>"]
    total = sum([count for _, _, count in rows]) or 1
    parts: Counter[str] = Counter()
    for module, _, count in rows:
        parts[part_of(module)] += count
    lines = ["| part | share | µs per message |", "|---|---:|---:|"]
    lines += [f"| {part} | {count / total:.0%} | {micros * count / total:.2f} |" for part, count in parts.most_common()]
    lines += ["", "| function | share | µs per message |", "|---|---:|---:|"]
    for module, function, count in rows[:FUNCTIONS_SHOWN]:
        lines.append(f"| `{module}.{function}` | {count / total:.1%} | {micros * count / total:.2f} |")
    return "\n".join(lines)


@contextlib.contextmanager
def sampled_nodes(place: Path, count: int) -> Iterator[list[Node]]:
    """Started nodes with data and samples in `place`, more than one as a mesh; their samples are there afterwards."""
    addresses = free_addresses(2 * count)
    names = NAMES[:count]
    nodes = [
        Node(name, client, Path(place, f"{name}.json")) for name, client in zip(names, addresses[::2], strict=True)
    ]
    peers = PEERS_FILE + "".join(
        PEER.format(name=node.name, client=node.address, mesh=link)
        for node, link in zip(nodes, addresses[1::2], strict=True)
    )
    peers_file = Path(place, "peers.toml")
    peers_file.touch(0o600)
    peers_file.write_text(peers, "utf-8")
    with contextlib.ExitStack() as stack:
        for node in nodes:
            data = Path(place, f"data-{node.name}")
            command = [sys.executable, "-m", "benchmarks.sampled", str(node.samples), "serve", "--log-level", "warning"]
            if count > 1:
                command += ["--peers", str(peers_file), "--node", node.name, "--data", str(data)]
            else:
                node_file = Path(place, "node.toml")
                node_file.write_text(NODE_FILE.format(data=data, address=node.address), "utf-8")
                command += ["--config", str(node_file)]
            node.process = stack.enter_context(subprocess.Popen(command))
            stack.callback(stop, node.process)
        for node in nodes:
            await_listener(node)
        yield nodes


def await_listener(node: Node) -> None:
    """Return when a listener is there. Exits when the node has ended instead, or takes too long."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and node.process is not None and node.process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((node.address.host, node.address.port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit("the node did not start")


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end, and make sure that it does."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def measure(nodes: list[Node], arguments: list[str]) -> dict[str, object]:
    """What `qmq bench` with these arguments has to say of `nodes`."""
    command = [sys.executable, "-m", "qmq", "bench", *arguments, "--line", "--at", str(nodes[0].address)]
    for other in nodes[1:]:
        command += ["--to", str(other.address)]
    for node in nodes:
        assert node.process is not None
        command += ["--pid", str(node.process.pid)]
    measured = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    return dict(json.loads(measured.stdout))


def main(arguments: list[str]) -> None:
    """See the module's opening."""
    arguments = arguments or ["queue"]
    count = 1
    if arguments[0] == "mesh":
        count = 2
        if "--nodes" in arguments:
            at = arguments.index("--nodes")
            count = int(arguments[at + 1])
            del arguments[at : at + 2]
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="qmq-profile-") as place:
        with sampled_nodes(Path(place), count) as nodes:
            if count == 1 and len(cores) > 1 and nodes[0].process is not None:
                os.sched_setaffinity(nodes[0].process.pid, {cores[0]})
            measured = measure(nodes, arguments)
        print(f"qmq bench {' '.join(arguments)}: {measured.get('per_second', '–')}/s")
        micros = float(str(measured["server_cpu_us_per_message"]))
        samples = {
            node.name: [
                (str(module), str(where), int(of)) for module, where, of in json.loads(node.samples.read_text())
            ]
            for node in nodes
        }
        taken = {name: sum([of for _, _, of in rows]) for name, rows in samples.items()}
        for name, rows in samples.items():
            each = micros * taken[name] / (sum(taken.values()) or 1)
            print(f"\nnode {name}: {each:.2f} µs each\n\n{tables(rows, each)}")


if __name__ == "__main__":
    main(sys.argv[1:])
