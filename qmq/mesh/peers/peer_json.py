"""JSON of peers: what a request or a response may contain.

A peer of another version, or with a fault, may send anything. What is not valid here is a ValueError, whatever the
parser says of it, so that callers need to catch no more.
"""

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, NoReturn

Facts = dict[str, Any]
"""What a node says, by name, ready for JSON."""

UNUSUAL: Final = re.compile(rb"[0-9]{19}|(?:\A|[-\[,:\s])[0-9.]+[eE]")
"""Without these no number has more than 64 bits or is infinite, so the parser need not call back for each. What stands
before a number is looked at, too: an incarnation in hexadecimal has such an `e` as often as not."""


def decode_json(data: bytes) -> Any:
    """The value in `data`: its numbers are finite and have at most 64 bits, and its texts can be encoded.

    Raises ValueError.
    """
    if b"\0" in data:
        raise ValueError("JSON of a peer is not in UTF-8")
    try:
        if UNUSUAL.search(data) is None:
            value = json.loads(data, parse_constant=_refuse)
        else:
            value = json.loads(data, parse_constant=_refuse, parse_float=_finite, parse_int=_bounded)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    if b"\\ud" in data.lower():
        # Half of a surrogate pair is text that no header can carry: UnicodeEncodeError.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def facts_of(answer: bytes, types: Mapping[str, type]) -> Facts | None:
    """The facts in a peer's response, which has at least these names and types; None when it is not valid."""
    try:
        facts = decode_json(answer)
    except ValueError:
        return None
    if type(facts) is not dict or any(type(facts.get(name)) is not wanted for name, wanted in types.items()):
        return None
    return facts


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    return value if isfinite(value) else _refuse(text)


def _bounded(text: str) -> int:
    value = int(text)
    return value if value.bit_length() <= 64 else _refuse("an integer of more than 64 bits")
