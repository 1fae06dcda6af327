"""What bodies look like: the types of the fields of JSON objects, and how a table's columns come of it. Pure.

A type of Arrow says what a field is; a body is a struct of its fields. What does not fit a type is null in its column,
and text takes anything as JSON. Capitals make no difference to many readers of tables, so of fields that differ only
by them one becomes a column: the most frequent one.
"""

import base64
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

FIELDS_MAX: Final = 1000
"""Of one object: bodies may have ids for names, and then a table would have as many columns."""
NESTING_MAX: Final = 16
"""Objects and lists inside each other, as columns."""

Fit = Callable[[Any], Any]
"""Makes a value that a column takes of one that was in a body; None for what does not fit."""


class Shape:
    """What was seen at one place of bodies: how often values of each type, and their fields or items."""

    __slots__ = ("_items", "_kinds", "_nesting", "fields")

    def __init__(self, nesting: int = 0) -> None:
        self._nesting = nesting
        self._kinds: Counter[type] = Counter()
        self._items: Shape | None = None
        self.fields: dict[str, Shape] = {}

    def see(self, value: Any) -> None:
        kind = type(value)
        self._kinds[kind] += 1
        if self._nesting == NESTING_MAX:
            return
        if kind is dict:
            for name, inner in value.items():
                shape = self.fields.get(name)
                if shape is None:
                    # What has no such name could not be found by it, nor written as UTF-8.
                    if len(self.fields) == FIELDS_MAX or not name or not name.isprintable():
                        continue
                    shape = self.fields[name] = Shape(self._nesting + 1)
                shape.see(inner)
        elif kind is list and value:
            if self._items is None:
                self._items = Shape(self._nesting + 1)
            for inner in value:
                self._items.see(inner)

    @property
    def count(self) -> int:
        """Of values that are not null."""
        return self._kinds.total() - self._kinds[type(None)]

    def type(self, *, is_all: bool = False) -> pa.DataType | None:
        """None where nothing but nulls and empty lists was seen. `is_all`: as `struct`."""
        kinds = {kind for kind, count in self._kinds.items() if count} - {type(None)}
        if not kinds:
            return None
        if len(kinds) == 1:
            (kind,) = kinds
            if kind is list and self._nesting < NESTING_MAX:
                items = self._items.type(is_all=is_all) if self._items is not None else None
                return None if items is None else pa.list_(items)
            if kind is dict:
                return self.struct(is_all=is_all) or pa.string()
            return _SCALARS.get(kind, pa.string())
        return pa.float64() if kinds == {int, float} else pa.string()

    def struct(self, *, is_all: bool = False) -> pa.StructType | None:
        """The fields of its objects; None if there is none with a type. `is_all`: also those that differ from a more
        frequent one by capitals only.
        """
        chosen: dict[str, str] = {}
        for name, shape in sorted(self.fields.items(), key=lambda item: -item[1].count):
            if shape.count:
                chosen.setdefault(name.lower(), name)
        names = [name for name in self.fields if is_all or chosen.get(name.lower()) == name]
        types = {name: self.fields[name].type(is_all=is_all) for name in names}
        found = [pa.field(name, kind) for name, kind in types.items() if kind is not None]
        return pa.struct(found) if found else None


_SCALARS: Final = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def joined(kept: pa.DataType, found: pa.DataType) -> pa.DataType:
    """`kept`, with the fields that only `found` has. A type stays what it is, and so does the spelling of a name."""
    if pa.types.is_struct(kept) and pa.types.is_struct(found):
        more: dict[str, pa.Field] = {}
        for field in found:
            more.setdefault(field.name.lower(), field)
        for field in kept:
            more.pop(field.name.lower(), None)
        both = [
            pa.field(field.name, joined(field.type, found.field(field.name).type))
            if found.get_field_index(field.name) >= 0
            else field
            for field in kept
        ]
        return pa.struct([*both, *more.values()])
    if pa.types.is_list(kept) and pa.types.is_list(found):
        return pa.list_(joined(kept.value_type, found.value_type))
    return kept


def leaves(kind: pa.DataType, path: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Path and type of each field that has no fields itself; items of lists are `path[]`."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from leaves(field.type, f"{path}.{field.name}" if path else field.name)
    elif pa.types.is_list(kind):
        yield from leaves(kind.value_type, f"{path}[]")
    else:
        yield path, kind


def fit_of(kind: pa.DataType) -> Fit:
    """What makes values of a type of Arrow."""
    if pa.types.is_struct(kind):
        fits = [(field.name, fit_of(field.type)) for field in kind]
        return lambda value: {name: fit(value.get(name)) for name, fit in fits} if isinstance(value, dict) else None
    if pa.types.is_list(kind):
        items = fit_of(kind.value_type)
        return lambda value: [items(one) for one in value] if isinstance(value, list) else None
    if pa.types.is_map(kind):
        inner = fit_of(kind.item_type)
        return lambda value: [(name, inner(one)) for name, one in value.items()] if isinstance(value, dict) else None
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    if pa.types.is_timestamp(kind):
        return lambda value: value if isinstance(value, datetime) and value.tzinfo else None
    return _FITS[kind]


def _decimal(value: Any, kind: pa.DataType) -> Any:
    try:
        return pa.scalar(value, kind).as_py() if isinstance(value, Decimal) else None
    except pa.ArrowInvalid:
        return None


def _whole(value: Any) -> Any:
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _number(value: Any) -> Any:
    if type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            return None
    # The bounds of a file could not say what is not finite.
    return value if type(value) is float and math.isfinite(value) else None


def _text(value: Any) -> Any:
    if value is None:
        return None
    text = value if isinstance(value, str) else json_text(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair of UTF-16
        return None
    return text


_FITS: Final[dict[pa.DataType, Fit]] = {
    pa.bool_(): lambda value: value if type(value) is bool else None,
    pa.int64(): _whole,
    pa.float64(): _number,
    pa.string(): _text,
    pa.binary(): lambda value: value if isinstance(value, bytes) else None,
    pa.date32(): lambda value: value if type(value) is date else None,
}


def json_text(value: Any) -> str:
    """A value of a body, as JSON: bytes as base64, times as ISO 8601, and what JSON has no form for as text."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:  # infinities and NaN: their names
        value = json.loads(json.dumps(value, default=_plain), parse_constant=str)
        return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)
