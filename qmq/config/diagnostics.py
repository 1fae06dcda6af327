"""Errors of files in words: file and line, key, value, and what is allowed. Values of secret keys are never shown."""

from collections.abc import Sequence

from qmq.section import SECRET_KEYS, WrongValues

from .toml_lines import LineIndex

Location = Sequence[str | int]

VALUE_CHARACTERS_MAX = 60


def describe(error: WrongValues, source: str, lines: LineIndex | None) -> list[str]:
    """One line of text per error, in the order of the file."""
    found: list[tuple[int, str]] = []
    for place, value, why in error.found:
        line = lines.find(place) if lines is not None else None
        where = f"{source}:{line}" if line is not None else source
        key = f"{where}: {key_of(place)}" if place else where
        found.append((line or 0, f"{key}{_value(place, value)}: {why}"))
    found.sort(key=lambda one: one[0])
    return [text for _, text in found]


def key_of(location: Location) -> str:
    """`users[0].name`, as an operator would write it."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _value(location: Location, value: object) -> str:
    """` = VALUE`, cut to a readable length; nothing for sections, secrets and URLs, which may contain a password."""
    if isinstance(value, dict | list | tuple) or value is None or any(part in SECRET_KEYS for part in location):
        return ""
    if isinstance(value, str) and "://" in value:
        return ""
    shown = str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    return f" = {shown if len(shown) <= VALUE_CHARACTERS_MAX else shown[:VALUE_CHARACTERS_MAX] + '…'}"
