"""Fields of mesh frames: from a row of named fields follow packing, unpacking and the checks of what has arrived.

A frame is a msgpack array. A `Field` is one value in it, or `width` neighbouring ones. Functions here make fields of
fields: lists, maps, structures. Sizes are bounded where the field says so, and in all by the frame's own bound
(`frames.Bound`). Arrays may be longer than this version expects: later elements are ignored.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, call
from typing import Any, Final, NamedTuple

from qmq.errors import MeshError
from qmq.replication.protocol.values import (
    SEQUENCE_MAX,
    Sender,
    array,
    check_dots,
    mapping,
    node_name,
    number,
    octets,
    origin_of,
    pack_dot_groups,
    pack_vector,
    pairs,
    text,
    truth,
    vector_of,
)


class Field(NamedTuple):
    """One value of a frame."""

    check: Callable[..., Any]
    """The value of `width` elements, each an argument. Raises MeshError."""
    pack: Callable[..., Any] | None = None
    """The element of a value, or its `width` elements; None: the value is that already."""
    width: int = 1
    is_of_link: bool = False
    """`check` gets the Sender first, and `pack` the frame last."""
    is_omitted: bool = False
    """The last field of its frame, left out when it is empty."""


Check = Callable[[Sequence[object], Sender | None], Any]
Pack = Callable[[Any], list[Any]]


class Layout:
    """The fields of one class, in the order of their elements. A name is an attribute and an argument of the class."""

    def __init__(self, make: Callable[..., Any], fields: Mapping[str, Field], get: Callable[[Any], Any]) -> None:
        self.width = sum([field.width for field in fields.values()])
        self.elements_min = sum([field.width for field in fields.values() if not field.is_omitted])
        self._make = make
        self._names = tuple(fields)
        self._fields = tuple(fields.values())
        self._get = get
        # By position is faster, where the class allows it.
        self._is_by_name = getattr(make, "__match_args__", self._names)[: len(fields)] != self._names
        self.check: Check = self._check
        self.pack: Pack = self._pack
        if not self._is_by_name and self.width == len(fields):
            if len(fields) == 1:
                self.check, self.pack = _single(make, self._fields[0], get)
            elif not any([field.is_of_link or field.is_omitted for field in self._fields]):
                self.check, self.pack = _flat(make, self._fields, get)

    def _check(self, elements: Sequence[object], sender: Sender | None) -> Any:
        values: list[Any] = []
        at = 0
        for check, _, width, is_of_link, is_omitted in self._fields:
            if not is_omitted or at < len(elements):
                found = elements[at : at + width]
                values.append(check(sender, *found) if is_of_link else check(*found))
            at += width
        return self._make(**dict(zip(self._names, values, strict=False))) if self._is_by_name else self._make(*values)

    def _pack(self, value: Any) -> list[Any]:
        packed: list[Any] = []
        values = self._get(value) if len(self._fields) > 1 else (self._get(value),)
        for (_, pack, width, is_of_link, is_omitted), one in zip(self._fields, values, strict=True):
            if pack is not None:
                one = pack(one, value) if is_of_link else pack(one)
            if width > 1:
                packed += one
            elif one or not is_omitted:
                packed.append(one)
        return packed


def _flat(make: Callable[..., Any], fields: Sequence[Field], get: Callable[[Any], Any]) -> tuple[Check, Pack]:
    """The same for several fields of one element each, and faster."""
    checks = [field.check for field in fields]
    packs = [(at, field.pack) for at, field in enumerate(fields) if field.pack is not None]

    def pack_all(value: Any) -> list[Any]:
        packed = list(get(value))
        for at, pack in packs:
            packed[at] = pack(packed[at])
        return packed

    return lambda elements, sender: make(*map(call, checks, elements)), pack_all


def _single(make: Callable[..., Any], field: Field, get: Callable[[Any], Any]) -> tuple[Check, Pack]:
    """The same for a single field of one element, and faster."""
    check, pack = field.check, field.pack
    if pack is not None and field.is_of_link:
        return lambda elements, sender: make(check(sender, elements[0])), lambda value: [pack(get(value), value)]
    return (
        lambda elements, sender: make(check(elements[0])),
        lambda value: [get(value) if pack is None else pack(get(value))],
    )


def layout_of(make: Callable[..., Any], fields: Mapping[str, Field]) -> Layout:
    return Layout(make, fields, attrgetter(*fields))


def struct(make: Callable[..., Any], **fields: Field) -> Field:
    """An array in the frame's array."""
    layout = layout_of(make, fields)
    return Field(lambda value: layout.check(array(value, layout.elements_min), None), layout.pack)


