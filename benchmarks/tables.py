"""Tables and plots of the pages, made of what is in the store and nothing else: the same store gives the same page."""

from collections.abc import Mapping, Sequence
from functools import partial
from textwrap import wrap

from benchmarks import growth, plots
from benchmarks.figures import BUILDS, COUNTED, Store, number
from benchmarks.others import OTHERS, RABBITMQ
from benchmarks.page import DOCS, shown, table, write_section
from benchmarks.rows import COMPARED, CONSOLE, DEFINITIONS, GROWTH, SPEED, WEB, Line, Row, held

PAGE = DOCS / "benchmarks.md"
GROWTH_PAGE = DOCS / "growth.md"
PLOTS = DOCS / "benchmarks"
NOT_MEASURED = "–"
LABELS = {
    "topic": "topic 1 to 1",
    "fan-out": "topic 1 to 10",
    "queue --memory": "queue, memory",
    "queue": "queue, durable",
    "send": "SEND, durable",
}
"""What a plot calls the rows of COMPARED."""
COUNTS = "counted"
"""Of the store, beside the builds: work that was counted, the same on every machine."""


def write_pages(store: Store) -> None:
    """Every section of both pages for which there are figures, and their plots."""
    sections = (
        (PAGE, "speed", speed_section),
        (PAGE, "many", many_section),
        (PAGE, "definitions", partial(costs_section, DEFINITIONS)),
        (PAGE, "console", partial(costs_section, CONSOLE)),
        (PAGE, "others", others_section),
        (PAGE, "web", web_section),
        (GROWTH_PAGE, "counted work", counted_section),
        (GROWTH_PAGE, "measured growth", growth_section),
    )
    for path, name, section in sections:
        if lines := section(store):
            write_section(path, name, lines)


def speed_section(store: Store) -> list[str]:
    rows = measured(store, [row for part in SPEED.values() for row in part])
    if not rows:
        return []
    plot_rates("speed.svg", "Through one node, each second", store, BUILDS)
    return [*machine(store, rows), "", *rows_table(store, rows), *image("speed.svg", "rates of one node, both builds")]


def many_section(store: Store) -> list[str]:
    parts = [*held(True).values(), *held(False).values()]
    rows = measured(store, list({(row.command, row.figure): row for part in parts for row in part}.values()))
    return [*machine(store, rows), "", *rows_table(store, rows)] if rows else []


def costs_section(parts: Mapping[str, Sequence[Row]], store: Store) -> list[str]:
    rows = measured(store, [row for part in parts.values() for row in part])
    if not rows:
        return []
    cells = []
    for row in rows:
        runs = [store.middle(build, row.command, row.figure, row.more_is_better) for build in BUILDS]
        figures = [NOT_MEASURED if facts is None else shown(number(facts, row.figure)) for facts in runs]
        cells.append([row.name, f"`{row.command}`", *figures, row.unit, row.aims[0]])
    head = ["what", "command", "pure", "compiled", "unit", "aim"]
    return [*machine(store, rows), "", *table(head, cells, (2, 3))]


def others_section(store: Store) -> list[str]:
    """The same load at every broker, by column; brokers and builds that were not measured have none."""
    columns = [*BUILDS, *(other.name for other in OTHERS)]
    columns = [name for name in columns if any(store.runs(name, row.command) for row in COMPARED)]
    if not columns:
        return []
    rows = []
    for row in COMPARED:
        facts = [store.middle(name, row.command, row.figure, row.more_is_better) for name in columns]
        cells = [NOT_MEASURED if found is None else _cell(found, row) for found in facts]
        rows.append([row.name, f"`qmq bench {row.arguments} …`", *cells])
    plot_rates("others.svg", "The same load, one core each, each second", store, columns)
    notes = [
        line
        for other in OTHERS
        for line in wrap(
            f"- **{other.name}**: {_version(store, other.name)}; {other.settings}.", 118, subsequent_indent="  "
        )
    ]
    notes.insert(
        0, '- **QMQ**: `sync = "always"`, one fsync for each group of commits before their receipts; defaults.'
    )
    return [
        *table(["what", "load", *map(_title, columns)], rows, range(2, 2 + len(columns))),
        "",
        *notes,
        *image("others.svg", "the same load at each broker"),
    ]


def web_section(store: Store) -> list[str]:
    """Both builds, and RabbitMQ where it has the same."""
    rows = measured(store, WEB["web"])
    if not rows:
        return []
    columns = [*BUILDS, RABBITMQ.name]
    cells = []
    for row in rows:
        facts = [store.middle(name, row.command, row.figure, row.more_is_better) for name in columns]
        figures = [NOT_MEASURED if found is None else _web_cell(found, row) for found in facts]
        cells.append([row.name, f"`{row.command}`", *figures, row.unit, row.aims[0]])
    head = ["what", "command", *map(_title, columns), "unit", "aim"]
    return [*machine(store, rows), "", *table(head, cells, (2, 3, 4))]


def counted_section(store: Store) -> list[str]:
    """What `benchmarks.growth` counted: steps at each n, and a plot for each thing that grows."""
    lines: list[str] = []
    for axis in dict.fromkeys(case.axis for case in growth.CASES):
        cases = [case for case in growth.CASES if case.axis == axis]
        counted = {case: store.runs(COUNTS, case.action) for case in cases}
        if not all(counted.values()):
            continue
        name = f"counted-{axis.replace(' ', '-')}.svg"
        plot(
            name,
            plots.lines(
                f"Bytecodes of one action, by {axis}",
                axis,
                "bytecodes",
                {
                    case.action: [(number(run, "n"), number(run, "steps")) for run in runs]
                    for case, runs in counted.items()
                },
            ),
        )
        rows = []
        for case, runs in counted.items():
            first, last = runs[0], runs[-1]
            grew = f"{shown(number(first, 'steps'))} → {shown(number(last, 'steps'))}"
            allocated = f"{shown(number(first, 'bytes'))} → {shown(number(last, 'bytes'))}"
            rows.append([case.action, case.order.value, f"{first['n']:,} → {last['n']:,}", grew, allocated])
        lines += ["", f"### By {axis}", ""]
        lines += table(["action", "order", "n", "bytecodes", "peak bytes allocated"], rows, (2, 3, 4))
        lines += image(name, f"bytecodes by {axis}")
    return lines


