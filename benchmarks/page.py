"""Marked sections of a page of docs: what a benchmark wrote stands between two marks, everything else is a person's.

    <!-- figures of NAME: written by PROGRAM -->
    <!-- end of figures of NAME -->

A program replaces its own sections only; other programs and other hands write the rest of the same page.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

MACHINE = f"{os.cpu_count()} cores, shared"

DOCS = Path(os.environ.get("QMQ_BENCH_DOCS", Path(__file__).parents[1] / "docs"))
"""Where the pages are: those of this tree, but for the compiled copy of one, whose figures belong to the original."""


def page_with(page: str, section: str, lines: Sequence[str]) -> str:
    """`page` with `lines` between the two marks of `section`. Raises ValueError when it has none."""
    name = re.escape(section)
    marks = re.compile(rf"(<!-- figures of {name}: [^\n]*-->\n)(.*?)(<!-- end of figures of {name} -->)", re.DOTALL)
    found = marks.search(page)
    if found is None:
        raise ValueError(f"the page has no section between marks for figures of {section}")
    return page[: found.end(1)] + "\n".join(["", *lines, "", ""]) + page[found.start(3) :]


def write_section(path: Path, section: str, lines: Sequence[str]) -> None:
    """Replace that section of the page at `path`, or leave the file untouched when it has none (ValueError)."""
    path.write_text(page_with(path.read_text("utf-8"), section, lines), "utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> list[str]:
    """A table of Markdown; the columns of `numbers` are to the right."""
    rule = ["---:" if at in numbers else "---" for at in range(len(head))]
    return [
        "| " + " | ".join(head) + " |",
        "|" + "|".join(rule) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def shown(value: float) -> str:
    """`1,234,567`, `0.31`, and nothing after the point of large numbers."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}".rstrip("0").rstrip(".")
