"""Which figures the pages show: what a person would call each, the command, the aims, and the parts they are made in.

A part is as much as is measured in one go, some minutes; `python -m benchmarks.run PART` measures it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qmq.cli.bench.option_rules import APPLIES_TO


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. `aims` are those of the pure and of the compiled build, as text."""

    name: str
    arguments: str
    figure: str
    unit: str
    aims: tuple[str, str] = ("", "")
    more_is_better: bool = True
    phase: str = ""
    """Where a run has several: how the names of this one's figures begin."""
    is_pure: bool = False
    """Only the pure build can run it."""

    @property
    def command(self) -> str:
        """What to type for it."""
        if self.arguments.startswith("benchmarks."):
            return f"python -m {self.arguments}"
        return f"qmq bench {self.arguments} --serve"

    @property
    def has_length(self) -> bool:
        """Whether --seconds says how long it is measured."""
        return self.arguments.split()[0] in (*APPLIES_TO["seconds"], "benchmarks.web")


def _rate(name: str, arguments: str, unit: str, pure: str = "", compiled: str = "") -> Row:
    return Row(name, arguments, "per_second", unit, (pure, compiled))


def _less(
    name: str, arguments: str, figure: str, unit: str, pure: str = "", compiled: str = "", *, is_pure: bool = False
) -> Row:
    return Row(name, arguments, figure, unit, (pure, compiled), more_is_better=False, is_pure=is_pure)


LATENCY_QUEUE = "latency --destination /queue/bench"

SPEED: Mapping[str, Sequence[Row]] = {
    "topic": (
        _rate("topic, 1 to 1", "topic", "messages/s", "≥ 300,000", "≥ 1,000,000"),
        _rate("topic, 1 to 10", "fan-out", "deliveries/s", "≥ 2,000,000", "≥ 5,000,000"),
    ),
    "queue": (
        _rate("queue with an ACK each, memory only", "queue --memory", "messages/s", "≥ 200,000", "≥ 500,000"),
        _rate("queue with an ACK each, durable", "queue", "messages/s", "≥ 100,000", "≥ 200,000"),
    ),
    "send": (
        _rate("durable SEND with a receipt each, 256 in flight", "send", "receipts/s", "≥ 150,000", "≥ 300,000"),
        Row("drain of a durable queue with an ACK each", "drain", "drain_per_second", "messages/s", phase="drain_"),
    ),
    "latency": (
        _less("latency of a topic at 1,000/s, p50", "latency", "p50_us", "µs", "≤ 250", "≤ 200"),
        _less("latency of a topic at 1,000/s, p99", "latency", "p99_us", "µs", "≤ 1,000", "≤ 500"),
        _less("lateness of the generator in that run, p99", "latency", "generator_lag_p99_us", "µs"),
        _less("latency of a durable queue at 1,000/s, p50", LATENCY_QUEUE, "p50_us", "µs"),
        _less("latency of a durable queue at 1,000/s, p99", LATENCY_QUEUE, "p99_us", "µs", "3 fsyncs", "3 fsyncs"),
    ),
    "idle": (
        _less("memory of an idle node", "idle", "server_rss_mib", "MiB", "≤ 40", "≤ 35"),
        _less("wake-ups of an idle node", "idle", "wakeups_per_second", "per s", "≤ 5", "≤ 5"),
        _less(
            "memory of each of 10,000 idle connections",
            "idle --connections 10000",
            "bytes_per_connection",
            "bytes",
            "≤ 4,096",
            "≤ 4,096",
        ),
    ),
    "mesh": (
        _rate("topic, published on one node, delivered on another", "mesh", "messages/s"),
        _rate("durable queue, published on one node, consumed on another", "mesh --kind queue", "messages/s"),
        _rate(
            "fanout, durable and delivered on three nodes",
            "mesh --kind fanout --nodes 3",
            "messages/s",
            "≥ 30,000",
            "≥ 80,000",
        ),
    ),
}
"""Part → what passes through a node, or from one to another."""

