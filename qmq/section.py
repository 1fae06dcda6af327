"""The base of every section of the configuration (frozen, strict, no unknown keys), and the types of values.

Strict means that the types of TOML count: `"5"` is not a number and `1` is not true. There are two conveniences: a size
may be a number of bytes or text such as `"64MiB"`, and an address is text. The messages raised here follow the key and
its value, so they begin with "must".
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import InitErrorDetails

from qmq.address import Address, parse_address

NODE_NAME = r"[a-z0-9-]{1,32}"

RECEIPT_LEVELS = ("accepted", "fsync", *(f"replicas={copies}" for copies in range(1, 8)))

SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

BYTES_PER_SECOND_MIN = 1024
"""Of a rate: a client is read up to 64 KiB at a time, and waits for them about a minute at most."""


class Section(BaseModel):
    """Base of every section. Instances are values: compare them, share them between tasks, never change them."""

    # Defaults are checked, too, because setting only one of two keys can break a rule between them.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    def effective_keys(self) -> Sequence[str]:
        """The keys that apply; some sections have keys for special cases only."""
        return tuple(type(self).model_fields)

    def is_explicit(self, key: str) -> bool:
        """False if the file does not set `key`, for keys where setting the default has a meaning of its own."""
        return True


def at_least(key: str, other: str) -> Any:
    """A validator of a section: `key` must be at least `other`, which the section has before it."""

    def check(cls: type[Section], value: float, info: ValidationInfo) -> float:
        least = info.data.get(other, 0)
        if value < least:
            raise ValueError(f"must be at least {other}, {str(least).removesuffix('.0')}")
        return value

    return field_validator(key)(classmethod(check))


EntryError = tuple[tuple[int | str, ...], Any, str]
"""Where an entry of a list is wrong (its number, the key), the value there, and what must be."""


def refuse(key: str, found: Sequence[EntryError]) -> None:
    """Raises all errors of the list `key` at once; nothing if there are none."""
    errors = [
        InitErrorDetails(type="value_error", loc=place, input=value, ctx={"error": ValueError(why)})
        for place, value, why in found
    ]
    if errors:
        raise ValidationError.from_exception_data(key, errors)


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


def read_node_name(value: object) -> object:
    if not isinstance(value, str) or re.fullmatch(NODE_NAME, value) is None:
        raise ValueError("must be 1 to 32 characters out of a-z, 0-9 and -")
    return value


def read_receipt_level(value: object) -> object:
    if value not in RECEIPT_LEVELS:
        raise ValueError('must be "accepted", "fsync", or the number of other disks, "replicas=1" to "replicas=7"')
    return value


def read_path(value: object) -> object:
    if isinstance(value, str) and (not value or "\0" in value):
        raise ValueError("must be a path")
    return value


Count = Annotated[int, Field(ge=1, le=2**53)]
"""A number of things; at least one."""
CountOrUnbounded = Annotated[int, Field(ge=0, le=2**53)]
"""As Count; 0 means no bound."""
Size = Annotated[int, BeforeValidator(read_size), Field(ge=1, le=2**53)]
"""Bytes."""
SizeOrUnbounded = Annotated[int, BeforeValidator(read_size), Field(ge=0, le=2**53)]
"""As Size; 0 means no bound."""
ByteRate = Annotated[SizeOrUnbounded, AfterValidator(check_byte_rate)]
"""Bytes in a second; 0 means no bound."""
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86400)]
SecondsOrNone = Annotated[float, Field(ge=0, le=10 * 365 * 86400)]
"""As Seconds; 0 means no such time."""
ReceiptLevel = Annotated[str, BeforeValidator(read_receipt_level)]
"""How many disks a receipt waits for."""
NodeName = Annotated[str, BeforeValidator(read_node_name)]
AddressText = Annotated[Address, PlainValidator(read_address)]
FilePath = Annotated[Path, BeforeValidator(read_path), Field(strict=False)]
