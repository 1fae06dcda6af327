"""How parts are joined: each gets the few parts that it uses, by constructor (`docs/architecture.md`).

The source is read as syntax trees, and no module is imported.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "qmq"

ATTRIBUTES_MAX = 30
PARTS_MAX = 8
MEMBERS_MAX = 12

VALUES = {"BaseModel", "Enum", "IntEnum", "IntFlag", "NamedTuple", "StrEnum", "Struct", "TypedDict"}
"""What inherits from these is a value, as is a dataclass that compares by what it has."""

PART = "@dataclass(eq=False, repr=False)"
"""Of a part whose fields are the parameters of its constructor."""

SEVERAL_IMPLEMENTATIONS = {"Disk", "Catalog", "QueueStore", "Environment", "Encoder", "Dialogue"}


@dataclass(frozen=True)
class Class:
    """What the syntax says of one class."""

    module: str
    node: ast.ClassDef
    bases: tuple[str, ...]
    attributes: frozenset[str]
    members: frozenset[str]
    methods: frozenset[str]

    @property
    def is_value(self) -> bool:
        return any("dataclass" in ast.unparse(one) for one in self.node.decorator_list) and not self.is_part

    @property
    def is_part(self) -> bool:
        return any(f"@{ast.unparse(one)}" == PART for one in self.node.decorator_list)

    @property
    def parameters(self) -> list[ast.expr]:
        """The types of those of its constructor."""
        if self.is_part:
            return [one.annotation for one in self.node.body if isinstance(one, ast.AnnAssign)]
        return [
            one.annotation
            for function in self.node.body
            if isinstance(function, ast.FunctionDef) and function.name == "__init__"
            for one in (*function.args.args, *function.args.kwonlyargs)
            if one.annotation is not None
        ]


@dataclass
class Source:
    """All classes of the package by name; two of one name count together."""

    classes: dict[str, list[Class]] = field(default_factory=dict)

    def line(self, name: str, seen: frozenset[str] = frozenset()) -> Iterator[Class]:
        """The classes of this name, and those that they inherit from."""
        if name in seen:
            return
        for one in self.classes.get(name, ()):
            yield one
            for base in one.bases:
                yield from self.line(base, seen | {name})

    def line_of(self, one: Class) -> list[Class]:
        return [one, *(above for base in one.bases for above in self.line(base, frozenset({one.node.name})))]

    def names_above(self, one: Class) -> set[str]:
        return {base for above in self.line_of(one) for base in above.bases}

    def is_value(self, one: Class) -> bool:
        return any(above.is_value for above in self.line_of(one)) or bool(self.names_above(one) & VALUES)

    def all(self) -> Iterator[Class]:
        for group in self.classes.values():
            yield from group


def _name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        found = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        found = [node.target]
    else:
        return []
    return [one for target in found for one in (target.elts if isinstance(target, ast.Tuple) else [target])]


def _class(module: str, node: ast.ClassDef) -> Class:
    attributes = {
        target.attr
        for inner in ast.walk(node)
        for target in _targets(inner)
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    functions = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    declared = {
        one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    is_part = any(f"@{ast.unparse(one)}" == PART for one in node.decorator_list)
    return Class(
        module,
        node,
        tuple(_name(base) for base in node.bases),
        frozenset(attributes | declared if is_part else attributes),
        frozenset(declared | {one.name for one in functions}),
        frozenset(one.name for one in functions if not one.decorator_list),
    )


@cache
def trees() -> list[tuple[str, ast.Module]]:
    return [(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")]


@cache
def source() -> Source:
    found = Source()
    for module, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.classes.setdefault(node.name, []).append(_class(module, node))
    return found


def attributes_of_classes() -> dict[str, int]:
    known = source()
    counted = {
        one.node.name: len({name for above in known.line_of(one) for name in above.attributes})
        for one in known.all()
        if one.node.name != "Outcome" and not known.is_value(one)
    }
    return {name: count for name, count in counted.items() if count > ATTRIBUTES_MAX}


def parts_of_constructors() -> dict[str, int]:
    """Parameters whose type is a class of the package that is no value, or a callback."""
    known = source()
    parts = {one.node.name for one in known.all() if not known.is_value(one)} | {"Callable"}
    counted = {
        one.node.name: sum(
            not parts.isdisjoint(_name(inner) for inner in ast.walk(kind) if isinstance(inner, ast.expr))
            for kind in one.parameters
        )
        for one in known.all()
    }
    return {name: count for name, count in counted.items() if count > PARTS_MAX}


def members_of_protocols() -> dict[str, int]:
    known = source()
    found = {
        one.node.name: len({name for above in known.line_of(one) for name in above.members})
        for one in known.all()
        if "Protocol" in one.bases and one.node.name not in SEVERAL_IMPLEMENTATIONS
    }
    return {name: count for name, count in found.items() if count > MEMBERS_MAX}


def contexts_of_rooms() -> dict[str, int]:
    """Interfaces to the node as a whole."""
    found: dict[str, int] = {}
    for one in source().all():
        if one.node.name.endswith("Context") and "Protocol" in one.bases:
            room = one.module.split("/")[0]
            found[room] = found.get(room, 0) + 1
    return found


def assigned_from_outside() -> dict[str, int]:
    """Assignments to an attribute of a part: of a context anywhere; of anything but `self` where parts are built."""
    found: dict[str, int] = {}
    for module, tree in trees():
        for node in ast.walk(tree):
            for target in _targets(node):
                if not isinstance(target, ast.Attribute) or ast.unparse(target.value) == "self":
                    continue
                is_context = _name(target.value) in {"context", "_context"}
                if is_context or module.startswith("node/"):
                    found[module] = found.get(module, 0) + 1
    return found


def copied_methods() -> dict[str, int]:
    """`self.x = part.method`: the attribute hides whose method it is."""
    known = source()
    methods = {name for one in known.all() for name in one.methods if not name.startswith("__")}
    methods -= {name for one in known.all() for name in one.attributes | one.members - one.methods}
    found: dict[str, int] = {}
    for one in known.all():
        for node in ast.walk(one.node):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in methods:
                on_self = [t for t in node.targets if isinstance(t, ast.Attribute) and ast.unparse(t.value) == "self"]
                if on_self and ast.unparse(node.value.value) != "self":
                    found[one.node.name] = found.get(one.node.name, 0) + 1
    return found


MEASURES: Mapping[str, Callable[[], dict[str, int]]] = {
    "attributes of classes": attributes_of_classes,
    "parts of constructors": parts_of_constructors,
    "members of protocols": members_of_protocols,
    "contexts of rooms": contexts_of_rooms,
    "assigned from outside": assigned_from_outside,
    "copied methods": copied_methods,
}


@pytest.mark.parametrize("name", MEASURES)
def test_wiring_breaks_no_rule(name: str) -> None:
    assert MEASURES[name]() == {}