WEB: Mapping[str, Sequence[Row]] = {
    "web": (
        _rate("messages by themselves, durable, 4 connections", "benchmarks.web post", "messages/s"),
        _rate("the same, 64 connections", "benchmarks.web post --connections 64", "messages/s", "≥ 6,000"),
        _rate("in batches of 500, durable, 4 connections", "benchmarks.web batch", "messages/s", "≥ 60,000"),
        _rate("events to 100 streams of a topic", "benchmarks.web events", "events/s", "≥ 100,000"),
        _rate("STOMP over a WebSocket: topic, 1 to 1", "benchmarks.web websocket", "messages/s", "≥ 60 % of TCP"),
        _rate("the same over TCP, for comparison", "benchmarks.web tcp", "messages/s"),
        _less(
            "memory of each of 5,000 idle WebSockets",
            "benchmarks.web idle --connections 5000",
            "bytes_per_connection",
            "bytes",
            "≤ 14,336",
        ),
    )
}
"""What passes through the web port. RabbitMQ has the loads of WEB_COMPARED, too."""

WEB_COMPARED: Sequence[Row] = [
    row for row in WEB["web"] if "batch" not in row.arguments and "events" not in row.arguments
]

_MATCH = "benchmarks.definitions match"
_SEND = "benchmarks.definitions send"
_TOTALS = "benchmarks.definitions totals"

DEFINITIONS: Mapping[str, Sequence[Row]] = {
    "definitions": (
        *(
            _less(
                f"start with 10,000 definitions of the kind {kind}: more",
                f"benchmarks.definitions start --kind {kind}",
                "cpu_seconds_more",
                "s",
                "≤ 0.5",
                "≤ 0.5",
            )
            for kind in ("policy", "queue", "binding")
        ),
        _less("a change, until all of three nodes have it, p50", "benchmarks.definitions visible", "p50_ms", "ms"),
        _less(
            "a change, until all of three nodes have it, p99",
            "benchmarks.definitions visible",
            "p99_ms",
            "ms",
            "≤ 100",
            "≤ 100",
        ),
        _less("queues of a new name, 10,000 bindings by name", _MATCH, "name_us", "µs"),
        _less("the same by the pattern `*.N.#`", _MATCH, "pattern_us", "µs"),
        _less("pattern against name", _MATCH, "pattern_times", "×", "≤ 3", "≤ 3"),
        _less("queues of a new key, 10,000 bindings of a direct exchange", _MATCH, "direct_us", "µs"),
        _less("the same of a topic exchange, `*.N.#`", _MATCH, "topic_exchange_us", "µs"),
        _less("topic against direct exchange", _MATCH, "topic_exchange_times", "×", "≤ 3", "≤ 3"),
        _less("the same with `#.N.*`", _MATCH, "topic_exchange_hash_first_times", "×", "≤ 3", "≤ 3"),
        _less("SEND to a topic without bindings, known header block", _SEND, "none_us", "µs"),
        _less("the same beside 10,000 bindings of other topics: more", _SEND, "names_more_percent", "%", "± 3", "± 3"),
        _less("SEND with a new header block", _SEND, "none_new_us", "µs"),
        _less("the same beside these bindings: more", _SEND, "names_new_more_percent", "%", "± 3", "± 3"),
        _less(
            "queue message with its ACK, in reads of 100: totals cost",
            _TOTALS,
            "run_us_more_percent",
            "%",
            "≤ 1",
            is_pure=True,
        ),
        _less("the same in bytecodes", _TOTALS, "run_steps_more_percent", "%", "≤ 1", is_pure=True),
        _less(
            "queue message with its ACK, one in a read: totals cost",
            _TOTALS,
            "single_us_more_percent",
            "%",
            is_pure=True,
        ),
        _less("the same in bytecodes", _TOTALS, "single_steps_more_percent", "%", is_pure=True),
    ),
}
"""Part → what definitions, bindings and totals cost."""

