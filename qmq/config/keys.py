"""What the keys of a definition are, for forms and helps: the type, bounds and default of each, and what it means.

All of it is what the section of the kind declares: annotations, defaults, and the text below a key in the source. So a
key that is added there is in each form.
"""

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from qmq.access.rules import ACTIONS
from qmq.section import RECEIPT_LEVELS, Section, read_receipt_level, read_size

from .archives import ArchiveSettings
from .destinations.declared import QueueLifetime
from .destinations.policy import KEYS, DestinationPolicy
from .users import PermissionSettings, User, UserLimitSettings, read_action

Facts = dict[str, Any]

TYPES: Final = {bool: "truth", int: "whole number", float: "number", str: "text"}

VALUES: Final[Mapping[object, tuple[str, ...]]] = {
    read_receipt_level: RECEIPT_LEVELS,
    read_action: tuple(action.value for action in ACTIONS),
}
"""What reads a text of which there are few → all of them."""


def keys_of(kind: str) -> list[Facts]:
    """Each key that a definition of this kind may have; empty for a kind whose value is no section.

    `name`, `type` (truth, whole number, number, size, text, list), `default`, `help`; where there are such,
    `values` (all there are), `at_least`, `more_than` and `at_most`, `required`, and of a policy `under`: the kinds of
    destinations that the key is for. A default of null: what the help says, or nothing.
    """
    if kind == "policy":
        keys = _keys(DestinationPolicy, ("pattern",))
        return [{**key, "under": [one for one, names in KEYS.items() if key["name"] in names]} for key in keys]
    if kind == "queue":
        return [*_keys(DestinationPolicy, {*DestinationPolicy.keys()} - {*KEYS["/queue/"]}), *_keys(QueueLifetime)]
    if kind == "user":
        return _keys(User, ("name",))
    if kind == "permission":
        return _keys(PermissionSettings)
    if kind == "archive":
        return _keys(ArchiveSettings, ("name",))
    return _keys(UserLimitSettings, ("user", "group")) if kind == "limit" else []


def _keys(section: type[Section], but: Collection[str] = ()) -> list[Facts]:
    hints, helps = get_type_hints(section, include_extras=True), _helps(section)
    return [
        {"name": name, **_type(hints[name]), **_default(key.default), "help": helps.get(name, "")}
        for name, key in section.keys().items()
        if name not in but
    ]


def _default(value: Any) -> Facts:
    return {"default": None, "required": True} if value is msgspec.NODEFAULT else {"default": value}


def _type(hint: Any) -> Facts:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _type(next(one for one in inner if one is not type(None)))
    if origin is tuple:
        return {**_type(inner[0]), "type": "list"}
    if origin is Literal:
        return {"type": "text", "values": list(inner)}
    if origin is not Annotated:
        return {"type": TYPES[hint]}
    found = _type(inner[0])
    for one in hint.__metadata__:
        if isinstance(one, Meta):
            bounds = {"at_least": one.ge, "more_than": one.gt, "at_most": one.le}
            found |= {name: bound for name, bound in bounds.items() if bound is not None}
        elif one is read_size:
            found["type"] = "size"
        elif one in VALUES:
            found["values"] = list(VALUES[one])
    return found


@cache
def _helps(section: type[Section]) -> Mapping[str, str]:
    """Key → the text below it."""
    texts = _texts(ast.parse(textwrap.dedent(inspect.getsource(section))).body[0])
    return {name: text.replace("; None:", "; not set:").replace("None:", "Not set:") for name, text in texts}


def _texts(body: Any) -> Iterator[tuple[str, str]]:
    name = ""
    for one in body.body:
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and name:
            yield name, " ".join(str(one.value.value).split())
        name = one.target.id if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) else ""