def growth_section(store: Store) -> list[str]:
    lines: list[str] = []
    for part, (axis, plotted) in GROWTH.items():
        found = {
            (line, build): points for line in plotted for build in BUILDS if (points := line_points(store, build, line))
        }
        if not found:
            continue
        name = f"{part}.svg"
        plot(
            name,
            plots.lines(
                f"Node's CPU by {axis}",
                axis,
                "µs",
                {f"{line.name} ({build})": points for (line, build), points in found.items()},
            ),
        )
        rows = [
            [
                line.name,
                build,
                line.order,
                f"`qmq bench {line.arguments.format(n='N')} --serve`",
                "; ".join(f"{plots.short(n)}: {shown(value)}" for n, value in points),
            ]
            for (line, build), points in found.items()
        ]
        lines += ["", f"### By {axis}", ""]
        lines += table(["what", "build", "expected order", "command", "n: µs of the node's CPU"], rows)
        lines += image(name, f"node's CPU by {axis}")
    return lines


def line_points(store: Store, build: str, line: Line) -> list[tuple[float, float]]:
    """(n, figure) of each n that was measured."""
    found = []
    for n in line.sizes:
        row = line.row(n)
        facts = store.middle(build, row.command, row.figure, row.more_is_better)
        if facts is not None:
            found.append((float(n), number(facts, row.figure)))
    return found


def measured(store: Store, rows: Sequence[Row]) -> list[Row]:
    """Those of which there is a figure of any build."""
    return [row for row in rows if any(store.runs(build, row.command) for build in BUILDS)]


def rows_table(store: Store, rows: Sequence[Row]) -> list[str]:
    """Both builds beside each other."""
    cells = []
    for row in rows:
        runs = [store.middle(build, row.command, row.figure, row.more_is_better) for build in BUILDS]
        aims = " / ".join(aim for aim in dict.fromkeys(row.aims) if aim)
        figures = [NOT_MEASURED if facts is None else shown(number(facts, row.figure)) for facts in runs]
        busy = row.more_is_better or bool(row.phase)
        beside = [
            " / ".join(_shown_or_not(facts, row.phase + name) for facts in runs if facts is not None) if busy else ""
            for name in ("server_cpu_us_per_message", "server_cpu_share", "generator_cpu_share")
        ]
        cells.append([row.name, f"`{row.command}`", *figures, row.unit, aims, *beside])
    head = ["what", "command", "pure", "compiled", "unit", "aim: pure / compiled"]
    return table([*head, "node's CPU, µs per message", "node busy", "generator busy"], cells, (2, 3, 6, 7, 8))


def machine(store: Store, rows: Sequence[Row]) -> list[str]:
    """Where each build was measured, and how often."""
    builds = []
    for build in BUILDS:
        for row in rows:
            runs = store.runs(build, row.command)
            if runs:
                first = runs[0]
                builds.append(f"- {build}: QMQ {first['qmq']}, Python {first['python']}, {_how_often(len(runs))}")
                break
    where = next((run["machine"] for build in BUILDS for row in rows for run in store.runs(build, row.command)), "")
    return [f"Machine: {where}.", "", *builds] if builds else []


def _how_often(runs: int) -> str:
    if runs == 1:
        return "one run of each command"
    return f"the median of {runs}" if runs <= COUNTED else f"the median of the best {COUNTED} of {runs}"


def plot(name: str, text: str) -> None:
    PLOTS.mkdir(parents=True, exist_ok=True)
    (PLOTS / name).write_text(text, "utf-8")


def plot_rates(name: str, title: str, store: Store, columns: Sequence[str]) -> None:
    """Bars for the figures of COMPARED; nothing where none was measured."""
    series: dict[str, dict[str, float]] = {}
    for column in columns:
        for row in COMPARED:
            facts = store.middle(column, row.command, row.figure, row.more_is_better)
            if facts is not None:
                series.setdefault(_title(column), {})[LABELS[row.arguments]] = number(facts, row.figure)
    if series:
        plot(name, plots.bars(title, "per second", series, logarithmic=True))


def image(name: str, what: str) -> list[str]:
    """Where the plot has been made."""
    return ["", f"![{what}](benchmarks/{name})"] if (PLOTS / name).exists() else []


def _web_cell(facts: Mapping[str, object], row: Row) -> str:
    return _cell(facts, row) if row.more_is_better else shown(number(facts, row.figure))


def _cell(facts: Mapping[str, object], row: Row) -> str:
    return f"{shown(number(facts, row.figure))} ({_shown_or_not(facts, row.phase + 'server_cpu_us_per_message')} µs)"


def _shown_or_not(facts: Mapping[str, object], name: str) -> str:
    return shown(number(facts, name)) if isinstance(facts.get(name), int | float) else NOT_MEASURED


def _title(name: str) -> str:
    return f"QMQ, {name}" if name in BUILDS else name


def _version(store: Store, name: str) -> str:
    runs = [run for row in COMPARED for run in store.runs(name, row.command)]
    return str(runs[0]["broker"]) if runs else "not measured here"
