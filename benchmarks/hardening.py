"""What hostile clients can do to a node, and what an innocent client beside them notices.

    python -m benchmarks.hardening [NAME ...] [--memory-bytes-max BYTES]

Each attack has a fresh node with a bound of 256 MiB for its connections. The innocent client, a process of its own,
sends a message to a topic and waits for its RECEIPT, over and over: first alone, then beside the attack. The table is
on docs/hardening.md. The attackers are connections of one process.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from qmq.cli.throwaway import Throwaway, throwaway

CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
PAUSE_SECONDS = 0.01
"""Between two messages of the innocent client."""
QUIET_SECONDS = 3.0
AFTER_SECONDS = 10.0
ATTACK_SECONDS_MIN = 3.0
ATTACK_SECONDS_MAX = 30.0
"""Without new connections after that: the node lets growing clients wait."""
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
JSON = "application/json"


class Attackers:
    """Connections to one node. A node may end any of them at any time, and none of that stops an attack."""

    def __init__(self, node: Throwaway) -> None:
        self._address = (node.address.host, node.address.port)
        self._web_address = (node.web_address.host, node.web_address.port)
        self.sockets: list[socket.socket] = []
        self._deadline = time.monotonic() + ATTACK_SECONDS_MAX

    def connect(self, *, reads_little: bool = False) -> socket.socket:
        if time.monotonic() > self._deadline:
            raise TimeoutError
        one = socket.socket()
        if reads_little:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(5.0)
        one.connect(self._address)
        one.sendall(CONNECT)
        one.recv(4096)
        self.sockets.append(one)
        return one

    def say(self, one: socket.socket, *frames: bytes) -> None:
        with contextlib.suppress(OSError):
            one.sendall(b"".join(frame + b"\0" for frame in frames))

    def until_obeyed(self, one: socket.socket) -> None:
        """Wait until all that was said is obeyed, or the node has ended the connection."""
        with contextlib.suppress(OSError):
            one.settimeout(60.0)
            one.sendall(b"SEND\ndestination:/topic/none\nreceipt:obeyed\n\n\0")
            data = b""
            while b"receipt-id:obeyed" not in data:
                more = one.recv(65536)
                if not more or b"error-code:" in more:
                    return
                data = data[-100:] + more

    def post(self, path: str, type: str, body: bytes, times: int) -> None:
        """Send a request over so many connections at once, and wait until each is answered."""
        lines = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        for _ in range(times):
            one = socket.create_connection(self._web_address)
            one.settimeout(120.0)
            self.sockets.append(one)
            one.sendall(lines.encode() + body)
        for one in self.sockets[-times:]:
            with contextlib.suppress(OSError):
                one.recv(65536)

    def ended(self) -> int:
        """How many connections the node has ended, as far as their sockets know."""
        count = 0
        for one in self.sockets:
            one.setblocking(False)
            try:
                while data := one.recv(1 << 20):
                    if b"error-code:" in data:
                        break
                count += 1
            except BlockingIOError:
                pass
            except OSError:
                count += 1
        return count


def send(destination: str, body: bytes = b"", *headers: str) -> bytes:
    lines = "".join(f"{line}\n" for line in headers)
    return f"SEND\ndestination:{destination}\ncontent-length:{len(body)}\n{lines}\n".encode() + body


def subscribe(destination: str, id: int, *headers: str) -> bytes:
    lines = "".join(f"{line}\n" for line in headers)
    return f"SUBSCRIBE\nid:{id}\ndestination:{destination}\n{lines}\n".encode()


def transactions(attackers: Attackers) -> Iterator[None]:
    """100 open transactions of 15 MB"""
    yield
    body = b"x" * 1_000_000
    for _ in range(100):
        one = attackers.connect()
        attackers.say(one, b"BEGIN\ntransaction:t\n\n", *[send("/queue/q", body, "transaction:t")] * 15)


def bodies(attackers: Attackers) -> Iterator[None]:
    """900 bodies of 1 MiB, one byte missing"""
    yield
    for _ in range(900):
        one = attackers.connect()
        with contextlib.suppress(OSError):
            one.sendall(b"SEND\ndestination:/queue/q\ncontent-length:%d\n\n" % MIB + b"x" * (MIB - 1))


def not_reading(attackers: Attackers) -> Iterator[None]:
    """100 topic subscribers that do not read, 15 MB"""
    yield
    for _ in range(100):
        attackers.say(attackers.connect(reads_little=True), subscribe("/topic/news", 0))
    sender = attackers.connect()
    for _ in range(150):
        attackers.say(sender, send("/topic/news", b"x" * 100_000))
    attackers.until_obeyed(sender)


def browsers(attackers: Attackers) -> Iterator[None]:
    """200 browsers that do not read a queue of 100 MB"""
    sender = attackers.connect()
    for _ in range(100):
        attackers.say(sender, send("/queue/q", b"x" * 1_000_000))
    attackers.until_obeyed(sender)
    yield
    for _ in range(200):
        attackers.say(attackers.connect(reads_little=True), subscribe("/queue/q", 0, "browser:true"))


def patterns(attackers: Attackers) -> Iterator[None]:
    """10,000 patterns of 119 words"""
    yield
    for number in range(100):
        one = attackers.connect()
        words = f"{number:03}." + ".".join("w*"[index % 2] for index in range(116))
        attackers.say(one, *[subscribe(f"/topic/{words}.{id}", id) for id in range(100)])
        attackers.until_obeyed(one)


def ambiguous(attackers: Attackers) -> Iterator[None]:
    """5,000 patterns that match one name, 20 SENDs"""
    yield
    for number in range(50):
        one = attackers.connect()
        names = [".".join("a*"[(number * 100 + id) >> (bit % 13) & 1] for bit in range(119)) for id in range(100)]
        attackers.say(one, *[subscribe(f"/topic/{name}", id) for id, name in enumerate(names)])
        attackers.until_obeyed(one)
    sender = attackers.connect()
    for number in range(20):
        attackers.say(sender, send("/topic/" + "a." * 118 + str(number)))
        attackers.until_obeyed(sender)


def selectors(attackers: Attackers) -> Iterator[None]:
    """2,700 selectors of 120 LIKEs, 10 SENDs"""
    yield
    for number in range(30):
        one = attackers.connect()
        texts = [" OR ".join(f"h LIKE '%a_{number}_{id}%{part}'" for part in range(120)) for id in range(90)]
        attackers.say(one, *[subscribe("/topic/t", id, f"selector:{text[:4000]}") for id, text in enumerate(texts)])
        attackers.until_obeyed(one)
    sender = attackers.connect()
    for number in range(10):
        attackers.say(sender, send("/topic/t", b"", f"h:{'xaxbxxca' * 500}{number}"))
    attackers.until_obeyed(sender)


def scans(attackers: Attackers) -> Iterator[None]:
    """90 selectors of 120 LIKEs on headers of 4 kB, 100 SENDs"""
    one = attackers.connect()
    texts = [" OR ".join(f"h{part % 3} LIKE '%a_{id}%{part}'" for part in range(120)) for id in range(90)]
    attackers.say(one, *[subscribe("/topic/t", id, f"selector:{text[:4000]}") for id, text in enumerate(texts)])
    attackers.until_obeyed(one)
    yield
    sender = attackers.connect()
    long = [f"h{part}:{'xaxbxxcx' * 500}" for part in range(3)]
    attackers.say(sender, *[send("/topic/t", b"", *long, f"n:{number}") for number in range(100)])
    attackers.until_obeyed(sender)


def wide(attackers: Attackers) -> Iterator[None]:
    """20 consumers with 120 LIKEs each, a backlog of 50,000"""
    sender = attackers.connect()
    for at in range(0, 50_000, 1000):
        attackers.say(sender, *[send("/queue/q", b"x", f"h:{number}xaxbxxcx") for number in range(at, at + 1000)])
        attackers.until_obeyed(sender)
    yield
    for number in range(20):
        one = attackers.connect()
        text = " OR ".join(f"h LIKE '%a_{number}%{part}'" for part in range(120))
        attackers.say(one, subscribe("/queue/q", 0, f"selector:{text[:4000]}"))
    time.sleep(ATTACK_SECONDS_MAX)


def _bind_widely(attackers: Attackers) -> list[str]:
    """As many bindings of one topic exchange as it may have; returns keys that each match in many ways."""
    one = attackers.connect()
    for number in range(767):
        key = ".".join("a*"[number >> bit & 1] for bit in range(14))
        attackers.say(one, send("/control/bind/queue/q", b"{}", "source:/exchange/amq.topic", f"key:{key}"))
    attackers.until_obeyed(one)
    return [".".join(["a"] * 13 + [f"{number}" * 5]) for number in range(40 * 100)]


def keys(attackers: Attackers) -> Iterator[None]:
    """767 bindings, 40 SENDs of 100 routing keys"""
    found = _bind_widely(attackers)
    yield
    for number in range(40):
        one = attackers.connect()
        some = json.dumps(found[100 * number :][:100]).replace(":", "\\c")
        attackers.say(one, send("/exchange/amq.topic/x", b"x", f"routing-keys:{some}"))
        attackers.until_obeyed(one)


def batch(attackers: Attackers) -> Iterator[None]:
    """767 bindings, one batch over HTTP of 40 such messages"""
    found = _bind_widely(attackers)
    yield
    messages = [{"body": "x", "routing_keys": found[100 * number :][:100]} for number in range(40)]
    attackers.post("/v1/exchanges/amq.topic/messages?key=x", JSON, json.dumps({"messages": messages}).encode(), 1)


def avro(attackers: Attackers) -> Iterator[None]:
    """12 Avro files of 21 kB, 950,000 values each"""
    schema = {
        "type": "record",
        "name": "m",
        "fields": [{"name": "headers", "type": {"type": "map", "values": "string"}}],
    }
    entries = b"".join([b"\x04%02d\x00" % number for number in range(95)])
    records = (b"\xbe\x01" + entries + b"\0") * 9_999
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(records) + packer.flush()
    text = json.dumps(schema).encode()
    head = b"Obj\1" + _long(2) + b"\x16avro.schema" + _long(len(text)) + text
    body = head + b"\x14avro.codec\x0edeflate\0" + bytes(16) + _long(9_999) + _long(len(packed)) + packed + bytes(16)
    yield
    attackers.post("/v1/queues/q/messages", "avro/binary", body, 12)


def _long(number: int) -> bytes:
    """As Avro writes it."""
    number *= 2
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


Attack = Callable[[Attackers], Iterator[None]]

ATTACKS: Mapping[str, Attack] = {
    attack.__name__: attack
    for attack in (
        transactions,
        bodies,
        not_reading,
        browsers,
        patterns,
        ambiguous,
        selectors,
        scans,
        wide,
        keys,
        batch,
        avro,
    )
}


def innocent(address: tuple[str, int], parent: Connection) -> None:
    """Send and wait, until asked for the times; answers with them, in milliseconds."""
    times: list[float] = []
    with socket.create_connection(address) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.sendall(CONNECT)
        one.recv(4096)
        while True:
            begin = time.perf_counter()
            one.sendall(send("/topic/innocent", b"x", "receipt:r") + b"\0")
            while b"\0" not in one.recv(4096):
                pass
            times.append(1000 * (time.perf_counter() - begin))
            if parent.poll(PAUSE_SECONDS):
                if parent.recv() is None:
                    return
                parent.send(times)
                times = []


def memory(pid: int, line: str) -> int:
    """MiB of the process: VmRSS now, VmHWM at the most since `forget_peak`."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{line}:")[2].split()[0]) // 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def quantiles(times: list[float]) -> str:
    """p50, p99 and the most."""
    p99 = statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]
    return f"{statistics.median(times):.1f} / {p99:.1f} / {max(times):.0f}"


def quiet_times(client: Connection) -> list[float]:
    """How long the innocent client waits for each answer, in ms, while the node has nothing else to do."""
    times_of(client)  # of the preparations
    time.sleep(QUIET_SECONDS)
    return times_of(client)


def times_of(client: Connection) -> list[float]:
    """The same since it was asked last."""
    client.send("times")
    times: list[float] = client.recv()
    return times


def measure(attack: Attack, limits: Mapping[str, int]) -> str:
    """Run one attack; returns its row."""
    with throwaway(None, limits, None, has_web=True) as node:
        mine, theirs = multiprocessing.Pipe()
        client = multiprocessing.Process(target=innocent, args=((node.address.host, node.address.port), theirs))
        client.start()
        try:
            attackers = Attackers(node)
            steps = attack(attackers)
            next(steps)  # what it prepares
            quiet = quiet_times(mine)
            before, used = memory(node.pid, "VmRSS"), cpu_seconds(node.pid)
            forget_peak(node.pid)
            begin = time.monotonic()
            with contextlib.suppress(OSError, StopIteration):
                next(steps)
            time.sleep(max(0.0, ATTACK_SECONDS_MIN - (time.monotonic() - begin)))
            during = times_of(mine)
            peak, used = memory(node.pid, "VmHWM"), cpu_seconds(node.pid) - used
            ended = attackers.ended()
            for one in attackers.sockets:
                one.close()
            time.sleep(AFTER_SECONDS)
            after = memory(node.pid, "VmRSS")
            mine.send(None)
            client.join(10)
        finally:
            client.kill()
    return (
        f"| {attack.__doc__} | {before} → {peak} → {after} | {ended} of {len(attackers.sockets)} | {used:.1f} |"
        f" {quantiles(quiet)} | {quantiles(during)} |"
    )


def multiplied(limits: Mapping[str, int], count: int) -> str:
    """What messages of one byte do in ten queues, whose messages expire into a fanout exchange bound to all ten.

    Returns the row of `LETTERS_COLUMNS`; "-" is no answer in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        node = Throwaway(Path(folder), limits, None)
        mine, theirs = multiprocessing.Pipe()
        try:
            node.start()
            client = multiprocessing.Process(target=innocent, args=((node.address.host, node.address.port), theirs))
            client.start()
            one = Attackers(node).connect()
            asked(one, "/control/declare/exchange/b", b'{"type":"fanout"}')
            for number in range(LETTER_QUEUES):
                asked(one, f"/control/declare/queue/x{number}", b'{"ttl_seconds":0.001,"dead_letter":"/exchange/b"}')
                asked(one, f"/control/bind/queue/x{number}", b"{}", "source:/exchange/b")
            quiet = quiet_times(mine)
            before, used = memory(node.pid, "VmRSS"), cpu_seconds(node.pid)
            one.sendall((send("/queue/x0", b"x") + b"\0") * count)
            time.sleep(LETTER_SECONDS)
            during = times_of(mine)
            used = cpu_seconds(node.pid) - used
            peak, disk = memory(node.pid, "VmHWM"), disk_use(Path(folder))
            purge = timed(lambda: asked(one, "/control/purge/queue/x0", b"{}"))
            stop = timed(node.stop)
            client.kill()
        finally:
            node.kill()
    return (
        f"| {count:,} | {before} → {peak} | {disk} | {used:.1f} | {quantiles(quiet)} |"
        f" {quantiles(during)}, {len(during)} answers | {purge} | {stop} |"
    )


LETTERS_COLUMNS = (
    "| messages | MiB before → peak | disk MiB | CPU s | quiet p50 / p99 / max ms | during | purge s | SIGTERM s |"
)
LETTER_QUEUES = 10
LETTER_SECONDS = 30.0
ANSWER_SECONDS = 15.0


def asked(one: socket.socket, destination: str, body: bytes, *headers: str) -> None:
    """Ask the node for this, and wait for its answer. Raises TimeoutError."""
    one.settimeout(ANSWER_SECONDS)
    one.sendall(send(destination, body, "receipt:asked", *headers) + b"\0")
    data = b""
    while b"receipt-id:asked" not in data:
        more = one.recv(65536)
        if not more or b"error-code:" in more:
            raise OSError(more)
        data += more


def timed(do: Callable[[], None]) -> str:
    """How many seconds it takes; "-" if it takes too long."""
    begin = time.monotonic()
    try:
        do()
    except TimeoutError:
        return "-"
    return f"{time.monotonic() - begin:.1f}"


def disk_use(folder: Path) -> int:
    """MiB of the files in it."""
    return sum(one.stat().st_blocks for one in folder.rglob("*") if one.is_file()) * 512 // MIB


def main() -> None:
    """Read the options and print the table, row by row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hardening")
    parser.add_argument("attacks", nargs="*", metavar="NAME", help=f"of {', '.join(ATTACKS)} (default: all)")
    parser.add_argument("--memory-bytes-max", type=int, default=256 * MIB, help="of the node; 0 leaves it to the node")
    options = parser.parse_args()
    limits = {"memory_bytes_max": options.memory_bytes_max} if options.memory_bytes_max else {}
    if not options.attacks or "letters" in options.attacks:
        print(LETTERS_COLUMNS, "|--:|---|--:|--:|---|---|--:|--:|", sep="\n")
        for count in (1, 2_000):
            print(multiplied(limits, count), flush=True)
    print("| attack | MiB before → peak → after | closed | CPU s | quiet p50 / p99 / max ms | during |")
    print("|---|---|---|--:|---|---|")
    for name in options.attacks or ATTACKS:
        if name == "letters":
            continue
        print(measure(ATTACKS[name], limits), flush=True)


if __name__ == "__main__":
    main()
