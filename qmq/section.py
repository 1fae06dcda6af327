"""The base of every section of the configuration (frozen, strict, no unknown keys), and the types of values.

A section is a struct of msgspec, which checks each value against the type of its key, but stops at the first error.
`Section.read` therefore converts key by key and gathers the errors: an operator sees all of a file at once.

Strict means that the types of TOML count: `"5"` is not a number and `1` is not true. There are two conveniences: a size
may be a number of bytes or text such as `"64MiB"`, and an address is text. The messages raised here follow the key and
its value, so they begin with "must".

Surprising: calling a section, `Peer(name=…)`, checks as `read` does. An annotation may have functions besides bounds of
msgspec: they read or check the value in the order of the annotation, and raise ValueError.
"""

import math
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from qmq.address import Address, parse_address

NODE_NAME = r"[a-z0-9-]{1,32}"

RECEIPT_LEVELS = ("accepted", "fsync", *(f"replicas={copies}" for copies in range(1, 8)))

SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

BYTES_PER_SECOND_MIN = 1024
"""Of a rate: a client is read up to 64 KiB at a time, and waits for them about a minute at most."""

SECRET_KEYS: Final = ("password", "password_hash", "secret", "passcode", "options")
"""Keys whose values are never shown."""

# Wrong keys that are no typing errors, with the right way.
INSTEAD: Final[Mapping[str, str]] = {
    "password": "no passwords in a file; set password_hash, which `qmq config hash` prints",
    "passcode": "no passwords in a file; set password_hash, which `qmq config hash` prints",
}

# What msgspec says of a bound, in words.
BOUNDS: Final[Mapping[str, str]] = {">=": "at least", ">": "more than", "<=": "at most"}

# Type → what its values are, in TOML.
VALUES: Final[Mapping[object, str]] = {
    int: "must be a whole number",
    float: "must be a number",
    str: "must be text in quotes",
    bool: "must be true or false",
    dict: "must be a section of keys with text, numbers, true or false",
}

Read = Callable[[Any], Any]
"""The value of a key from what a file says. Raises ValueError with what it must be."""


class WrongValue(NamedTuple):
    """Where a value is wrong (keys, and numbers in lists), the value there, and what must be. None is never shown."""

    place: tuple[int | str, ...]
    value: Any
    why: str


class WrongValues(ValueError):
    """All that is wrong with one value."""

    def __init__(self, found: Sequence[WrongValue]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, one.place))}: {one.why}" for one in found))
        self.found = found

    def below(self, key: int | str) -> list[WrongValue]:
        """The same, as seen from the section or list that has the value at `key`."""
        return [one._replace(place=(key, *one.place)) for one in self.found]


def refuse(found: Sequence[WrongValue]) -> None:
    """Raises all of them at once; nothing if there are none."""
    if found:
        raise WrongValues(found)


class SectionKey(NamedTuple):
    """One key of a section. `default` is `msgspec.NODEFAULT` if the key is required."""

    name: str
    default: Any
    read: Read


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class SectionType(msgspec.StructMeta):
    """Of sections: all their keys are named when one is made, and checked."""

    def __new__(mcls, *args: Any, **options: Any) -> "SectionType":
        return super().__new__(mcls, *args, **{"kw_only": True, **options})

    def __call__(self, **values: Any) -> Any:
        return self.read(values)  # type: ignore[attr-defined]

    def make(self, values: Mapping[str, Any]) -> Any:
        """One with these values, which are checked."""
        return super().__call__(**values)


