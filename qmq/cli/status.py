"""`qmq status`: the status of a node, over the same STOMP port as everything else.

The response to a SEND to /control/status is a JSON object. The node decides its content. This module shows the keys
that it knows in a readable order and leaves the rest to `--json`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from .client import CommandClient, Endpoint, ask_over, headers_of
from .options import client_options, json_option, rates_option
from .output import byte_size, duration, print_json, printable, table

QUEUES_SHOWN_MAX = 20
HELD: Final = "QUEUES HELD: delivers no queue messages until it hears a majority of the nodes and what they settled"
TOTALS_SHOWN = ("accepted", "delivered", "acknowledged")
"""Totals that are shown when they are 0, too."""
PUBLIC_KEYS = frozenset({"node", "software", "incarnation", "vector", "cut"})
"""All that a user without `observe` gets."""


@click.command
@client_options
@rates_option
@json_option
def status(node: Endpoint, rates: int | None, as_json: bool) -> None:
    """Show the status of a node.

    Shows its clients, queues, fanouts, journal, conditions, and links to every peer. Exit code 1 if the node does not
    answer.
    """
    with node.connect() as client:
        facts = ask(client, rates)
    if as_json:
        print_json(facts)
    else:
        click.echo("\n".join(printable(line) for line in describe(facts)))


def ask(client: CommandClient, rates: int | None = None) -> dict[str, Any]:
    """The status of the node, with `rates` over so many seconds. Raises Failed or ServerError."""
    return ask_over(client, "status", headers_of(rate_seconds=rates))


def links_of(facts: Mapping[str, Any]) -> tuple[int, int]:
    """How many links to and from peers are up, and how many there should be."""
    states = [peer.get(way) for peer in _rows(facts, "peers") for way in ("out", "in")]
    return states.count("up"), len(states)


def describe(facts: Mapping[str, Any]) -> list[str]:
    """The status for people: lines about the node, then a table for each list."""
    named = f"node {facts.get('node', '?')}"
    named += f"  incarnation {facts['incarnation']}" if "incarnation" in facts else ""
    if facts.keys() <= PUBLIC_KEYS:
        return [named, "the other parts of the status need the right to observe /control/status"]
    lines = [
        f"{named}  up {duration(float(facts.get('uptime_seconds', 0)))}",
        f"connections {facts.get('connections', 0)}  subscriptions {facts.get('subscriptions', 0)}",
    ]
    memory = facts.get("memory")
    if isinstance(memory, dict):
        lines[-1] += f"  hold {byte_size(memory.get('bytes', 0))} of {byte_size(memory.get('max', 0))}"
    journal = facts.get("journal")
    if isinstance(journal, dict):
        end = journal.get("end", 0)
        kept, waiting = end - journal.get("start", 0), end - journal.get("synced_end", end)
        lines.append(f"journal at {end}  kept {byte_size(kept)}  not yet on disk {byte_size(waiting)}")
    if isinstance(facts.get("waiting"), int):
        lines.append(f"messages: {facts['waiting']} waiting  {facts.get('in_flight', 0)} in flight")
    lines += _totals(facts)
    membership = facts.get("membership")
    if isinstance(membership, dict):
        lines += _membership(membership)
    if facts.get("held") is True:
        lines.append(HELD)
    for condition in facts.get("conditions") or ():
        lines.append(f"CONDITION {_condition(condition)}")
    lines += [f"EVENT {_condition(row)}" for row in _rows(facts, "past") if row.get("severity") == "critical"]
    for key, heads, cells in TABLES:
        rows = _rows(facts, key)
        most = QUEUES_SHOWN_MAX if key == "queues" else len(rows)
        if rows:
            lines += ["", *table(heads, [cells(row) for row in rows[:most]])]
        if len(rows) > most:
            lines.append(f"and {len(rows) - most} more")
    return lines


def _totals(facts: Mapping[str, Any]) -> list[str]:
    """What the node has done since its start, with rates where they were measured."""
    totals, rates = facts.get("totals"), facts.get("rates") or {}
    if not isinstance(totals, dict):
        return []
    rated = {name: f" ({rates[f'{name}_per_second']:g}/s)" for name in totals if f"{name}_per_second" in rates}
    said = [
        f"{name.replace('_', ' ')} {total}{rated.get(name, '')}"
        for name, total in totals.items()
        if total or name in TOTALS_SHOWN
    ]
    lines = ["  ".join(said)]
    traffic, fsync = facts.get("traffic"), facts.get("fsync")
    if isinstance(traffic, dict) and isinstance(fsync, dict):
        times = "  ".join(f"{word} {fsync.get(f'{word}_us', 0) / 1000:g} ms" for word in ("last", "mean", "max"))
        flow = f"in {byte_size(traffic.get('bytes_in', 0))}  out {byte_size(traffic.get('bytes_out', 0))}"
        lines.append(f"{flow}  fsyncs {fsync.get('count', 0)}  {times}")
    return lines


def _membership(facts: Mapping[str, Any]) -> list[str]:
    """Lines about membership; none for a member whose mesh agrees."""
    lines = []
    if facts.get("learner"):
        lines.append("LEARNER: has no vote and does not count as a copy until it has what a majority of the others has")
    if facts.get("lists", 1) != 1:
        lines.append(f"PEERS FILES DIFFER: this node uses version {facts.get('peers_version')}, others use another")
    lines += [f"learner {peer.get('name')}" for peer in _rows(facts, "peers") if peer.get("learner")]
    lines += [f"retired {row.get('node')}, adopted by {row.get('adopter')}" for row in _rows(facts, "retired")]
    return lines


def _rows(facts: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    rows = facts.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _lag(lag: object) -> int:
    """Records that the peer has and this node does not, over all origins."""
    if isinstance(lag, dict):
        return sum(behind for behind in lag.values() if isinstance(behind, int))
    return lag if isinstance(lag, int) else 0


def _seconds(row: Mapping[str, Any]) -> str:
    seconds = row.get("seconds")
    return f"{seconds:.0f}" if isinstance(seconds, int | float) else "-"


TABLES: Final[Sequence[tuple[str, Sequence[str], Callable[[Mapping[str, Any]], Sequence[object]]]]] = (
    ("peers", ("PEER", "OUT", "IN", "LAG"), lambda row: [*map(row.get, ("name", "out", "in")), _lag(row.get("lag"))]),
    ("queues", ("QUEUE", "MESSAGES"), lambda row: [row.get("destination"), row.get("messages", 0)]),
    (
        "fanouts",
        ("FANOUT", "MESSAGES", "BYTES"),
        lambda row: [row.get("destination"), row.get("messages", 0), row.get("bytes", 0)],
    ),
    (
        "durables",
        ("FANOUT", "DURABLE SUBSCRIPTION", "IN USE HERE"),
        lambda row: [row.get("destination"), row.get("name"), "yes" if row.get("in_use") else "no"],
    ),
    (
        "readers",
        ("READER OF THE JOURNAL", "BEHIND", "SECONDS", "CONNECTED"),
        lambda row: [
            row.get("name"),
            row.get("behind", 0),
            _seconds(row),
            "no" if row.get("connected") is False else "yes",
        ],
    ),
    (
        "slow",
        ("SLOW SUBSCRIPTION", "SESSION", "WAITING", "DROPPED"),
        lambda row: [*map(row.get, ("destination", "session", "messages", "dropped"))],
    ),
)
"""Key of a list in the status, the heads of its table, and the cells of a row."""


def _condition(condition: object) -> str:
    if not isinstance(condition, dict):
        return str(condition)
    times = f" ({condition['count']} times)" if condition.get("count", 1) != 1 else ""
    return f"{condition.get('code', '?')}: {condition.get('message', '')}{times}"
