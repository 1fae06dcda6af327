"""`qmq bench`: how fast a node is on this machine, as one line of JSON.

The generator is `qmq.bench`; here are its options, a throwaway node for it, and the printing. The node and the
generator get a core each where there are two, because a rate means little when both share one.
"""

import contextlib
import os
import platform
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from .. import __version__
from ..bench.workloads import BODY_BYTES_MIN, WINDOW_MAX, WORKLOADS, Plan, Report, Value, measure
from ..config.address import Address
from .launch import POLL_SECONDS, PROGRAM, READY_SECONDS, STOP_SECONDS, answers, exit_text, tail
from .options import DEFAULT_AT, FOLDER, read_address
from .output import Failed, print_json, table

FAN_OUT_SUBSCRIBERS = 10
OUTSTANDING_EACH = 5000
CONNECTIONS_MAX = 25_000
"""From one address to one other: fewer than the ports that a system gives out."""

FILES_BESIDES = 100
CONNECTIONS_BESIDES = 100
"""More than are measured: what the node opens for itself, and the generator's own."""

# Option → the workloads for which it means something; the rest are for all.
MEANT_FOR = {
    "body_bytes": ("topic", "fan-out", "queue", "send", "latency"),
    "warmup_seconds": ("topic", "fan-out", "queue", "send", "latency"),
    "destination": ("topic", "fan-out", "queue", "send", "latency"),
    "subscribers": ("topic", "fan-out"),
    "outstanding": ("topic", "fan-out", "queue"),
    "prefetch": ("queue",),
    "memory": ("queue", "send", "latency"),
    "window": ("send",),
    "rate": ("latency",),
    "connections": ("idle",),
}