class Section(msgspec.Struct, metaclass=SectionType, frozen=True, forbid_unknown_fields=True, dict=True):
    """Base of every section. Instances are values: compare them, share them between tasks, never change them."""

    @classmethod
    def read(cls, values: object) -> Self:
        """The section with these values, as TOML or JSON has them. Raises WrongValues.

        Defaults are checked, too, because setting only one of two keys can break a rule between them.
        """
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            raise WrongValues([WrongValue((), values, "must be a section of keys")])
        try:
            given, refused = cls.before(values)
        except ValueError as error:
            raise WrongValues([WrongValue((), None, str(error))]) from None
        keys = cls.keys()
        found: list[WrongValue] = []
        seen: dict[str, Any] = {}
        for name in given:
            if name not in keys:
                found.append(
                    WrongValue((name,), None, f"unknown key; {INSTEAD.get(name) or suggest(name, list(keys))}")
                )
        for name, key in keys.items():
            value = given.get(name, key.default)
            if value is msgspec.NODEFAULT:
                found.append(WrongValue((name,), None, "is required"))
                continue
            try:
                if name in refused:
                    raise ValueError(refused[name])
                result = key.read(value) if name in given else value
                cls.check(name, result, seen)
                seen[key.name] = result
            except WrongValues as error:
                found += error.below(name)
            except ValueError as error:
                found.append(WrongValue((name,), value, str(error)))
        refuse(found)
        section: Self = cls.make(seen)
        section.__dict__["set_keys"] = frozenset(keys[name].name for name in given)
        return section

    @classmethod
    def before(cls, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """The values to read, and keys of them that have no place here, with the reason.

        Raises ValueError for a rule that no single key breaks.
        """
        return values, {}

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        """Raises ValueError if the value does not fit to those `seen`: the right ones of the keys before it."""

    @classmethod
    @lru_cache(None)
    def keys(cls) -> Mapping[str, SectionKey]:
        """As a file has them → the key, in the order of the class."""
        fields = {field.name: field for field in msgspec.structs.fields(cls)}
        hints = get_type_hints(cls, include_extras=True)
        found = {}
        for name in (name for name in hints if name in fields):
            field = fields[name]
            is_made = field.default_factory is not msgspec.NODEFAULT
            default = field.default_factory() if is_made else field.default
            found[field.encode_name] = SectionKey(name, default, _reader(hints[name]))
        return found

    @property
    def set_keys(self) -> frozenset[str]:
        """The keys that are set, and not by default."""
        keys: frozenset[str] = self.__dict__["set_keys"]
        return keys

    def replace(self, values: Mapping[str, Any]) -> Self:
        """A copy with other values, which nothing checks."""
        copied = msgspec.structs.replace(self, **values)
        copied.__dict__.update(self.__dict__, set_keys=self.set_keys | values.keys())
        return copied

    def plain(self, names: Collection[str]) -> dict[str, Any]:
        """These keys, as JSON has them."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__ if name in names)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values}

    def changed(self, *but: str) -> dict[str, Any]:
        """The keys that have not their default, except for those named here, as JSON has them."""
        keys = self.keys().values()
        return self.plain([key.name for key in keys if key.name not in but and getattr(self, key.name) != key.default])

    def effective_keys(self) -> Sequence[str]:
        """The keys that apply; some sections have keys for special cases only."""
        return self.__struct_fields__

    def is_explicit(self, key: str) -> bool:
        """False if the file does not set `key`, for keys where setting the default has a meaning of its own."""
        return True

    def __repr__(self) -> str:
        # Definitions may contain hashes.
        names = [name for name in self.__struct_fields__ if name not in (*SECRET_KEYS, "definitions")]
        shown = (f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({', '.join(shown)})"


def extended(section: type[Section], more: Mapping[str, tuple[Any, Any]]) -> type[Section]:
    """`section` with more keys: key → its type and default."""
    defaults = {key: default for key, (_, default) in more.items()}
    names = {"__annotations__": {key: kind for key, (kind, _) in more.items()}, "__module__": section.__module__}
    return SectionType(section.__name__, (section,), {**names, **defaults, "__doc__": section.__doc__})  # type: ignore


def suggest(word: str, known: Sequence[str]) -> str:
    """The closest known word, else all known words."""
    close = closest(word, known)
    return f"did you mean {close}?" if close else f"known here: {', '.join(sorted(known))}"


def closest(word: str, known: Sequence[str]) -> str | None:
    """The known word that is meant by one with a slip, if any is."""
    from difflib import get_close_matches  # Most files have no mistake.

    return next(iter(get_close_matches(word, known, 1)), None)


def check_at_least(value: float, other: str, seen: Mapping[str, Any]) -> None:
    """Raises ValueError if the value is less than that of the key `other`."""
    least = seen.get(other, 0)
    if value < least:
        raise ValueError(f"must be at least {other}, {str(least).removesuffix('.0')}")


def _reader(kind: Any) -> Read:
    """What reads values of the type `kind`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        first = [_reader(inner[0])] if get_origin(inner[0]) is tuple else []
        steps = [_leaf(Annotated[inner[0], one]) if isinstance(one, Meta) else one for one in kind.__metadata__]
        return lambda value: _in_steps([*first, *steps], value)
    if origin in (Union, types.UnionType) and type(None) in inner:
        read = _reader(Union[tuple(one for one in inner if one is not type(None))])  # noqa: UP007
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        read = _reader(inner[0])
        return lambda value: _list(read, value)
    if isinstance(kind, SectionType):
        return kind.read  # type: ignore[attr-defined, no-any-return]
    return _leaf(kind)


def _in_steps(steps: Sequence[Read], value: Any) -> Any:
    for step in steps:
        value = step(value)
    return value


def _list(read: Read, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list")
    elements, found = [], []
    for number, element in enumerate(value):
        try:
            elements.append(read(element))
        except WrongValues as error:
            found += error.below(number)
        except ValueError as error:
            found.append(WrongValue((number,), element, str(error)))
    refuse(found)
    return tuple(elements)


def _leaf(kind: Any) -> Read:
    """What lets msgspec check a value. Its reason, in words that an operator knows."""

    def read(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be a number, not infinite")
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            *_, sign, bound = str(error).split()
            if sign in BOUNDS:
                shown = bound.removesuffix(".0") if sign == ">" else bound
                raise ValueError(f"must be {BOUNDS[sign]} {shown}") from None
            raise ValueError(_must_be(kind)) from None

    return read


def _must_be(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _must_be(inner[0])
    if origin is Literal:
        return f"must be {', '.join(map(repr, inner[:-1]))} or {inner[-1]!r}"
    return VALUES[origin or kind]


def read_size(value: object) -> object:
    """Bytes from a number or from text such as `"64MiB"`."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"([0-9]{1,15}) ?([KMGT]iB|B)", value)
    if found is None:
        raise ValueError('must be a number of bytes, or text such as "512KiB", "64MiB", "10GiB"')
    return int(found[1]) * SIZE_UNITS[found[2]]


def check_byte_rate(rate: int) -> int:
    if 0 < rate < BYTES_PER_SECOND_MIN:
        raise ValueError(f"must be 0 for no limit, or at least {BYTES_PER_SECOND_MIN}")
    return rate


def read_address(value: object) -> Address:
    if isinstance(value, Address):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text: host:port, such as 127.0.0.1:61613")
    return parse_address(value)


def read_network(value: object) -> IPv4Network | IPv6Network:
    """An IP address, or all with the same first bits."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    why = "must be an IP address, or a network such as 10.0.0.0/24"
    if not isinstance(value, str):
        raise ValueError(why)
    try:
        return ip_network(value)
    except ValueError as error:
        raise ValueError(why + f" ({error})" * ("host bits" in str(error))) from None


def read_node_name(value: object) -> object:
    if not isinstance(value, str) or re.fullmatch(NODE_NAME, value) is None:
        raise ValueError("must be 1 to 32 characters out of a-z, 0-9 and -")
    return value


def read_receipt_level(value: object) -> object:
    if value not in RECEIPT_LEVELS:
        raise ValueError('must be "accepted", "fsync", or the number of other disks, "replicas=1" to "replicas=7"')
    return value


def read_path(value: object) -> Path:
    if not isinstance(value, str | Path):
        raise ValueError("must be a path, as text in quotes")
    if not str(value) or "\0" in str(value):
        raise ValueError("must be a path")
    return Path(value)


Count = Annotated[int, Meta(ge=1, le=2**53)]
"""A number of things; at least one."""
CountOrUnbounded = Annotated[int, Meta(ge=0, le=2**53)]
"""As Count; 0 means no bound."""
Size = Annotated[int, read_size, Meta(ge=1, le=2**53)]
"""Bytes."""
SizeOrUnbounded = Annotated[int, read_size, Meta(ge=0, le=2**53)]
"""As Size; 0 means no bound."""
ByteRate = Annotated[SizeOrUnbounded, check_byte_rate]
"""Bytes in a second; 0 means no bound."""
Seconds = Annotated[float, Meta(gt=0, le=10 * 365 * 86400)]
SecondsOrNone = Annotated[float, Meta(ge=0, le=10 * 365 * 86400)]
"""As Seconds; 0 means no such time."""
ReceiptLevel = Annotated[str, read_receipt_level]
"""How many disks a receipt waits for."""
NodeName = Annotated[str, read_node_name]
AddressText = Annotated[Address, read_address]
NetworkText = Annotated[IPv4Network | IPv6Network, read_network]
FilePath = Annotated[Path, read_path]