def spread(make: Callable[..., Any], **fields: Field) -> Field:
    """An object whose elements are elements of the frame."""
    layout = layout_of(make, fields)
    return Field(lambda *elements: layout.check(elements, None), layout.pack, layout.width)


def groups(*fields: Field) -> Field:
    """An array of the fields of a tuple, and of the next tuple, and so on."""
    layout = Layout(lambda *values: values, {str(at): field for at, field in enumerate(fields)}, lambda values: values)
    return list_of(Field(lambda *elements: layout.check(elements, None), layout.pack, layout.width))


def optional(field: Field) -> Field:
    """Nil, or a value."""
    check, pack = field.check, field.pack
    return Field(
        lambda value: None if value is None else check(value),
        None if pack is None else lambda value: None if value is None else pack(value),
    )


def list_of(field: Field, make: Callable[[Iterable[Any]], Any] = list, most: int = SEQUENCE_MAX) -> Field:
    """An array of at most so many values, one after the other."""
    check, pack, width = field.check, field.pack, field.width

    def check_all(value: object) -> Any:
        elements = array(value) if width == 1 else pairs(value, width)
        _check_size(len(elements) // width, most, "elements")
        return make(map(check, *[elements[column::width] for column in range(width)]))

    def pack_all(values: Iterable[Any]) -> list[Any]:
        packed = values if pack is None else map(pack, values)
        return list(packed) if width == 1 else list(chain.from_iterable(packed))

    return Field(check_all, pack_all)


def set_of(field: Field, most: int = SEQUENCE_MAX) -> Field:
    """An array of values without an order; it travels sorted."""
    check, pack, *_ = list_of(field, frozenset, most)
    assert pack is not None
    return Field(check, lambda values: pack(sorted(values)))


def map_of(key: Field, value: Field, most: int = SEQUENCE_MAX) -> Field:
    """A map of at most so many entries. Keys travel as they are."""
    check_key, check, pack = key.check, value.check, value.pack

    def check_all(found: object) -> dict[Any, Any]:
        entries = mapping(found)
        _check_size(len(entries), most, "entries")
        return {check_key(name): check(element) for name, element in entries.items()}

    if pack is None:
        return Field(check_all, dict)
    return Field(check_all, lambda values: {name: pack(one) for name, one in values.items()})


def text_of(characters_max: int) -> Field:
    """Text of at most so many characters."""

    def check(value: object) -> str:
        found = text(value)
        _check_size(len(found), characters_max, "characters")
        return found

    return Field(check)


def from_to(low: int, high: int = SEQUENCE_MAX) -> Field:
    """A number within these bounds."""
    return Field(lambda value: number(value, low, high))


def _check_size(size: int, most: int, what: str) -> None:
    if size > most:
        raise MeshError("bad-frame", f"at most {most} {what} were expected, not {size}")


NUMBER: Final = Field(number)
TRUTH: Final = Field(truth)
BYTES: Final = Field(octets)
TEXT: Final = Field(text)
NODE: Final = Field(node_name)
ORIGIN: Final = Field(origin_of, None, 2)
VECTOR: Final = Field(vector_of, pack_vector)
DOTS: Final = Field(check_dots, pack_dot_groups)
