"""Which options of `qmq bench` apply to which workload. An option that would be ignored is an error."""

from collections.abc import Mapping, Sequence

import click
from click.core import ParameterSource

from ...bench.dialect import DIALECTS

PACED = ("topic", "fan-out", "queue", "send", "latency", "mesh")
"""Workloads that are measured for a time, after a warm-up."""

COUNTED = ("backlog", "drain", "queues", "subscriptions")
"""Workloads that are measured for a number of messages."""

# Option → the workloads to which it applies; all other options apply to all.
APPLIES_TO: Mapping[str, Sequence[str]] = {
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
"""Kinds of destinations, for workloads with a choice."""

OF_LOGIN = ("login", "passcode", "token_file", "wants_tls", "cafile", "cert", "private_key")
OF_THE_TARGET = ("at", "pids", "others", *OF_LOGIN, "dialect", "host")
"""Options that say where a broker is and how to speak to it. With --serve, the command knows this itself."""


def check_options(context: click.Context, workload: str) -> None:
    """Raise UsageError for an option that would be ignored, so that no figure looks as if the option had counted."""
    given = {
        parameter.name or "": parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }
    for name, option in given.items():
        applies_to = APPLIES_TO.get(name)
        if applies_to is not None and workload not in applies_to:
            raise click.UsageError(f"{option} does not apply to {workload}; it is for {', '.join(applies_to)}")
    params = context.params
    if params["serve"]:
        for name in OF_THE_TARGET:
            if name in given:
                raise click.UsageError(f"--serve starts a node of its own; leave out {given[name]}")
    else:
        for name in ("serve_in", "nodes"):
            if name in given:
                raise click.UsageError(f"{given[name]} needs --serve")
    if workload == "idle" and not params["serve"] and not params["pids"]:
        raise click.UsageError("idle measures the process of the node: give --pid or --serve")
    if workload == "subscriptions" and params["connections"] == 0:
        raise click.UsageError("subscriptions need --connections of at least 1")
    if workload in KINDS and params["kind"] not in KINDS[workload]:
        raise click.UsageError(f"--kind of {workload} is one of {', '.join(KINDS[workload])}")
    if workload == "mesh" and not params["serve"] and not params["others"]:
        raise click.UsageError("mesh needs another node to read from: give --to, or --serve")
    for name in ("memory", "prefetch"):
        if name in given and workload in KINDS and params["kind"] != "queue":
            raise click.UsageError(f"{given[name]} applies to {workload} only with --kind queue")
    if workload == "latency" and "memory" in given:
        queues = params["queue_prefix"] or DIALECTS[params["dialect"]].queues
        if not (params["destination"] or "").startswith(queues):
            raise click.UsageError("--memory applies to queues only; give a queue as --destination")
    if params["pin"] is False and "chosen_cores" in given:
        raise click.UsageError("--cores says where to pin; leave out --no-pin")
    if workload == "mesh" and params["kind"] == "fanout" and "outstanding" in given:
        raise click.UsageError("--outstanding does not apply to a fanout; use --window")
    if workload == "mesh" and params["kind"] != "fanout" and "window" in given:
        raise click.UsageError("--window is for --kind fanout, where every message has a receipt")
