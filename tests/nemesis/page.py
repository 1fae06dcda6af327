"""The report of a run: one HTML page without anything from elsewhere, to be opened, mailed or kept."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from tests.nemesis.checker import Row
from tests.nemesis.history import History
from tests.nemesis.picture import HARM_COLOURS, OTHER_COLOUR, draw

STYLE = """
body { font-family: sans-serif; max-width: 70em; margin: 2em auto; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: 0.2em 0.8em; border-bottom: 1px solid #ddd; text-align: right }
th:first-child, td:first-child, td.text, th.text { text-align: left }
.good { color: #117733 } .bad { color: #aa3311 }
.key { display: inline-block; width: 1em; height: 1em; vertical-align: middle; margin: 0 0.4em 0 1em }
"""


def page(
    history: History,
    rows: Sequence[Row],
    wrong: Sequence[str],
    nodes: Sequence[str],
    seconds: float,
    command: str,
    without: str = "",
) -> str:
    """The whole page. `wrong` is the checker's verdict, `command` runs the same again, `without` says what was not
    tried."""
    verdict = "every promise was kept" if not wrong else f"{len(wrong)} promises broken"
    takeovers = sum(history.takeovers.values())
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>QMQ under fire</title>',
        f"<style>{STYLE}</style></head><body><h1>QMQ under fire</h1>",
        f'<p class="{"bad" if wrong else "good"}"><strong>{verdict}</strong> in {seconds:.0f} s with '
        f"{len(history.harms)} faults and {takeovers} takeovers on {len(nodes)} nodes. "
        f"Again: <code>{escape(command)}</code></p>",
        f"<p>{escape(without)}</p>" if without else "",
        "".join(f'<p class="bad">{escape(sentence)}</p>' for sentence in wrong),
        draw(history.rates, history.harms, nodes, seconds),
        _key({harm.what for harm in history.harms}),
        "<h2>Readers</h2>",
        _table(
            (
                "reader",
                "of",
                "sent",
                "receipted",
                "received",
                "lost",
                "doubled",
                "unexpected",
                "sent again",
                "twice around faults",
                "gone with the only disk",
            ),
            [
                (
                    row.reader,
                    row.destination,
                    row.sent,
                    row.receipted,
                    row.received,
                    len(row.lost),
                    len(row.doubled) + row.repeats,
                    len(row.unexpected),
                    row.sent_again,
                    row.around_faults,
                    row.lost_with_disk,
                )
                for row in rows
            ],
        ),
        "<h2>Queues</h2>",
        _table(
            (
                "",
                "given again",
                "ACKs at edge",
                "given after them",
                "",
                "ACKs at quorum",
                "against the promise",
                "on the way",
            ),
            [
                (
                    row.destination,
                    row.given_again,
                    row.acked_edge,
                    row.after_edge,
                    f"{row.after_edge_percent:.3f} %",
                    row.acked_for_good,
                    len(row.again),
                    row.on_the_way,
                )
                for row in rows
                if row.acked_edge or row.acked_for_good
            ],
        ),
        "<h2>Nodes</h2>",
        _table(("", "receipted", "told", "took over", "lives", "to blame for"), _by_node(history, rows)),
        "<h2>Faults</h2>",
        _table(
            ("fault", "of", "from", "to"),
            [(harm.what, ", ".join(harm.nodes), f"{harm.begin:.1f} s", f"{harm.end:.1f} s") for harm in history.harms],
        ),
        "</body></html>",
    ]
    return "\n".join(parts)


def _by_node(history: History, rows: Sequence[Row]) -> list[tuple[object, ...]]:
    told: Counter[str] = Counter()
    for stream in history.streams.values():
        told.update(stream.by_node)
    blamed: dict[str, Counter[str]] = {}
    for row in rows:
        for node, counts in row.blamed.items():
            blamed.setdefault(node, Counter()).update(counts)
    for _, node, _ in history.deaths:
        blamed.setdefault(node, Counter())["ended by itself"] += 1
    return [
        (
            node,
            history.receipted_by[node],
            told[node],
            history.takeovers[node],
            history.lives[node],
            ", ".join(f"{count} {what}" for what, count in sorted(blamed.get(node, Counter()).items())) or "nothing",
        )
        for node in sorted({*history.receipted_by, *told, *history.lives, *blamed})
    ]


def _key(names: set[str]) -> str:
    keys = (
        f'<span class="key" style="background:{HARM_COLOURS.get(name, OTHER_COLOUR)}"></span>{escape(name)}'
        for name in sorted(names)
    )
    return f"<p>{''.join(keys)}</p>"


def _table(titles: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
