"""Names of exchanges, bindings and virtual hosts, for all that reads or writes their definitions.

A name in a virtual host of AMQP is a plain name of the mesh that begins with the virtual host: `shop~orders` is
`orders` in `shop`. So every other protocol sees it.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

TYPES: Final = ("direct", "topic", "fanout", "headers")
"""Types of exchanges."""

RESERVED: Final = "amq."
"""Names that begin so are those of predefined exchanges."""

PREFIX: Final = "/exchange/"

MATCH: Final = "x-match"
"""The argument that says whether a headers exchange compares all arguments or any."""
WITH_X: Final = "-with-x"
MATCHES: Final = ("all", "any", f"all{WITH_X}", f"any{WITH_X}")
"""`-with-x`: arguments whose names begin with `x-` are compared, too."""

_NAME: Final = re.compile(r"[^/*#\s\x00-\x1f\x7f-\x9f]{1,127}")


VHOST_SEPARATOR: Final = "~"
"""Behind the name of a virtual host. It is legal in destinations and paths of URLs as it is, no header of STOMP escapes
it, and hardly any queue or exchange has it in its name."""

VHOST_DEFAULT: Final = "/"
"""The virtual host whose names are those of the mesh, without anything before them."""

_VHOST: Final = re.compile(r"[^/*#~\s\x00-\x1f\x7f]{1,64}")


DELAYED_TYPE: Final = "x-delayed-message"
"""A type of exchanges of RabbitMQ, by a plugin. Here such an exchange has one of TYPES, and `delayed`."""

ROUTES_AS: Final = "x-delayed-type"
"""The argument with that type."""


def exchange_value(type: str, alternate: str, internal: bool, delayed: bool) -> dict[str, Any]:
    """An exchange as its definition has it: without what is not set."""
    value: dict[str, Any] = {"type": type}
    if alternate:
        value["alternate"] = alternate
    if internal:
        value["internal"] = True
    if delayed:
        value["delayed"] = True
    return value


def is_exchange_name(name: str) -> bool:
    """Whether an exchange can have this name."""
    return _NAME.fullmatch(name) is not None


def is_vhost_name(name: str) -> bool:
    """Whether a virtual host can be declared with this name."""
    return _VHOST.fullmatch(name) is not None


def vhost_name(said: str) -> str:
    """The name that is declared, of one that a client says: `/shop` is `shop`, as many write it in URLs."""
    return said if said == VHOST_DEFAULT else said.removeprefix("/")


def vhost_prefix(vhost: str) -> str:
    """What the names in a virtual host begin with in the mesh."""
    return "" if vhost == VHOST_DEFAULT else f"{vhost}{VHOST_SEPARATOR}"


def prefix_of(name: str) -> str:
    """The prefix of a virtual host that a name of a queue or exchange has, declared or not; "": none."""
    vhost, separator, _ = name.partition(VHOST_SEPARATOR)
    return f"{vhost}{separator}" if separator and is_vhost_name(vhost) else ""


def vhost_of(name: str, declared: Collection[str]) -> tuple[str, str]:
    """The virtual host that a queue or exchange is in, and its name there."""
    prefix = prefix_of(name)
    if prefix and prefix[:-1] in declared:
        return prefix[:-1], name[len(prefix) :]
    return VHOST_DEFAULT, name


def is_reserved(name: str) -> bool:
    """Whether an exchange of this name is predefined, or could be: here, or in a virtual host."""
    return name.startswith(RESERVED) or name[len(prefix_of(name)) :].startswith(RESERVED)


def is_predefined(name: str, declared: Collection[str]) -> bool:
    """Whether there is a predefined exchange of this name, where these virtual hosts are declared."""
    return vhost_of(name, declared)[1] in [f"{RESERVED}{type}" for type in TYPES]


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