NODE_FILE = """\
name = "bench"
data = "{data}"

[[stomp]]
address = "{address}"

[limits]
connections_max = {connections}
connections_per_address_max = {connections}
"""


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured: an address, and its process where that is known."""

    address: Address
    pid: int | None


@click.command
@click.argument("workload", type=click.Choice(list(WORKLOADS)))
@click.option(
    "--at",
    metavar="HOST:PORT",
    callback=read_address,
    default=DEFAULT_AT,
    show_default=True,
    help="The node to measure.",
)
@click.option("--serve", is_flag=True, help="Start a throwaway node, measure it, stop it; instead of --at.")
@click.option(
    "--serve-in", type=FOLDER, metavar="DIR", help="Where its data goes for so long; else the system's choice."
)
@click.option("--login", metavar="NAME", envvar="QMQ_LOGIN", help="Login name, also from QMQ_LOGIN.")
@click.option("--passcode", metavar="TEXT", envvar="QMQ_PASSCODE", help="Password, better from QMQ_PASSCODE.")
@click.option("--pid", type=click.IntRange(min=1), help="The node's process id, to tell its CPU time and memory.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="How long to measure.")
@click.option(
    "--warmup",
    "warmup_seconds",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Seconds of the same before that.",
)
@click.option(
    "--body",
    "body_bytes",
    type=click.IntRange(min=BODY_BYTES_MIN),
    metavar="BYTES",
    default=100,
    show_default=True,
    help="Size of each body.",
)
@click.option(
    "--subscribers", type=click.IntRange(min=1), help="topic, fan-out: how many get each message; 1 and 10 by default."
)
@click.option(
    "--outstanding",
    type=click.IntRange(min=1),
    help="topic, fan-out, queue: deliveries under way at most; by default 5000 for each subscriber.",
)
@click.option(
    "--prefetch", type=click.IntRange(min=1), default=1000, show_default=True, help="queue: credit of the consumer."
)
@click.option(
    "--window",
    type=click.IntRange(min=1, max=WINDOW_MAX),
    default=256,
    show_default=True,
    help="send: messages without a receipt at most.",
)
@click.option("--memory", is_flag=True, help="queue, send, latency: messages that need not survive the node.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=1000.0,
    show_default=True,
    help="latency: messages per second.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=0, max=CONNECTIONS_MAX),
    default=0,
    show_default=True,
    help="idle: connections to open after the node was measured alone.",
)
@click.option("--destination", help="Where to send; by default a new destination. latency takes a queue, too.")
@click.option("--pin/--no-pin", default=None, help="Give node and generator a core each; done by itself with --serve.")
@click.option("--json/--table", "as_json", default=True, show_default=True, help="One line of JSON, or a table.")
@click.pass_context
def bench(
    context: click.Context,
    workload: str,
    at: Address,
    serve: bool,
    serve_in: Path | None,
    pid: int | None,
    login: str | None,
    passcode: str | None,
    destination: str | None,
    seconds: float,
    warmup_seconds: float,
    body_bytes: int,
    subscribers: int | None,
    outstanding: int | None,
    prefetch: int,
    window: int,
    memory: bool,
    rate: float,
    connections: int,
    pin: bool | None,
    as_json: bool,
) -> None:
    """Measure a node on this machine.

    \b
    topic     one sender, one subscriber (or more)
    fan-out   one sender, ten subscribers
    queue     one sender, one consumer that acknowledges each message
    send      messages with a receipt each; they stay in the node, so prefer --serve
    latency   messages at a fixed rate: how long each takes, from when it was due
    idle      memory and wake-ups of a node that has nothing to do

    Frames are made beforehand and answers counted, not parsed, so that the node is what is measured; when
    generator_cpu_share comes near 1, the generator was the limit. missing, extra and errors must be 0: then the exit
    code is 0.

    \b
      qmq bench topic --serve
      qmq bench queue --memory --serve --seconds 10
      qmq bench send --at 127.0.0.1:61614 --pid 4711
    """
    _check_options(context, workload, serve, pid)
    subscribers = subscribers or (FAN_OUT_SUBSCRIBERS if workload == "fan-out" else 1)
    pins = _cores() if (serve if pin is None else pin) else None
    _allow_files(connections)
    before = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        target = Target(at, pid)
        if serve:
            target = stack.enter_context(_throwaway(serve_in, connections, pins))
        if pins is not None:
            os.sched_setaffinity(0, {pins[1]})
            stack.callback(os.sched_setaffinity, 0, before)
        plan = Plan(
            workload=workload,
            at=target.address,
            pid=target.pid,
            login=login,
            passcode=passcode,
            destination=destination,
            seconds=seconds,
            warmup_seconds=warmup_seconds,
            body_bytes=body_bytes,
            subscribers=subscribers,
            window=window,
            outstanding=outstanding or OUTSTANDING_EACH * subscribers,
            prefetch=prefetch,
            rate=rate,
            connections=connections,
            memory=memory,
        )
        try:
            report = measure(plan)
        except OSError as error:
            raise Failed(str(error)) from error
    _print(facts(plan, report, pins is not None), as_json)
    if not report.sound:
        raise Failed(report.error or f"{report.missing} messages are missing, {report.extra} came too often")


def facts(plan: Plan, report: Report, pinned: bool) -> dict[str, Value]:
    """The line that is printed, in its order."""
    return {
        "workload": plan.workload,
        **report.parameters,
        "seconds": plan.seconds,
        **report.figures,
        "missing": report.missing,
        "extra": report.extra,
        "errors": report.errors,
        **({} if report.error is None else {"error": report.error}),
        "qmq": __version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "pinned": pinned,
    }


def _check_options(context: click.Context, workload: str, serve: bool, pid: int | None) -> None:
    """Options that would be ignored are mistakes: a figure must not look as if they had counted."""
    given = [
        parameter
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    for parameter in given:
        meant_for = MEANT_FOR.get(parameter.name or "")
        if meant_for is not None and workload not in meant_for:
            raise click.UsageError(f"{parameter.opts[0]} means nothing to {workload}; it is for {', '.join(meant_for)}")
    names = {parameter.name for parameter in given}
    if serve and names & {"at", "pid"}:
        raise click.UsageError("--serve starts a node of its own; leave out --at and --pid")
    if not serve and "serve_in" in names:
        raise click.UsageError("--serve-in goes with --serve")
    if workload == "idle" and not serve and pid is None:
        raise click.UsageError("idle looks at the node's process: give --pid or --serve")


def _cores() -> tuple[int, int]:
    """(The node's core, the generator's); the same where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def _allow_files(connections: int) -> None:
    """Raise the limit of open files, which the throwaway node inherits. Raises Failed when the system forbids it."""
    wanted = connections + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
        except (OSError, ValueError) as error:
            raise Failed(f"{connections} connections need {wanted} open files; the system allows {hard}") from error


@contextlib.contextmanager
def _throwaway(folder: Path | None, connections: int, pins: tuple[int, int] | None) -> Iterator[Target]:
    """A node on loopback with a data directory that goes with it. Raises Failed when it does not start."""
    with tempfile.TemporaryDirectory(prefix="qmq-bench-", dir=folder) as place:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = Address(*free.getsockname())
        node_file, log_file = Path(place, "node.toml"), Path(place, "node.log")
        node_file.write_text(
            NODE_FILE.format(data=Path(place, "data"), address=address, connections=connections + CONNECTIONS_BESIDES),
            "utf-8",
        )
        command = [*PROGRAM, "serve", "--config", str(node_file), "--log-level", "warning"]
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            if pins is not None:
                os.sched_setaffinity(process.pid, {pins[0]})  # before it has threads: they inherit it
            _wait_until_ready(process, address, log_file)
            yield Target(address, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], address: Address, log_file: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not answers(address):
        code = process.poll()
        if code is not None:
            raise Failed(f"the throwaway node ended with {exit_text(code)}:\n{tail(log_file)}")
        if time.monotonic() > deadline:
            raise Failed(f"the throwaway node did not answer in {READY_SECONDS:g} s:\n{tail(log_file)}")
        time.sleep(POLL_SECONDS)


def _print(found: dict[str, Value], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for line in table(("figure", "value"), list(found.items())):
        click.echo(line)
