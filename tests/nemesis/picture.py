"""The chart of a run as SVG: messages sent, confirmed and received over time, and below it the faults of each node."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from tests.nemesis.history import BUCKET_SECONDS, Harm

WIDTH = 1000
LEFT = 90
PLOT_HEIGHT = 220
LANE_HEIGHT = 22
GAP = 30
TICKS = 10

COLOURS = {"sent": "#4477aa", "receipted": "#228833", "received": "#cc6677"}
HARM_COLOURS = {
    "kill -9": "#332288",
    "kill -9 of all": "#000000",
    "stopped": "#6666bb",
    "SIGSTOP": "#ddaa33",
    "stutter": "#eecc88",
    "cut": "#88ccee",
    "cut off": "#44aa99",
    "cut one way": "#4499cc",
    "held up": "#117733",
    "slow lines": "#aaccaa",
    "flapping": "#66ccbb",
    "full disk": "#999933",
    "no longer files": "#bbbb55",
    "disk lost": "#882255",
    "old disk": "#cc3311",
    "rotten bits": "#cc6677",
    "no descriptors": "#ee7733",
    "no memory": "#aa4499",
    "joins": "#228833",
    "retires": "#aaaaaa",
}
OTHER_COLOUR = "#777777"


def draw(rates: Mapping[str, Counter[int]], harms: Sequence[Harm], nodes: Sequence[str], seconds: float) -> str:
    """A whole `<svg>` element."""
    seconds = max(seconds, BUCKET_SECONDS)
    highest = max((max(buckets.values(), default=0) for buckets in rates.values()), default=0) / BUCKET_SECONDS
    height = PLOT_HEIGHT + GAP + len(nodes) * LANE_HEIGHT + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="messages per second and faults over time">'
    ]
    parts += _axes(seconds, highest, nodes)
    for what, buckets in rates.items():
        points = " ".join(
            f"{_x((bucket + 0.5) * BUCKET_SECONDS, seconds):.1f},{_y(buckets[bucket] / BUCKET_SECONDS, highest):.1f}"
            for bucket in range(int(seconds / BUCKET_SECONDS) + 1)
        )
        parts.append(f'<polyline fill="none" stroke="{COLOURS[what]}" stroke-width="1.5" points="{points}"/>')
    for number, what in enumerate(rates):
        parts.append(_text(LEFT + 10 + number * 90, 14, what, COLOURS[what]))
    for harm in harms:
        parts += _bars(harm, nodes, seconds)
    return "\n".join([*parts, "</svg>"])


def _axes(seconds: float, highest: float, nodes: Sequence[str]) -> list[str]:
    parts = [f'<rect x="{LEFT}" y="0" width="{WIDTH - LEFT}" height="{PLOT_HEIGHT}" fill="#f7f7f7"/>']
    for part in range(5):
        rate = highest * part / 4
        parts.append(_text(LEFT - 8, _y(rate, highest) + 4, f"{rate:.0f}/s", "#333333", anchor="end"))
    for tick in range(TICKS + 1):
        at = seconds * tick / TICKS
        x = _x(at, seconds)
        bottom = PLOT_HEIGHT + GAP + len(nodes) * LANE_HEIGHT
        parts.append(f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>')
        parts.append(_text(x, bottom + 16, f"{at:.0f} s", "#333333", anchor="middle"))
    for lane, node in enumerate(nodes):
        y = PLOT_HEIGHT + GAP + lane * LANE_HEIGHT
        parts.append(_text(LEFT - 8, y + 15, f"node {node}", "#333333", anchor="end"))
    return parts


def _bars(harm: Harm, nodes: Sequence[str], seconds: float) -> list[str]:
    """The harm as a bar in the lane of each node that it met; hovering tells what it is."""
    x = _x(harm.begin, seconds)
    width = max(_x(harm.end, seconds) - x, 2)
    title = escape(f"{harm.what} of {', '.join(harm.nodes)}, {harm.begin:.1f}–{harm.end:.1f} s")
    colour = HARM_COLOURS.get(harm.what, OTHER_COLOUR)
    tops = [PLOT_HEIGHT + GAP + nodes.index(node) * LANE_HEIGHT + 3 for node in harm.nodes]
    return [
        f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{LANE_HEIGHT - 6}" fill="{colour}">'
        f"<title>{title}</title></rect>"
        for top in tops
    ]


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(seconds: float, whole: float) -> float:
    return LEFT + (WIDTH - LEFT) * seconds / whole


def _y(rate: float, highest: float) -> float:
    return PLOT_HEIGHT - (PLOT_HEIGHT - 20) * (rate / highest if highest else 0)
