"""`qmq queues list`, `topics`, `fanouts` and `subscribers`: lists of a node, or of the whole mesh, page by page.

The commands ask the `/control/list…` destinations and get JSON over a temporary queue. The node counts and merges. This
module reads page after page until there is no next one, or `--limit` rows are shown. A list of many pages is no
snapshot: messages come and go between two pages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from qmq.verbs.lists import List, ListSubscribers

from ..client import CommandClient, Headers, ask_over, headers_of
from ..options import check_kind, together
from ..output import Failed, byte_size, duration, print_json, printable, show_table
from .verb import Asked, verb_options

PAGE_ROWS = 1000
"""The most rows that a node sends at once."""

ROWS_DEFAULT = 1000

Row = Mapping[str, Any]

limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=ROWS_DEFAULT, show_default=True, help="Most rows to show."
)

list_options: Callable[..., Any] = together(
    click.argument("prefix", default=""),
    verb_options(List, "oldest"),
    limit_option,
    click.option("--totals", "with_totals", is_flag=True, help="Show totals in place of the other columns."),
)

TOTALS = ("accepted", "delivered", "acknowledged", "redelivered", "expired", "dead_lettered", "removed", "refused")


@click.command("list")
@click.argument("prefix", default="")
@verb_options(List)
@limit_option
@click.option("--totals", "with_totals", is_flag=True, help="Show totals in place of the other columns.")
def list_queues(prefix: str, asked: Asked, **options: Any) -> None:
    """List queues with messages or consumers, and declared ones.

    Lists names that begin with PREFIX (/queue/ may be left out), in order. A node counts the messages that it owns and
    its own consumers; with --mesh, all nodes are summed. A paused queue is listed, too.
    """
    heads = ["QUEUE", "MESSAGES", "BYTES", "IN FLIGHT", "CONSUMERS", "PAUSED"]
    if asked.given["oldest"]:
        _show(asked, _list("queue", prefix), [*heads, "OLDEST"], _ages, **options)
    else:
        _show(asked, _list("queue", prefix), heads, _depths, **options)


@click.command
@list_options
def topics(prefix: str, asked: Asked, **options: Any) -> None:
    """List topics and patterns with subscribers, and topics with totals.

    Lists names that begin with PREFIX (/topic/ may be left out), in order.
    """
    _show(asked, _list("topic", prefix), ["TOPIC", "CONSUMERS"], _names, **options)


@click.command
@list_options
def fanouts(prefix: str, asked: Asked, **options: Any) -> None:
    """List fanouts with a log or subscribers.

    Lists names that begin with PREFIX (/fanout/ may be left out), in order. Every node has its own copy of the
    messages: with --mesh, the largest copy is shown, and consumers are summed.
    """
    _show(asked, _list("fanout", prefix), ["FANOUT", "MESSAGES", "BYTES", "CONSUMERS"], _copies, **options)


@click.command
@click.argument("destination", required=False)
@verb_options(ListSubscribers)
@limit_option
def subscribers(destination: str | None, asked: Asked, limit: int) -> None:
    """List the subscribers of a destination.

    DESTINATION is /queue/NAME, /topic/NAME or /fanout/NAME. For a topic, subscriptions to matching patterns are listed,
    too. Without DESTINATION, all subscriptions are listed.
    """
    heads = ["NODE", "SESSION", "ID", "USER", "ADDRESS", "CREDIT", "IN FLIGHT", "DELIVERED", "ACKNOWLEDGED"]
    heads += ["DELIVERED/S", "ACKNOWLEDGED/S"]
    if destination is None:
        _show(asked, "list-subscribers", [*heads, "DESTINATION"], _subscriptions, limit=limit)
        return
    check_kind(destination, ("queue", "topic", "fanout"))
    if destination.startswith("/fanout/"):
        heads, cells = [*heads[:5], *heads[7:], "BEHIND"], _followers
    else:
        cells = _places
    _show(asked, f"list-subscribers{destination}", heads, cells, limit=limit)


def _list(kind: str, prefix: str) -> str:
    """The destination to ask. The prefix may begin with the kind, as the list shows it."""
    return f"list/{kind}/{prefix.removeprefix(f'/{kind}/')}*"


def _show(
    asked: Asked,
    request: str,
    heads: Sequence[str],
    cells: Callable[[Row], Sequence[object]],
    *,
    limit: int,
    with_totals: bool = False,
) -> None:
    rates = asked.given["rate_seconds"]
    if cells not in (_places, _subscriptions, _followers) and (with_totals or rates):
        heads, cells = _head_and_cells(heads[0], "_per_second" if rates else "")
    rows: list[Row] = []
    missing: set[str] = set()
    is_cut = False
    with asked.node.connect() as client:
        for page in pages(client, request, asked.headers):
            rows += page["rows"]
            missing.update(page.get("nodes_missing") or ())
            if len(rows) > limit or (len(rows) == limit and "next" in page):
                is_cut = True
                break
    rows = rows[:limit]
    if asked.as_json:
        print_json({"rows": rows, "nodes_missing": sorted(missing), "cut": is_cut})
        return
    show_table(heads, [cells(row) for row in rows])
    if is_cut:
        click.echo(f"qmq: there are more than {limit}; see --limit", err=True)
    if missing:
        click.echo(f"qmq: not counted, because they did not answer: {printable(', '.join(sorted(missing)))}", err=True)


def pages(client: CommandClient, request: str, headers: Headers) -> Iterator[dict[str, Any]]:
    """The pages of a list, each with its `rows`. Raises Failed if a response is not a page."""
    after = ""
    while True:
        page = ask_over(client, request, [*headers_of(limit=PAGE_ROWS), *headers, ("after", after)])
        rows = next((page[name] for name in ("destinations", "subscribers", "conditions") if name in page), None)
        after = page.get("next", "")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not isinstance(after, str):
            raise Failed(f"{client.address}: sends no list; is it a QMQ node?")
        yield {**page, "rows": rows}
        if "next" not in page:
            return


def _head_and_cells(head: str, suffix: str) -> tuple[Sequence[str], Callable[[Row], Sequence[object]]]:
    """The columns of totals, or of rates."""
    names = [f"{name}{suffix}" for name in TOTALS]
    heads = [head, *(name.replace("_", " ").upper() + ("/S" if suffix else "") for name in TOTALS)]
    return heads, lambda row: [row.get("destination"), *(row.get(name, 0) for name in names)]


def _names(row: Row) -> Sequence[object]:
    return [row.get("destination"), row.get("consumers", 0)]


def _depths(row: Row) -> Sequence[object]:
    return [
        row.get("destination"),
        row.get("messages", 0),
        byte_size(row.get("bytes", 0)),
        row.get("in_flight", 0),
        row.get("consumers", 0),
        row.get("paused") or "-",
    ]


def _ages(row: Row) -> Sequence[object]:
    age_us = row.get("oldest_age_us")
    return [*_depths(row), duration(age_us / 1_000_000) if isinstance(age_us, int) else "-"]


def _copies(row: Row) -> Sequence[object]:
    return [row.get("destination"), row.get("messages", 0), byte_size(row.get("bytes", 0)), row.get("consumers", 0)]


def _places(row: Row) -> Sequence[object]:
    names = ("node", "session", "id", "user", "address", "credit", "in_flight", "delivered", "acknowledged")
    return [row.get(name, "") for name in (*names, "delivered_per_second", "acknowledged_per_second")]


def _followers(row: Row) -> Sequence[object]:
    cells = _places(row)
    return [*cells[:5], *cells[7:], row.get("behind", "")]


def _subscriptions(row: Row) -> Sequence[object]:
    return [*_places(row), row.get("destination", "")]
