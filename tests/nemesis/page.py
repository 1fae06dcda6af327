"""The report of a run: one HTML page without anything from elsewhere, to be opened, mailed or kept."""

from collections.abc import Sequence
from html import escape

from tests.nemesis.checker import Row, wrongs
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


def page(history: History, rows: Sequence[Row], nodes: Sequence[str], seconds: float, command: str) -> str:
    """The whole page. `command` runs the same again."""
    wrong = wrongs(rows)
    verdict = "nothing lost, doubled or unexpected" if not wrong else f"{len(wrong)} promises broken"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>QMQ under fire</title>',
        f"<style>{STYLE}</style></head><body><h1>QMQ under fire</h1>",
        f'<p class="{"bad" if wrong else "good"}"><strong>{verdict}</strong> in {seconds:.0f} s with '
        f"{len(history.harms)} faults on {len(nodes)} nodes. Again: <code>{escape(command)}</code></p>",
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
                "given again",
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
                    row.given_again,
                )
                for row in rows
            ],
        ),
        "<h2>Nodes</h2>",
        _table(("", "receipted", "told"), _by_node(history)),
        "<h2>Faults</h2>",
        _table(
            ("fault", "of", "from", "to"),
            [(harm.what, ", ".join(harm.nodes), f"{harm.begin:.1f} s", f"{harm.end:.1f} s") for harm in history.harms],
        ),
        "</body></html>",
    ]
    return "\n".join(parts)


def _by_node(history: History) -> list[tuple[object, ...]]:
    told = {name: 0 for name in history.receipted_by}
    for stream in history.streams.values():
        for node, count in stream.by_node.items():
            told[node] = told.get(node, 0) + count
    return [(node, history.receipted_by[node], count) for node, count in sorted(told.items())]


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
