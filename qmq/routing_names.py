"""Names of exchanges and bindings, for all that reads or writes their definitions."""

import json
import re
from collections.abc import Mapping
from typing import Final

TYPES: Final = ("direct", "topic", "fanout", "headers")
"""Types of exchanges."""

RESERVED: Final = "amq."
"""Names that begin so are those of predefined exchanges."""

PREFIX: Final = "/exchange/"

MATCH: Final = "x-match"
"""The argument that says whether a headers exchange compares all arguments or any."""
MATCHES: Final = ("all", "any")

_NAME: Final = re.compile(r"[^/*#\s\x00-\x1f\x7f]{1,127}")


def is_exchange_name(name: str) -> bool:
    """Whether an exchange can have this name."""
    return _NAME.fullmatch(name) is not None


def misplaces_wildcard(topic: str) -> bool:
    """Whether a pattern of topics, without its `/topic/`, has a wildcard that means nothing: anything but a whole word,
    or one `*` at the very end."""
    *_, last = words = topic.split(".")
    wild = [word for word in words if word not in ("*", "#") and ("*" in word or "#" in word)]
    return bool(wild) and (wild != [last] or topic.find("*") != len(topic) - 1 or "#" in topic)


def binding_name(source: str, target: str, key: str, arguments: Mapping[str, str | None]) -> str:
    """`/topic/a.* /queue/q`, `/exchange/e /queue/q KEY {"x-match":"any"}`: what it says, with single spaces between."""
    said = [source, target]
    if key or arguments:
        said.append(key)
    parts = [part.replace("%", "%25").replace(" ", "%20") for part in said]
    if arguments:
        parts.append(json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
    return " ".join(parts)


def argument_text(value: object) -> str | None:
    """The value of an argument as text, as headers have it; None for any value. Raises ValueError for a list or an
    object."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        raise ValueError("must be text, a number, true, false or null")
    return json.dumps(value)