_TABS = "benchmarks.console tabs"
_PAINT = "benchmarks.console paint"
_PAIRS = "benchmarks.console latency"

CONSOLE: Mapping[str, Sequence[Row]] = {
    "console": (
        _less("ten tabs of the mesh page: processor time of the node", _TABS, "mesh_cpu_percent", "%", "≤ 2", "≤ 2"),
        _less("the same: growth of the node's memory", _TABS, "mesh_memory_mb", "MB", "≤ 5", "≤ 5"),
        _less("ten tabs of ten pages: processor time of the node", _TABS, "pages_cpu_percent", "%", "≤ 2", "≤ 2"),
        _less("the same: growth of the node's memory", _TABS, "pages_memory_mb", "MB", "≤ 5", "≤ 5"),
        _less("first visit of the mesh page: all that is loaded", _PAINT, "kilobytes", "KB", "≤ 200", "≤ 200"),
        _less("the same: first paint", _PAINT, "first_paint_ms", "ms", "≤ 1,000", "≤ 1,000"),
        _less("the same: the mesh is drawn", _PAINT, "drawn_ms", "ms"),
        _less("latency of a topic at 1,000/s, p99, without tabs", _PAIRS, "p99_alone_us", "µs"),
        _less(
            "the same beside ten tabs, against those of another mesh: more",
            _PAIRS,
            "p99_more_percent",
            "%",
            "± 5",
            "± 5",
        ),
    ),
}
"""Part → what open tabs of the console cost."""

SEND_CPU = "send_server_cpu_us_per_message"
FLAT = "± 20 %"
"""Against the row with one of them."""


