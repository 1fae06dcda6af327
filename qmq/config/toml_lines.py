"""The line of a key in a TOML text, which tomllib does not report.

A small scanner for text that tomllib has already accepted, so it has no errors of its own. It knows table headers,
arrays of tables, dotted and quoted keys, and skips strings, comments and values that span lines. For a key inside an
inline table, it returns the line of the key that holds the table.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Path = tuple[str | int, ...]

KEY_PART = re.compile(r"""[ \t]*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))[ \t]*(\.|\]|=)""")
# Tokens that begin or end something inside a value; long quotes first.
TOKEN = re.compile(r'"""|\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]')


class KeySpan(NamedTuple):
    """A header of a table, or a key with its value: whole lines of a text."""

    path: Path
    is_header: bool
    start: int
    end: int


class LineIndex:
    """Line numbers of one text, counted from 1."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        text = text.replace("\r\n", "\n")
        line, counted = 1, 0
        for path, _, start, _ in spans(text):
            line += text.count("\n", counted, start)
            counted = start
            for depth in range(1, len(path) + 1):
                self._lines.setdefault(path[:depth], line)

    def find(self, path: Sequence[str | int]) -> int | None:
        """The line of the key at `path`, or of the nearest section that holds it; None if that is the file itself."""
        for depth in range(len(path), 0, -1):
            line = self._lines.get(tuple(path[:depth]))
            if line is not None:
                return line
        return None


def spans(text: str) -> Iterator[KeySpan]:
    """All headers and keys, in their order."""
    table: Path = ()
    counts: dict[Path, int] = {}  # arrays of tables so far
    at = 0
    while at < len(text):
        line_end = text.find("\n", at)
        line_end = len(text) if line_end < 0 else line_end
        stripped = text[at:line_end].lstrip(" \t")
        start = line_end - len(stripped)
        if not stripped or stripped.startswith("#"):
            at = line_end + 1
        elif stripped.startswith("["):
            is_array = stripped.startswith("[[")
            names, _ = _key_parts(text, start + (2 if is_array else 1))
            table = _resolve(names, counts, is_array)
            yield KeySpan(table, True, at, min(line_end + 1, len(text)))
            at = line_end + 1
        else:
            names, value_at = _key_parts(text, start)
            end = _after_value(text, value_at)
            yield KeySpan(table + tuple(names), False, at, end)
            at = end


def _key_parts(text: str, at: int) -> tuple[list[str], int]:
    """The parts of a dotted key, and the offset after the `=` or `]` that ends it."""
    parts: list[str] = []
    while found := KEY_PART.match(text, at):
        parts.append(next(group for group in found.groups()[:3] if group is not None))
        at = found.end()
        if found[4] != ".":
            break
    return parts, at


def _resolve(names: list[str], counts: dict[Path, int], is_array: bool) -> Path:
    """The path of a table header, with the number of the element for each array of tables in it."""
    path: Path = ()
    for depth, name in enumerate(names):
        path += (name,)
        if is_array and depth == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path += (counts[path],)
    return path


def _after_value(text: str, at: int) -> int:
    """The start of the line after the value that begins at `at`."""
    depth = 0
    while found := TOKEN.search(text, at):
        token, at = found[0], found.end()
        if token in ('"""', "'''"):
            closing = text.find(token, at)
            while token == '"""' and closing > 0 and _is_escaped(text, closing):
                closing = text.find(token, closing + 1)
            at = len(text) if closing < 0 else closing + 3
            while at < len(text) and text[at] == token[0]:
                at += 1  # up to two quotes may be directly before the closing ones
        elif token in "[{":
            depth += 1
        elif token in "]}":
            depth -= 1
        elif token == "\n" and depth <= 0:
            return at
    return len(text)


def _is_escaped(text: str, at: int) -> bool:
    backslashes = 0
    while text[at - 1 - backslashes] == "\\":
        backslashes += 1
    return backslashes % 2 == 1
