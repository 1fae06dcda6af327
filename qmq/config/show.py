"""The effective settings as TOML text: every key with its value, from the file, the command line or the defaults.

The text can be loaded again and gives the same settings, with one exception: password hashes are hidden, because the
text is pasted into reports.
"""

import re
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from qmq.address import Address
from qmq.section import SECRET_KEYS, Section

from .node import MEMORY

HIDDEN = "(hidden)"

ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", 0x7F: "\\u007f", **{code: f"\\u{code:04x}" for code in range(0x20)}}


def effective(settings: Section) -> str:
    """All settings of a node file or peers file as TOML. Keys without a value are comments."""
    lines: list[str] = []
    _section(settings, "", lines)
    return "\n".join(lines).strip("\n") + "\n"


def _section(section: Section, path: str, lines: list[str]) -> None:
    """Plain keys first: in TOML, keys after a table header belong to that table."""
    inner: list[tuple[str, str, Section]] = []
    tables: list[tuple[str, dict[str, object]]] = []
    for key in section.effective_keys():
        value = getattr(section, key)
        name = f"{path}.{key}" if path else key
        if key == "definitions":
            tables += [
                (f"{key}.{key_text(kind)}.{key_text(one)}", value[kind][one]) for kind in value for one in value[kind]
            ]
        elif isinstance(value, Section):
            inner.append((f"[{name}]", name, value))
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            inner += [(f"[[{name}]]", name, element) for element in value]
        elif value is None:
            lines.append(f"# {key} is not set")
        elif not section.is_explicit(key):
            lines.append(f"# {key} is {text_of(key, value)} by default")
        else:
            lines.append(f"{key} = {text_of(key, value)}")
    for name, table in tables:
        lines += ["", f"[{name}]", *(f"{key_text(key)} = {text_of(key, table[key])}" for key in table)]
    for header, name, value in inner:
        lines += ["", header]
        _section(value, name, lines)


def text_of(key: str, value: object) -> str:
    """One value as TOML; the value of a secret key is hidden."""
    if key in SECRET_KEYS:
        return _text(HIDDEN)
    if isinstance(value, tuple | list) and not isinstance(value, Address):
        return f"[{', '.join(text_of(key, element) for element in value)}]"
    if isinstance(value, dict):
        inner = [f"{key_text(name)} = {text_of(name, value[name])}" for name in value]
        return f"{{ {', '.join(inner)} }}" if inner else "{}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if value is None:
        return '""'  # In a definition from JSON; TOML has no such value.
    if value == Path(MEMORY):
        return _text(f"./{MEMORY}")  # A directory of this name.
    assert isinstance(value, str | Path | Address | IPv4Network | IPv6Network), f"no TOML for {type(value).__name__}"
    return _text(str(value))


def key_text(name: str) -> str:
    """A key as TOML."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    return f'"{text.translate(ESCAPES)}"'
