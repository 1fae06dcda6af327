"""Plots as SVG text, for pages that show them as images: lines over one axis, and groups of bars.

No library, no script, no font of its own; colours that read on white and on black. What the numbers mean is the
caller's; here is only where they go. Axes are linear or logarithmic; a logarithmic one has a line at each power of ten.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 44, 52
COLOURS = ("#4269d0", "#ef8118", "#3ca951", "#e0527a", "#8a63d2", "#3a9fb5")
INK, GRID = "#76808c", "#9aa4b033"
STEPS = 5
"""Lines of a linear axis, at least."""


def lines(title: str, across: str, up: str, series: Mapping[str, Points], *, logarithmic: bool = True) -> str:
    """A line for each of `series` with a dot at each point. Logarithmic axes want numbers above nought."""
    points = [point for line in series.values() for point in line]
    horizontal = _axis([x for x, _ in points], LEFT, WIDTH - RIGHT, logarithmic)
    vertical = _axis([y for _, y in points], HEIGHT - BOTTOM, TOP, logarithmic, from_nought=not logarithmic)
    drawn = [*_frame(title, across, up), *_vertical_scale(vertical)]
    for value in horizontal.ticks:
        x = horizontal.at(value)
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="{GRID}"/>')
        drawn.append(_text(x, HEIGHT - BOTTOM + 18, short(value), "middle"))
    for (_name, line), colour in zip(series.items(), _colours(len(series)), strict=True):
        places = [(horizontal.at(x), vertical.at(y)) for x, y in sorted(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return _svg(title, [*drawn, *_key(list(series))])


def bars(title: str, up: str, series: Mapping[str, Mapping[str, float]], *, logarithmic: bool = False) -> str:
    """Groups of bars: each of `series` has a value for a group, or none."""
    groups = list(dict.fromkeys(name for values in series.values() for name in values))
    values = [value for line in series.values() for value in line.values()]
    vertical = _axis(values, HEIGHT - BOTTOM, TOP, logarithmic, from_nought=not logarithmic)
    drawn = [*_frame(title, "", up), *_vertical_scale(vertical)]
    room = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    each = room * 0.8 / max(len(series), 1)
    for place, group in enumerate(groups):
        left = LEFT + place * room + room * 0.1
        drawn.append(_text(left + room * 0.4, HEIGHT - BOTTOM + 18, group, "middle"))
        for turn, (line, colour) in enumerate(zip(series.values(), _colours(len(series)), strict=True)):
            if group not in line:
                continue
            top, x = vertical.at(line[group]), left + turn * each
            height = HEIGHT - BOTTOM - top
            drawn.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{each * 0.92:.1f}" height="{height:.1f}" fill="{colour}"/>'
            )
            drawn.append(_text(x + each * 0.46, top - 4, short(line[group]), "middle", size=10))
    return _svg(title, [*drawn, *_key(list(series))])


def short(value: float) -> str:
    """`1.5 k`, `2 M`, `0.04`: three digits at most."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


class _Scale:
    """Where a value stands on an axis, and which values have a line."""

    def __init__(self, low: float, high: float, start: float, end: float, logarithmic: bool) -> None:
        self._logarithmic = logarithmic
        self._start, self._end = start, end
        self._low, self._high = self._mapped(low), self._mapped(high)
        if logarithmic:
            self.ticks = [10.0**power for power in range(round(self._low), round(self._high) + 1)]
        else:
            step = _round_step((high - low) / STEPS)
            self.ticks = [step * turn for turn in range(math.ceil(low / step), math.floor(high / step) + 1)]

    def at(self, value: float) -> float:
        share = (self._mapped(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def _mapped(self, value: float) -> float:
        return math.log10(value) if self._logarithmic else value


def _axis(values: Sequence[float], start: float, end: float, logarithmic: bool, *, from_nought: bool = False) -> _Scale:
    """An axis that has room for all of `values`. Raises ValueError for none, or for nought on a logarithmic one."""
    if not values or (logarithmic and min(values) <= 0):
        raise ValueError("a plot needs values, and a logarithmic one values above nought")
    if logarithmic:
        low, high = 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)))
        return _Scale(low, high if high > low else low * 10, start, end, True)
    low = 0.0 if from_nought else min(values)
    high = max(values) * 1.08 if from_nought else max(values)
    return _Scale(low, high if high > low else low + 1, start, end, False)


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not above `rough` by much."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough)


def _vertical_scale(vertical: _Scale) -> list[str]:
    drawn = []
    for value in vertical.ticks:
        y = vertical.at(value)
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        drawn.append(_text(LEFT - 8, y + 4, short(value), "end"))
    return drawn


def _frame(title: str, across: str, up: str) -> list[str]:
    drawn = [_text(LEFT, 16, title, "start", size=13), _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, "middle")]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 16 {middle:.1f})"'
    drawn.append(f'<text x="16" y="{middle:.1f}" text-anchor="middle" {turned}>{escape(up)}</text>')
    return drawn


def _key(names: Sequence[str]) -> list[str]:
    drawn, x = [], float(LEFT)
    for name, colour in zip(names, _colours(len(names)), strict=True):
        drawn.append(f'<rect x="{x:.1f}" y="24" width="10" height="10" fill="{colour}"/>')
        drawn.append(_text(x + 14, 33, name, "start"))
        x += 30 + 6.2 * len(name)
    return drawn


def _colours(count: int) -> list[str]:
    return [COLOURS[turn % len(COLOURS)] for turn in range(count)]


def _text(x: float, y: float, text: str, anchor: str, size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _svg(title: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{INK}" aria-label="{escape(title)}">\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )
