"""Errors of files in words: file and line, key, value, what is allowed, and a suggestion.

Values of secret keys are never shown. An unknown key is compared with the keys that exist in its section.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .toml_lines import LineIndex

Location = Sequence[str | int]

SECRET_KEYS = ("password", "password_hash", "secret", "passcode", "options")
VALUE_CHARACTERS_MAX = 60

# Error type of pydantic → what is allowed. Filled in from the context of the error.
ALLOWED: Mapping[str, str] = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a number, not infinite",
    "string_type": "must be text in quotes",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "path_type": "must be a path, as text in quotes",
    "model_type": "must be a section of keys",
    "model_attributes_type": "must be a section of keys",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}

# Wrong keys that are no typing errors, with the right way.
INSTEAD: Mapping[str, str] = {
    "password": "no passwords in a file; set password_hash, which `qmq config hash` prints",
    "passcode": "no passwords in a file; set password_hash, which `qmq config hash` prints",
}


def describe(error: ValidationError, model: type[BaseModel], source: str, lines: LineIndex | None) -> list[str]:
    """One line of text per error, in the order of the file."""
    found: list[tuple[int, str]] = []
    for details in error.errors(include_url=False):
        location = details["loc"]
        line = lines.find(location) if lines is not None else None
        where = f"{source}:{line}" if line is not None else source
        found.append((line or 0, f"{where}: {_sentence(details, location, model)}"))
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


def suggest(word: str, known: Sequence[str]) -> str:
    """The closest known word, else all known words."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(sorted(known))}"


def _sentence(details: ErrorDetails, location: Location, model: type[BaseModel]) -> str:
    key, kind = key_of(location) or "the file", details["type"]
    if kind == "extra_forbidden":
        last = str(location[-1])
        return f"{key}: unknown key; {INSTEAD.get(last) or suggest(last, _keys_at(model, location[:-1]))}"
    if kind == "missing":
        return f"{key}: is required"
    if kind == "value_error":
        allowed = str(details["ctx"]["error"])
    elif kind in ALLOWED:
        allowed = ALLOWED[kind].format(**details.get("ctx", {}))
    else:
        allowed = details["msg"]
    return f"{key}{_value(location, details['input'])}: {allowed}"


def _value(location: Location, value: object) -> str:
    """` = VALUE`, cut to a readable length; nothing for sections, secrets and URLs, which may contain a password."""
    if isinstance(value, dict | list | tuple) or value is None or any(part in SECRET_KEYS for part in location):
        return ""
    if isinstance(value, str) and "://" in value:
        return ""
    shown = str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    return f" = {shown if len(shown) <= VALUE_CHARACTERS_MAX else shown[:VALUE_CHARACTERS_MAX] + '…'}"


def _keys_at(model: type[BaseModel], location: Location) -> list[str]:
    """The keys of the section at `location`."""
    for part in location:
        if isinstance(part, str):
            model = _section_in(model.model_fields[part].annotation)
    return [field.alias or name for name, field in model.model_fields.items()]


def _section_in(annotation: Any) -> type[BaseModel]:
    """The section inside `Section`, `Section | None` or `tuple[Section, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(
        _section_in(inner) for inner in get_args(annotation) if inner is not type(None) and inner is not Ellipsis
    )
