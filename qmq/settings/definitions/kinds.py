"""What the definitions of one kind mean to a node: which are allowed, and what follows from a change."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from qmq.errors import ConfigError, Refused

Value = Mapping[str, Any]

S = TypeVar("S")


class DefinitionKind(Protocol):
    """What the definitions of one kind mean to this node. None of these waits."""

    names_destinations: bool
    """Whether names are destinations, which begin with a slash."""

    def check(self, changes: Mapping[str, Value | None]) -> Mapping[str, Value | None]:
        """The changes of one request, by name, in canonical form. Raises Refused; then nothing changes anywhere."""

    def changed(self, names: Collection[str]) -> None:
        """These definitions have changed, here or on another node. The table has the present ones."""


class DefinitionKinds(dict[str, DefinitionKind]):
    """All of a node, by name."""

    def of(self, name: str) -> DefinitionKind:
        """The kind of this name. Raises Refused if there is none."""
        if name not in self:
            known = ", ".join(sorted(self))
            raise Refused("bad-definition", f"unknown kind of definition {name!r}: it is one of {known}")
        return self[name]


@dataclass(eq=False, repr=False)
class SimpleKind:
    """A kind whose definitions are independent. `check_one` raises Refused for a bad name or value."""

    _check_one: Callable[[str, Value], Value]
    changed: Callable[[Collection[str]], None]
    names_destinations: bool = False

    def check(self, changes: Mapping[str, Value | None]) -> Mapping[str, Value | None]:
        return {name: None if value is None else self._check_one(name, value) for name, value in changes.items()}


def checked_by(read: Callable[[str, Value], S], value_of: Callable[[S], Value]) -> Callable[[str, Value], Value]:
    """A check for a `SimpleKind`: `read` raises ConfigError; `value_of` returns the canonical form."""

    def check(name: str, value: Value) -> Value:
        try:
            return value_of(read(name, value))
        except ConfigError as error:
            raise Refused("bad-definition", "; ".join(error.diagnostics)) from error

    return check
