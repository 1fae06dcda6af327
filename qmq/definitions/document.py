"""A file of definitions: what `qmq definitions export` writes and `import` reads, and how two of them differ.

{"qmq_definitions": 1, "definitions": {"policy": {"/queue/jobs.*": {"delivery_limit": 5}}}}
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from qmq.errors import Refused

if TYPE_CHECKING:
    from qmq.definitions.rabbitmq import ImportTarget

MARK: Final = "qmq_definitions"
VERSION: Final = 1

Values = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Kind → name → value."""


def document(values: Values) -> dict[str, Any]:
    """The file with these definitions."""
    return {
        MARK: VERSION,
        "definitions": {kind: dict(sorted(of_kind.items())) for kind, of_kind in sorted(values.items()) if of_kind},
    }


def read_document(data: bytes, target: "ImportTarget | None" = None) -> tuple[Values, list[str]]:
    """The definitions in a file of QMQ or RabbitMQ, and a line for each part of it without a counterpart. What a file
    of RabbitMQ means depends on what `target` has already.

    Raises Refused when it is neither.
    """
    try:
        found = json.loads(data)
        json.dumps(found, ensure_ascii=False).encode()  # No text with half of a surrogate pair.
    except (ValueError, RecursionError) as error:
        raise Refused("bad-definitions", f"not JSON: {error}") from error
    if isinstance(found, dict) and MARK in found:
        if found[MARK] != VERSION:
            raise Refused("bad-definitions", f"{MARK}: this version of QMQ reads {VERSION}, not {found[MARK]!r}")
        return _checked(found.get("definitions")), []
    from qmq.definitions.rabbitmq import MARKS, ImportTarget, convert, is_rabbitmq  # Few nodes ever need it.

    if is_rabbitmq(found):
        return convert(found, target or ImportTarget())
    raise Refused(
        "bad-definitions", f"no definitions: a file of QMQ has {MARK}, and one of RabbitMQ some of {', '.join(MARKS)}"
    )


def differences(ours: Values, theirs: Values) -> Iterator[tuple[str, str, Mapping[str, Any] | None, Any]]:
    """(kind, name, our value, their value) where they differ; None: not defined there."""
    for kind in sorted({*ours, *theirs}):
        own, other = ours.get(kind, {}), theirs.get(kind, {})
        for name in sorted({*own, *other}):
            if own.get(name) != other.get(name):
                yield kind, name, own.get(name), other.get(name)


def _checked(values: Any) -> Values:
    if not isinstance(values, dict):
        raise Refused("bad-definitions", "definitions: must be an object of kinds")
    for kind, of_kind in values.items():
        if not isinstance(of_kind, dict):
            raise Refused("bad-definitions", f"definitions.{kind}: must be an object of names")
        for name, value in of_kind.items():
            if not isinstance(value, dict):
                raise Refused("bad-definitions", f"{kind} {name}: must be an object of keys")
    return values
