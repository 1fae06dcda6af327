"""Move the sections of earlier versions in the text of a node file to `[definitions]`, where they are (`old_sections`).

Comments and the order stay. Each header is replaced, and the keys that the name of the definition says are left out. A
permission for several destinations becomes several. The result means the same; otherwise nothing is returned.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from .old_sections import OLD, take_old_sections
from .show import key_text, text_of
from .toml_lines import KeySpan, spans

HASH: Final = re.compile(r"""(password_hash\s*=\s*)["'][^"']*["']""")


class TextBlock(NamedTuple):
    """One table with its keys; the first one has no header."""

    header: KeySpan | None
    keys: list[KeySpan]
    start: int
    end: int


def migrated(text: str) -> str:
    """The text of a node file, which has no errors, without old sections. Raises ValueError if they cannot be moved."""
    text = text.replace("\r\n", "\n")
    values = tomllib.loads(text)
    for span in spans(text):
        section = tuple(part for part in span.path if isinstance(part, str))
        if section in OLD and not span.is_header:
            raise ValueError(f"{'.'.join(section)} is a list in one value: write it as [[{'.'.join(section)}]] first")
    if isinstance(values.get("definitions", {}).get("file"), str) and any(_rows(values, path) for path in OLD):
        raise ValueError("its definitions are in a file of their own: move the old sections there")
    meant = tomllib.loads(text)
    take_old_sections(meant, "old sections", None, [])
    first: dict[tuple[str, str], int] = {}
    moved = "".join(_moved(text, block, values, first) for block in _blocks(text))
    found = tomllib.loads(moved)
    for one in (meant, found):
        if not one.get("destinations", True):
            del one["destinations"]
    if meant != found:
        raise ValueError("the old sections cannot be moved: write them as [definitions]")
    return moved


def shown_difference(old: str, new: str, path: Path, beside: Path) -> list[str]:
    """The lines that differ, without hashes of passwords."""
    lines = unified_diff(old.splitlines(), new.splitlines(), str(path), str(beside), lineterm="")
    return [HASH.sub(r'\1"(hidden)"', line) for line in lines]


def write_beside(path: Path, beside: Path, text: str) -> None:
    """Write a new file that the same users may read as `path`. Raises OSError, also if it exists."""
    mode = path.stat().st_mode & 0o777
    with open(beside, "x", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
        file.write(text)


def _blocks(text: str) -> Iterator[TextBlock]:
    """All of the text. Comments directly above a header belong to it."""
    header: KeySpan | None = None
    keys: list[KeySpan] = []
    start = 0
    for span in spans(text):
        if span.is_header:
            begin = _with_comments(text, span.start)
            yield TextBlock(header, keys, start, begin)
            header, keys, start = span, [], begin
        else:
            keys.append(span)
    yield TextBlock(header, keys, start, len(text))


def _with_comments(text: str, at: int) -> int:
    while at and text[:at].rpartition("\n")[0].rpartition("\n")[2].lstrip(" \t").startswith("#"):
        at = text.rfind("\n", 0, at - 1) + 1
    return at


def _moved(text: str, block: TextBlock, values: Mapping[str, Any], first: dict[tuple[str, str], int]) -> str:
    """The block as it is in the new text. `first`: which entry defines a permission: equal ones are one."""
    whole = text[block.start : block.end]
    path: tuple[str | int, ...] = () if block.header is None else block.header.path
    section = next((one for one in OLD if path[: len(one)] == one and len(path) > len(one)), None)
    if section is None or block.header is None:
        return whole
    kind, read = OLD[section]
    number, inner = path[len(section)], path[len(section) + 1 :]
    assert isinstance(number, int), "the header is one of an array"
    row = _rows(values, section)[number]
    entries = read({key: one for key, one in row.items() if key != "locked"})
    defined = values.get("definitions", {}).get(kind, {})
    written: list[str] = []
    for name, value in entries:
        if name in defined or first.setdefault((kind, name), number) != number:
            continue
        table = ".".join(key_text(str(part)) for part in ("definitions", kind, name, *inner))
        # Comments are kept once, with the first one.
        if written:
            written.append(
                f"\n[{table}]\n" + "".join(f"{key_text(key)} = {text_of('', value[key])}\n" for key in value)
            )
            continue
        closing = text.find("]]", block.header.start) + 2 if not inner else text.find("]", block.header.start) + 1
        lines = [text[block.start : block.header.start], f"[{table}]", text[closing : block.header.end]]
        at = block.header.end
        for span in block.keys:
            key = str(span.path[len(path)])
            lines.append(text[at : span.start])
            at = span.end
            if inner or value.get(key) == row.get(key):
                lines.append(text[span.start : span.end])
            elif key in value:
                lines.append(f"{key_text(key)} = {text_of('', value[key])}\n")
        written.append("".join(lines) + text[at : block.end])
    return "".join(written)


def _rows(values: Mapping[str, Any], section: tuple[str, ...]) -> Any:
    found: Any = values
    for name in section:
        found = found.get(name, {})
    return found
