"""Statistics as one HTML page without scripts: plots drawn as SVG, for people and for mail attachments."""

import html
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import Final

from qmq.spark.jobs.stats import DestinationStatistics, Total
from qmq.spark.jobs.windows import Window

Value = Callable[[Window], float | None]

SHOWN_MAX: Final = 6
"""Lines in one plot; the busiest destinations."""
COLOURS: Final = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2")
WIDTH, HEIGHT = 900, 240
LEFT, BOTTOM, TOP = 70, 30, 14


class Idle(Enum):
    """What a line does in windows without a row, for nothing happened in them."""

    NONE = "zero"
    UNKNOWN = "breaks off"
    AS_BEFORE = "stays"


STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2rem auto; padding: 0 1rem; color: #1c2733; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #dde3ea; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.bad { color: #b3261e; font-weight: 600; }
svg text { font: 11px system-ui, sans-serif; fill: #56657a; }
.key { display: inline-block; margin-right: 1.2rem; } .key i { display: inline-block; width: .8rem; height: .8rem;
border-radius: 2px; margin-right: .35rem; vertical-align: -1px; }
"""


def report(found: DestinationStatistics, *, title: str = "QMQ statistics") -> str:
    """The page, complete."""
    shown = [total.destination for total in found.totals[:SHOWN_MAX]]
    windows = [window for window in found.windows if window.destination in shown]
    parts = [f"<h1>{html.escape(title)}</h1>", _opening(found)]
    if windows:
        plots: list[tuple[str, Value, Idle]] = [
            ("Messages per second", lambda w: w.messages / found.seconds, Idle.NONE),
            ("Bytes per second", lambda w: w.bytes / found.seconds, Idle.NONE),
            ("Size, 99th percentile, bytes", lambda w: w.size_p99, Idle.UNKNOWN),
            ("Time to settle, 99th percentile, seconds", lambda w: w.settle_p99, Idle.UNKNOWN),
            ("Waiting in queues", lambda w: float(w.waiting), Idle.AS_BEFORE),
            ("Waiting time of the oldest, seconds", lambda w: w.oldest_seconds, Idle.UNKNOWN),
            ("Failed deliveries per second", lambda w: w.failures / found.seconds, Idle.NONE),
        ]
        parts += [_plot(title, found, windows, shown, value, idle) for title, value, idle in plots]
    parts.append(_table(found.totals))
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _opening(found: DestinationStatistics) -> str:
    if not found.totals:
        return "<p>There are no messages in what was read.</p>"
    messages = sum(total.messages for total in found.totals)
    size = sum(total.bytes for total in found.totals)
    waiting = sum(total.waiting for total in found.totals)
    letters = sum(total.dead_letters for total in found.totals)
    first, last = found.windows[0].start, found.windows[-1].start
    span = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, windows of {html.escape(found.window)}"
    bad = f'<span class="bad">{letters:,} dead letters</span>' if letters else "no dead letters"
    return (
        f"<p>{messages:,} messages ({number(size)}B) to {len(found.totals):,} destinations, {span}. "
        f"{waiting:,} wait in queues, {bad}.</p>"
    )


def _plot(
    title: str, found: DestinationStatistics, windows: Sequence[Window], shown: Sequence[str], value: Value, idle: Idle
) -> str:
    starts = sorted({window.start for window in windows})
    series: dict[str, list[tuple[float, float]]] = {name: [] for name in shown}
    most = 0.0
    begin, span = starts[0], max((starts[-1] - starts[0]).total_seconds(), 1.0)
    for window in windows:
        y = value(window)
        if y is not None:
            series[window.destination].append(((window.start - begin).total_seconds(), y))
            most = max(most, y)
    if not most:
        return ""
    top = _round_up(most)
    lines = [_axes(top, starts)]
    for index, name in enumerate(shown):
        colour = COLOURS[index % len(COLOURS)]
        for run in _runs(series[name], found.seconds, idle):
            points = [
                (LEFT + x / span * (WIDTH - LEFT - 10), HEIGHT - BOTTOM - y / top * (HEIGHT - BOTTOM - TOP))
                for x, y in run
            ]
            if len(points) == 1:
                lines.append(f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>')
            else:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    keys = "".join(
        f'<span class="key"><i style="background:{COLOURS[i % len(COLOURS)]}"></i>{html.escape(name)}</span>'
        for i, name in enumerate(shown)
        if series[name]
    )
    drawing = "".join(lines)
    return (
        f"<h2>{html.escape(title)}</h2>\n<p>{keys}</p>\n"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">{drawing}</svg>'
    )


def _runs(points: list[tuple[float, float]], seconds: float, idle: Idle) -> list[list[tuple[float, float]]]:
    """Lines through `points` (seconds, value): between windows that do not follow each other a line lies where `idle`
    says, or another one begins.
    """
    runs: list[list[tuple[float, float]]] = []
    for x, y in sorted(points):
        before, level = runs[-1][-1] if runs else (x, 0.0)
        has_pause = x - before > 1.5 * seconds
        if not runs or has_pause and idle is Idle.UNKNOWN:
            runs.append([])
        elif has_pause:
            level = level if idle is Idle.AS_BEFORE else 0.0
            runs[-1] += [(before + seconds, level), (x - seconds, level)]
        runs[-1].append((x, y))
    return runs


def _axes(top: float, starts: Sequence[datetime]) -> str:
    lines = []
    for step in range(5):
        y = HEIGHT - BOTTOM - step / 4 * (HEIGHT - BOTTOM - TOP)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dde3ea"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(top * step / 4)}</text>')
    for x, time, anchor in ((LEFT, starts[0], "start"), (WIDTH - 10, starts[-1], "end")):
        lines.append(f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="{anchor}">{time:%Y-%m-%d %H:%M}</text>')
    return "".join(lines)


def _table(totals: Sequence[Total]) -> str:
    head = ["Destination", "Messages", "Bytes", "Size p50", "Size p99", "Settled", "Settle p50", "Settle p99"]
    head += ["Waiting", "Oldest", "Dead letters", "Failures", "Nodes"]
    rows = []
    for total in totals[:500]:
        cells = [
            html.escape(total.destination),
            f"{total.messages:,}",
            number(total.bytes),
            number(total.size_p50),
            number(total.size_p99),
            f"{total.settled:,}",
            seconds(total.settle_p50),
            seconds(total.settle_p99),
            f"{total.waiting:,}",
            seconds(total.oldest_seconds),
            f'<span class="bad">{total.dead_letters:,}</span>' if total.dead_letters else "0",
            f"{total.failures:,}",
            f"{total.consumers:,}",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = "".join(f"<th>{cell}</th>" for cell in head)
    return f"<h2>Destinations</h2>\n<table><tr>{heads}</tr>\n{chr(10).join(rows)}</table>"


def number(value: float) -> str:
    """With k, M, G, three digits."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:  # what would be rounded up to it
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A time as people say it; "–" for none."""
    if value is None:
        return "–"
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value * 0.999999)
