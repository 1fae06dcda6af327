"""`qmq bench`: measure a broker on this machine.

The generator is `qmq.bench`. This module has its options, `option_rules` which of them apply, `target` the node or mesh
that is measured, and `output` the output.
"""

import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ...address import Address
from ...bench.dialect import DIALECTS
from ...bench.plan import BenchPlan
from ...bench.progress import SILENT, Live, RunProgress
from ...bench.workloads import BODY_BYTES_MIN, WINDOW_MAX, WORKLOADS, measure
from ..client import Login
from ..options import DEFAULT_AT, FILE, FOLDER, SECONDS, SECONDS_MAX, Number, header_option, login_options, read_address
from ..output import Failed
from ..throwaway import NODES_MAX, exit_on_signals
from .option_rules import COUNTED, KINDS, check_options
from .output import Output, facts, read_run
from .target import Target, allow_files, cores, limits_for, read_cores, served

FAN_OUT_SUBSCRIBERS = 10
OUTSTANDING_EACH = 5000
CONNECTIONS_MAX = 25_000
"""From one address to one other: fewer than the ports of a system."""

BODY_BYTES = 100
BACKLOG_BODY_BYTES = 200
WINDOW = 256
WINDOW_OF_MANY = 1000
COUNT = 100_000
BACKLOG_COUNT = 200_000
COUNT_MAX = 100_000_000
RATE_MAX = 10_000_000
"""Far more than one process sends. Due frames are made at once, so a higher rate would only fill the memory."""
MANY_MAX = 10_000_000
"""Numbers of queues and subscriptions are bounded by the limits of a node file."""

WAITING_LINES = ("backlog", "drain")


def read_addresses(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Address, ...]:
    """`host:port`, several times."""
    return tuple(read_address(ctx, param, value) for value in values)


