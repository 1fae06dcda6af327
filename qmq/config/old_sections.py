"""Sections of earlier versions in a node file, read as entries of `[definitions]`. The next version refuses them.

Each entry becomes a definition with the same keys; `locked` has no meaning any more. `qmq config migrate` moves the
sections.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from qmq.access.user_limits import limit_name
from qmq.model.routing_names import argument_text, binding_name
from qmq.section import WrongValue, WrongValues

from .definition_values import permission_name, split_permission
from .destinations.policy import DestinationPolicy
from .diagnostics import describe
from .toml_lines import LineIndex
from .users import PermissionSettings, User, UserLimitSettings

Row = Mapping[str, Any]
Entries = list[tuple[str, dict[str, Any]]]
"""Name → value."""


def _named_by(key: str, check: Callable[[Row], object] = lambda row: None) -> Callable[[Row], Entries]:
    def read(row: Row) -> Entries:
        check(row)
        return [(_text(row, key), {name: value for name, value in row.items() if name != key})]

    return read


def _permissions(row: Row) -> Entries:
    """One for each destination."""
    parts = split_permission(PermissionSettings.read(row))
    return [(permission_name(one), {**row, "destinations": list(one.destinations)}) for one in parts]


def _limit(row: Row) -> Entries:
    UserLimitSettings.read(row)
    key = "group" if "group" in row else "user"
    name = _text(row, key)
    values = {other: value for other, value in row.items() if other != key}
    return [(limit_name(*((name, None) if key == "user" else (None, name))), values)]


def _binding(row: Row) -> Entries:
    values = {name: value for name, value in row.items() if value != ""}
    target = _text(values, "exchange" if "exchange" in values else "queue")
    said = values.get("arguments", {})
    if not isinstance(said, Mapping):
        raise ValueError("arguments: must be a section of names")
    arguments = {name: argument_text(said[name]) for name in sorted(said)}
    return [(binding_name(_text(values, "source"), target, _text(values, "key", ""), arguments), values)]


def _text(row: Row, key: str, default: str | None = None) -> str:
    value = row.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{key}: is required, as text")
    return value


OLD: Final[Mapping[tuple[str, ...], tuple[str, Callable[[Row], Entries]]]] = {
    ("users",): ("user", _named_by("name", User.read)),
    ("permissions",): ("permission", _permissions),
    ("user_limits",): ("limit", _limit),
    ("queues",): ("queue", _named_by("name")),
    ("exchanges",): ("exchange", _named_by("name")),
    ("bindings",): ("binding", _binding),
    ("destinations", "policies"): ("policy", _named_by("pattern", DestinationPolicy.read)),
}
"""Section → the kind of its definitions, and what one entry defines. Raises ValueError."""


def take_old_sections(
    values: dict[str, Any], source: str, lines: LineIndex | None, diagnostics: list[str]
) -> tuple[frozenset[tuple[str, str]], tuple[str, ...]]:
    """Move what old sections have to `definitions` of the same values: the kind and name of each, and notes for the
    operator. An entry that is a definition already is left out.
    """
    found: list[WrongValue] = []
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    sections, locked = [], []
    for section, rows in _taken(values):
        sections.append(f"[[{'.'.join(section)}]]")
        kind, read = OLD[section]
        for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
            place: tuple[str | int, ...] = (*section, number)
            try:
                if not isinstance(row, dict):
                    raise ValueError("must be a list of sections")
                for name, value in read({key: one for key, one in row.items() if key != "locked"}):
                    # The name of a permission says all of it, so two of them are one.
                    if (kind, name) in seen and kind != "permission":
                        raise ValueError(f"must not have two entries for {name}")
                    seen.setdefault((kind, name), value)
                    if row.get("locked"):
                        locked.append(f"{kind} {name}")
            except WrongValues as error:
                found += [WrongValue((*place, *one.place), one.value, one.why) for one in error.found]
            except ValueError as error:
                found.append(WrongValue(place, row, str(error)))
    diagnostics += describe(WrongValues(found), source, lines)
    table = values.setdefault("definitions", {}) if seen else None
    # What is no table is refused with the rest of the file.
    tables = {kind: table.setdefault(kind, {}) for kind, _ in seen} if isinstance(table, dict) else {}
    old = {key for key in seen if isinstance(of_kind := tables.get(key[0]), dict) and key[1] not in of_kind}
    for kind, name in old:
        tables[kind][name] = seen[kind, name]
    notes = []
    if sections:
        move = f"`qmq config migrate {source}` moves them to [definitions]"
        notes.append(f"{source}: the next version does not read {', '.join(sections)}: {move}")
    if locked:
        notes.append(f"{source}: locked has no meaning any more: {', '.join(locked)}")
    return frozenset(old), tuple(notes)


def _taken(values: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for section in OLD:
        *outer, last = section
        holder = values
        for name in outer:
            holder = holder.get(name, {})
        if isinstance(holder, dict) and last in holder:
            yield section, holder.pop(last)
