"""Output of all commands: one line per error on stderr, tables for people, JSON for programs.

Text from outside (bodies, headers, messages of a server) goes through `printable` before it reaches a terminal, because
control characters in it could control the terminal.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, Any, Self

import click

INVISIBLE = r"\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
"""Characters that show nothing, turn the direction of writing, or end a line, besides the control characters of ASCII.
The two joiners are left out: words of some languages have them.
"""
CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f{INVISIBLE}]")


class Failed(click.ClickException):
    """The command failed: one line on stderr, exit code 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"qmq: {printable(self.message)}", file=file, err=file is None)

    @classmethod
    def by(cls, error: Exception) -> Self:
        """With the file and what the system says of it, or else the text of `error`."""
        if isinstance(error, OSError) and error.filename is not None:
            return cls(f"{error.filename}: {error.strerror}")
        return cls(str(error))


class ConfigFailed(click.ClickException):
    """The configuration has errors: one line for each, exit code 2."""

    exit_code = 2

    def __init__(self, diagnostics: Sequence[str]) -> None:
        super().__init__("\n".join(diagnostics))
        self.diagnostics = list(diagnostics)

    def show(self, file: IO[Any] | None = None) -> None:
        for diagnostic in self.diagnostics:
            click.echo(printable(diagnostic), file=file, err=file is None)
        count = len(self.diagnostics)
        click.echo(f"qmq: {count} error{'s' if count > 1 else ''} in the configuration", file=file, err=file is None)


def printable(text: str) -> str:
    """`text` with characters that are no text shown as \\xNN or \\uNNNN; line ends and tabs stay."""
    return CONTROL.sub(lambda found: _escaped(ord(found[0])), text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def body_text(body: bytes) -> str:
    """A body for people: bytes that are not UTF-8 and control characters are shown as \\xNN."""
    return printable(body.decode("utf-8", "backslashreplace"))


def utc_text(at_us: int) -> str:
    """A time in microseconds since 1970 as ISO 8601, to the millisecond; the number itself if no calendar has it."""
    try:
        return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at_us)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{at_us} us"


def print_json(value: object) -> None:
    """One JSON text on one line, keys in the order given; flushed, so that a reader of a pipe gets it at once."""
    import json  # Only for output that is JSON: `qmq --help` starts without it.

    click.echo(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with columns of equal width; numbers are aligned right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    numbers = [all(isinstance(row[at], int | float) for row in rows) and bool(rows) for at in range(len(head))]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in [list(head), *cells]
    ]


def show_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; its texts may come from outside."""
    shown = [[printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    click.echo("\n".join(table(head, shown)))


def counted(count: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def byte_size(count: int) -> str:
    """`1.5 MiB`; exact below 1 KiB."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def duration(seconds: float) -> str:
    """`3 d 04:05:06`, `04:05:06` below a day."""
    days, seconds_left = divmod(int(seconds), 86400)
    clock = f"{seconds_left // 3600:02}:{seconds_left // 60 % 60:02}:{seconds_left % 60:02}"
    return f"{days} d {clock}" if days else clock