@click.command
@click.argument("workload", type=click.Choice(list(WORKLOADS)))
@click.option(
    "--at",
    "--server",
    "at",
    metavar="HOST:PORT",
    callback=read_address,
    default=DEFAULT_AT,
    show_default=True,
    help="Address of the broker; any broker with STOMP 1.2.",
)
@click.option(
    "--to",
    "others",
    metavar="HOST:PORT",
    callback=read_addresses,
    multiple=True,
    help="mesh: a node to read from, other than --at; repeatable.",
)
@click.option("--serve", is_flag=True, help="Start a temporary node, measure it, and stop it, in place of --at.")
@click.option(
    "--serve-in", type=FOLDER, metavar="DIR", help="Directory for its temporary data; by default that of the system."
)
@click.option(
    "--nodes",
    type=click.IntRange(min=2, max=NODES_MAX),
    default=2,
    show_default=True,
    help="mesh with --serve: number of nodes.",
)
@login_options
@click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    default="qmq",
    show_default=True,
    help="Kind of broker: its destination names, and its headers for durability and credit.",
)
@click.option("--host", metavar="NAME", help="The host header (virtual host), in place of that of the dialect.")
@click.option(
    "--topic-prefix",
    "topics",
    metavar="PREFIX",
    help="Prefix of topic names, in place of that of the dialect.",
)
@click.option("--queue-prefix", metavar="PREFIX", help="Prefix of queue names, in place of that of the dialect.")
@header_option("--connect-header", "connect_headers", "A header for each CONNECT; repeatable.")
@header_option("--send-header", "send_headers", "A header for each SEND; repeatable.")
@header_option("--subscribe-header", "subscribe_headers", "A header for each SUBSCRIBE; repeatable.")
@click.option(
    "--heart-beat",
    "heart_beat_ms",
    type=click.IntRange(min=0),
    metavar="MS",
    default=0,
    show_default=True,
    help="Interval of heart-beats, both ways; 0 for none.",
)
@click.option(
    "--pid",
    "pids",
    type=click.IntRange(min=1),
    multiple=True,
    help="Process id of the broker, to measure CPU time and memory.",
)
@click.option(
    "--seconds", type=Number(min=0.1, max=SECONDS_MAX), default=5.0, show_default=True, help="Time to measure."
)
@click.option(
    "--warmup",
    "warmup_seconds",
    type=SECONDS,
    default=1.0,
    show_default=True,
    help="Seconds of warm-up before that.",
)
@click.option(
    "--body",
    "body_bytes",
    type=click.IntRange(min=BODY_BYTES_MIN),
    metavar="BYTES",
    help="Size of each body; 100 by default, for backlog and drain 200.",
)
@click.option(
    "--subscribers", type=click.IntRange(min=1), help="topic, fan-out: number of subscribers; 1 and 10 by default."
)
@click.option(
    "--outstanding",
    type=click.IntRange(min=1),
    help="topic, fan-out, queue, subscriptions, mesh: most deliveries under way; by default 5000 for each reader.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="queue, backlog, drain, mesh: credit of the consumer.",
)
@click.option(
    "--window",
    type=click.IntRange(min=1, max=WINDOW_MAX),
    help="Most unconfirmed frames; by default 256 for send and mesh, 1000 for workloads with --count.",
)
@click.option("--memory", is_flag=True, help="Send memory-only messages to queues.")
@click.option(
    "--rate",
    type=Number(min=0, max=RATE_MAX, min_open=True),
    default=1000.0,
    show_default=True,
    help="latency: messages per second.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=0, max=CONNECTIONS_MAX),
    help="idle: opened after the node was measured alone. topic, fan-out: idle ones. subscriptions: share them (1).",
)
@click.option(
    "--count",
    type=click.IntRange(min=1, max=COUNT_MAX),
    help="backlog, drain, queues, subscriptions: messages; by default 100000, for backlog and drain 200000.",
)
@click.option(
    "--queues",
    type=click.IntRange(min=1, max=MANY_MAX),
    default=COUNT,
    show_default=True,
    help="queues: number of queues.",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(min=1, max=MANY_MAX),
    default=COUNT,
    show_default=True,
    help="subscriptions: their number, each to a destination of its own.",
)
@click.option(
    "--kind",
    type=click.Choice(KINDS["mesh"]),
    default="topic",
    show_default=True,
    help="Kind of destination. subscriptions: topic or queue. mesh: also fanout, durable on every node.",
)
@click.option("--destination", help="Destination; by default a new one. latency accepts a queue, too.")
@click.option("--pin/--no-pin", default=None, help="Give node and generator one core each; the default with --serve.")
@click.option(
    "--cores",
    "chosen_cores",
    metavar="NODE,GENERATOR",
    callback=read_cores,
    help="The core of each; by default the first and the last of this process.",
)
@click.option(
    "--table/--line",
    "as_table",
    default=None,
    help="Print a table or one line of JSON; by default a table on a terminal.",
)
@click.option("--json", "json_file", type=FILE, metavar="FILE", help="Write the result to FILE, for --compare.")
@click.option(
    "--compare", "earlier", type=FILE, metavar="FILE", help="Compare each figure with that of an earlier --json FILE."
)
@click.option("--progress/--no-progress", default=None, help="Show progress; the default on a terminal.")
@click.pass_context
def bench(
    context: click.Context,
    /,
    workload: str,
    at: Address,
    others: tuple[Address, ...],
    serve: bool,
    serve_in: Path | None,
    nodes: int,
    login: Login,
    dialect: str,
    host: str | None,
    topics: str | None,
    queue_prefix: str | None,
    connect_headers: list[tuple[str, str]],
    send_headers: list[tuple[str, str]],
    subscribe_headers: list[tuple[str, str]],
    pids: tuple[int, ...],
    body_bytes: int | None,
    subscribers: int | None,
    outstanding: int | None,
    prefetch: int,
    window: int | None,
    connections: int | None,
    count: int | None,
    queues: int,
    subscriptions: int,
    pin: bool | None,
    chosen_cores: tuple[int, int] | None,
    as_table: bool | None,
    json_file: Path | None,
    earlier: Path | None,
    progress: bool | None,
    **as_given: Any,
) -> None:
    """Measure a broker on this machine.

    \b
    topic          one sender, one subscriber (or more)
    fan-out        one sender, ten subscribers
    queue          one sender, one consumer that acknowledges each message
    send           messages with a receipt each; they stay in the node, so prefer --serve
    latency        messages at a fixed rate: the time of each, from when it was due
    idle           memory and wake-ups of an idle node
    mesh           sent to one node and read on others: a topic, a queue, or a durable fanout
    backlog        messages with a receipt each that wait in a queue, then one consumer for all of them
    drain          the same, but only the consumer is measured
    queues         a message to each of many queues, then what one more costs; they stay in the node
    subscriptions  many subscriptions, then what a message to one of them costs

    Frames are made beforehand, and answers are counted, not parsed, so the node is measured and not the generator.
    limited_by is the side that was busy all the time: server, generator, or neither (waiting, usually for a disk). The
    exit code is 0 if missing, extra and errors are 0.

    \b
      qmq bench topic --serve
      qmq bench queue --memory --serve --seconds 10 --json before.json
      qmq bench queue --memory --serve --seconds 10 --compare before.json
      qmq bench mesh --kind fanout --nodes 3 --serve
      qmq bench send --at 127.0.0.1:61614 --pid 4711
      qmq bench send --server 127.0.0.1:61613 --dialect rabbitmq --login guest --passcode guest
    """
    check_options(context, workload)
    output = Output(as_table, json_file, None if earlier is None else read_run(earlier), str(earlier))
    subscribers = subscribers or (FAN_OUT_SUBSCRIBERS if workload == "fan-out" else 1)
    connections = connections if connections is not None else int(workload == "subscriptions")
    pins = chosen_cores or (cores() if (serve and workload != "mesh" if pin is None else pin) else None)
    clients = connections + subscribers
    allow_files(clients)
    before = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        target = Target((at, *others), pids)
        if serve:
            login = Login()  # Whatever the environment says: nodes of its own know no user.
            for number in (signal.SIGTERM, signal.SIGHUP):
                stack.callback(signal.signal, number, signal.getsignal(number))
            exit_on_signals()
            target = stack.enter_context(
                served(
                    serve_in,
                    limits_for(
                        connections=clients,
                        destinations={"queues": queues, "subscriptions": subscriptions}.get(workload, 0),
                        subscriptions=subscriptions if workload == "subscriptions" else 0,
                        body_bytes=body_bytes or 0,
                        prefetch=prefetch,
                    ),
                    None if pins is None else pins[0],
                    nodes if workload == "mesh" else 1,
                )
            )
        if pins is not None:
            os.sched_setaffinity(0, {pins[1]})
            stack.callback(os.sched_setaffinity, 0, before)
        known = DIALECTS[dialect]
        readers = subscribers if workload in ("topic", "fan-out") else max(len(target.addresses) - 1, 1)
        plan = BenchPlan(
            workload=workload,
            at=target.addresses[0],
            others=target.addresses[1:],
            pids=target.pids,
            login=login.name,
            passcode=login.passcode,
            tls=login.tls,
            dialect=replace(
                known,
                host=host or known.host,
                topics=topics or known.topics,
                queues=queue_prefix or known.queues,
                connect=(*known.connect, *connect_headers),
                send=(*known.send, *send_headers),
                subscribe=(*known.subscribe, *subscribe_headers),
            ),
            body_bytes=body_bytes or (BACKLOG_BODY_BYTES if workload in WAITING_LINES else BODY_BYTES),
            subscribers=subscribers,
            window=window or (WINDOW_OF_MANY if workload in COUNTED else WINDOW),
            outstanding=outstanding or OUTSTANDING_EACH * readers,
            prefetch=prefetch,
            connections=connections,
            count=count or (BACKLOG_COUNT if workload in WAITING_LINES else COUNT),
            queues=queues,
            subscriptions=subscriptions,
            progress=_progress(progress),
            **as_given,
        )
        try:
            report = measure(plan)
        except OSError as error:
            raise Failed(str(error) or type(error).__name__) from error
    output.write(facts(plan, report, pins is not None))
    if not report.sound:
        raise Failed(report.error or f"{report.missing} messages are missing, {report.extra} came too often")


def _progress(wanted: bool | None) -> RunProgress:
    if not (sys.stderr.isatty() if wanted is None else wanted):
        return SILENT
    return Live(lambda text: click.echo(text, err=True, nl=False))