def held(full: bool) -> Mapping[str, Sequence[Row]]:
    """Part → what a backlog, many queues and many subscriptions cost; `full` is as many as the aims are about.

    Memory and recovery grow with the number, so a short run has no aim for them to look good against.
    """

    def at_most(aim: str) -> str:
        return aim if full else ""

    def row(
        name: str, arguments: str, figure: str, unit: str, aim: str = "", *, more: bool = False, phase: str = ""
    ) -> Row:
        return Row(name, arguments, figure, unit, (aim, aim), more, phase)

    count = 5_000_000 if full else 200_000
    backlog = f"backlog --count {count}"
    recovery = f"benchmarks.recovery --count {count}"
    waiting = f"{count:,} messages of 200 bytes"
    parts: dict[str, list[Row]] = {
        "backlog": [
            row(
                f"SEND of {waiting}",
                backlog,
                "publish_per_second",
                "receipts/s",
                "≥ 60,000",
                more=True,
                phase="publish_",
            ),
            row(
                "drain of these with an ACK each",
                backlog,
                "drain_per_second",
                "messages/s",
                "≥ 40,000",
                more=True,
                phase="drain_",
            ),
            row("highest memory of the node in that run", backlog, "server_rss_highest_mib", "MiB", at_most("≤ 300")),
            row(f"restart after kill -9 with {waiting}", recovery, "recovery_seconds", "s", at_most("≤ 10")),
            row("restart until the first message is delivered", recovery, "first_message_seconds", "s"),
        ]
    }
    most = 1_000_000 if full else 100_000
    numbers = [number for number in (1, 1_000, 100_000, 1_000_000) if number <= most]
    queues = parts["queues"] = []
    for number in numbers:
        command = f"queues --queues {number}"
        name = "durable SEND to 1 queue" if number == 1 else f"durable SEND to one of {number:,} queues"
        queues.append(row(name, command, SEND_CPU, "µs", "" if number == 1 else FLAT, phase="send_"))
    queues += [
        row(f"creation of {most:,} queues", command, "create_per_second", "receipts/s", more=True, phase="create_"),
        row("growth of the node's memory in that run", command, "server_rss_growth_mib", "MiB", at_most("≤ 100")),
    ]
    subscriptions = parts["subscriptions"] = []
    for kind in ("topic", "queue"):
        for number in numbers:
            command = f"subscriptions --kind {kind} --subscriptions {number}"
            name = (
                f"SEND to 1 {kind} with a subscription"
                if number == 1
                else f"SEND to one of {number:,} {kind}s with a subscription"
            )
            subscriptions.append(row(name, command, SEND_CPU, "µs", "" if number == 1 else FLAT, phase="send_"))
        subscriptions += [
            row(f"SUBSCRIBE to each of {most:,} {kind}s", command, "subscribe_server_cpu_us_per_subscription", "µs"),
            row("growth of the node's memory in that run", command, "server_rss_growth_mib", "MiB", at_most("≤ 250")),
        ]
    return parts


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot: a figure of a run for each n, which stands where `arguments` has {n}.

    `more` gives further options for large n, by the least n that wants them.
    """

    name: str
    arguments: str
    figure: str
    sizes: tuple[int, ...]
    order: str
    more: Mapping[int, str] | None = field(default=None, hash=False)

    def row(self, n: int) -> Row:
        further = [options for least, options in (self.more or {}).items() if n >= least][-1:]
        arguments = " ".join([self.arguments.format(n=n), *further])
        phase = self.figure.partition("server_cpu")[0]
        return Row(f"{self.name}, n = {n:,}", arguments, self.figure, "µs", more_is_better=False, phase=phase)


CPU = "server_cpu_us_per_message"
BODIES = (26, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
FEWER = {10_000: "--outstanding 1000", 100_000: "--outstanding 100", 1_000_000: "--outstanding 10"}
FEWER_SENDS = {100_000: "--window 32", 1_000_000: "--window 4"}
"""Under way at once, so that large bodies fit into memory and into buffers."""

GROWTH: Mapping[str, tuple[str, Sequence[Line]]] = {
    "growth-connections": (
        "idle connections",
        [Line("topic message", "topic --connections {n}", CPU, (1, 10, 100, 1_000, 10_000), "O(1)")],
    ),
    "growth-subscriptions": (
        "subscriptions to other topics",
        [
            Line(
                "topic message",
                "subscriptions --subscriptions {n}",
                SEND_CPU,
                (1, 1_000, 10_000, 100_000, 1_000_000),
                "O(1)",
            ),
        ],
    ),
    "growth-queues": (
        "queues with messages",
        [
            Line(
                "durable SEND",
                "queues --queues {n}",
                SEND_CPU,
                (1, 1_000, 10_000, 100_000, 1_000_000),
                "O(1), where each SEND goes to another queue",
            ),
        ],
    ),
    "growth-backlog": (
        "waiting messages",
        [
            Line("SEND", "backlog --count {n}", "publish_" + CPU, (10_000, 100_000, 1_000_000), "O(1)"),
            Line("delivery and ACK", "backlog --count {n}", "drain_" + CPU, (10_000, 100_000, 1_000_000), "O(1)"),
        ],
    ),
    "growth-body": (
        "bytes of the body",
        [
            Line("topic message", "topic --body {n}", CPU, BODIES, "O(1) up to some 100 bytes, then O(n)", FEWER),
            Line("durable SEND", "send --body {n}", CPU, BODIES, "O(1) up to some 100 bytes, then O(n)", FEWER_SENDS),
        ],
    ),
    "growth-nodes": (
        "nodes",
        [
            Line(
                "topic with a subscriber on each other node, per delivery",
                "mesh --nodes {n}",
                CPU,
                (2, 3, 4, 6, 8),
                "O(1)",
            ),
            Line(
                "durable fanout, per message, sum of all nodes",
                "mesh --kind fanout --nodes {n}",
                CPU,
                (2, 3, 4, 6, 8),
                "O(n)",
            ),
        ],
    ),
}
"""Part → (what n counts, lines of its plot)."""

COMPARED: Sequence[Row] = (*SPEED["topic"], *SPEED["queue"], SPEED["send"][0])
"""What is measured of other brokers too."""
