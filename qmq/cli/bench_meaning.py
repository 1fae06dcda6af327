"""Which options of `qmq bench` mean something to which workload. One that would be ignored is a mistake."""

from collections.abc import Mapping, Sequence

import click
from click.core import ParameterSource

from ..bench.dialect import DIALECTS

PACED = ("topic", "fan-out", "queue", "send", "latency", "mesh")
"""Workloads that are measured for so many seconds, after a warm-up."""

COUNTED = ("backlog", "drain", "queues", "subscriptions")
"""Workloads that are measured for so many messages."""

# Option → the workloads for which it means something; the rest are for all.
MEANT_FOR: Mapping[str, Sequence[str]] = {
    "seconds": (*PACED, "idle"),
    "body_bytes": (*PACED, *COUNTED),
    "warmup_seconds": PACED,
    "destination": (*PACED, "backlog", "drain"),
    "subscribers": ("topic", "fan-out"),
    "outstanding": ("topic", "fan-out", "queue", "subscriptions", "mesh"),
    "prefetch": ("queue", "backlog", "drain", "mesh"),
    "memory": ("queue", "send", "latency", "mesh", *COUNTED),
    "window": ("send", "mesh", *COUNTED),
    "rate": ("latency",),
    "connections": ("idle", "subscriptions", "topic", "fan-out"),
    "count": COUNTED,
    "queues": ("queues",),
    "subscriptions": ("subscriptions",),
    "kind": ("subscriptions", "mesh"),
    "others": ("mesh",),
    "nodes": ("mesh",),
}

KINDS = {"subscriptions": ("topic", "queue"), "mesh": ("topic", "queue", "fanout")}
"""Of destinations, for the workloads that let choose."""

OF_THE_TARGET = ("at", "pids", "others", "login", "passcode", "dialect", "host")
"""What says where a broker is and how to speak to it, which the command knows of a node that it starts."""


def check_options(context: click.Context, workload: str) -> None:
    """Raises UsageError for what would be ignored: a figure must not look as if it had counted."""
    given = {
        parameter.name or "": parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }
    for name, option in given.items():
        meant_for = MEANT_FOR.get(name)
        if meant_for is not None and workload not in meant_for:
            raise click.UsageError(f"{option} means nothing to {workload}; it is for {', '.join(meant_for)}")
    params = context.params
    if params["serve"]:
        for name in OF_THE_TARGET:
            if name in given:
                raise click.UsageError(f"--serve starts a node of its own; leave out {given[name]}")
    else:
        for name in ("serve_in", "nodes"):
            if name in given:
                raise click.UsageError(f"{given[name]} goes with --serve")
    if workload == "idle" and not params["serve"] and not params["pids"]:
        raise click.UsageError("idle looks at the node's process: give --pid or --serve")
    if workload == "subscriptions" and params["connections"] == 0:
        raise click.UsageError("subscriptions need --connections of at least 1")
    if workload in KINDS and params["kind"] not in KINDS[workload]:
        raise click.UsageError(f"--kind of {workload} is one of {', '.join(KINDS[workload])}")
    if workload == "mesh" and not params["serve"] and not params["others"]:
        raise click.UsageError("mesh needs another node to read on: give --to, or --serve for nodes of its own")
    for name in ("memory", "prefetch"):
        if name in given and workload in KINDS and params["kind"] != "queue":
            raise click.UsageError(f"{given[name]} means nothing to {workload} but with --kind queue")
    if workload == "latency" and "memory" in given:
        queues = params["queue_prefix"] or DIALECTS[params["dialect"]].queues
        if not (params["destination"] or "").startswith(queues):
            raise click.UsageError("--memory means something to queues only; give a queue as --destination")
    if params["pin"] is False and "chosen_cores" in given:
        raise click.UsageError("--cores says where to pin; leave out --no-pin")
    if workload == "mesh" and params["kind"] == "fanout" and "outstanding" in given:
        raise click.UsageError("--outstanding means nothing to a fanout; its --window counts")
    if workload == "mesh" and params["kind"] != "fanout" and "window" in given:
        raise click.UsageError("--window is for --kind fanout, where every message has a receipt")
