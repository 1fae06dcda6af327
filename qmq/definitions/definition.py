"""One definition: a key, a version, and a value or a tombstone.

A **version** orders all changes of one key in the same way on every node. Its time and counter are a hybrid logical
clock: a change that was made with knowledge of another has the later version, also where wall clocks differ. Origin and
sequence name the change; they decide between concurrent changes with equal times. So the time of a version may be that
of another clock, which is ahead. Then the version has what its writer's clock showed, too.

Surprising: a value is kept as canonical JSON text. Most values are only stored and passed on, so nothing parses them.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from qmq.errors import Refused
from qmq.model.dots import Dot, Origin

NUMBER_MAX: Final = 2**63 - 1
"""Of each number of a version: what a database holds."""

VALUE_BYTES_MAX: Final = 64 << 10
NAME_BYTES_MAX: Final = 1024

DEPTH_MAX: Final = 20
"""Objects and arrays inside each other that a value may have; no kind needs more than a few."""


class Key(NamedTuple):
    """`kind` is a lower case word, such as `policy`; `name` is unique in it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Version(NamedTuple):
    """The greater of two versions of one key is the later one."""

    time_us: int
    """Wall clock of the writer, or later. 0: a seed, which every real change replaces."""
    counter: int
    origin: Origin
    sequence: int
    clock_us: int = 0
    """Wall clock of the writer, if `time_us` is later than that; else 0."""

    @property
    def written_us(self) -> int:
        """What the clock of the writer showed."""
        return self.clock_us or self.time_us

    @property
    def dot(self) -> Dot:
        """The change, as other records name it."""
        return Dot(self.origin, self.sequence)


class Definition(NamedTuple):
    """A change of one key."""

    key: Key
    version: Version
    text: str | None
    """The value, as canonical JSON; None: a tombstone."""
    replaced: Version | None = None
    """What the writer knew of this key before; None: nothing."""

    @property
    def value(self) -> dict[str, Any] | None:
        """The value, parsed; None: a tombstone, or a text that is no value (`parsed`)."""
        try:
            return None if self.text is None else parsed(self.text)
        except ValueError:
            return None

    def is_concurrent_with(self, earlier: "Definition") -> bool:
        """Whether the writer of this change did not know `earlier`, an earlier version of the same key.

        Only the change that was replaced is known, not the whole history. So an earlier version that is older than
        that counts as known.
        """
        replaced = self.replaced
        return replaced != earlier.version and (replaced is None or replaced < earlier.version)


def parsed(text: str) -> dict[str, Any]:
    """The value with this text. Raises ValueError if it is too long, too deep, or no JSON object."""
    if len(text.encode()) > VALUE_BYTES_MAX:
        raise ValueError(f"a value of more than {VALUE_BYTES_MAX} bytes")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("a value that is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("a value that is no JSON object")
    # A start reads ten thousand values, and nearly none has as many brackets.
    if text.count("{") + text.count("[") > DEPTH_MAX and _is_too_deep(value):
        raise ValueError("a value that is nested too deeply")
    return value


def text_of(key: Key, value: Mapping[str, Any]) -> str:
    """The canonical text of `value`. Raises Refused if it is too long, too deep, or no JSON."""
    if _is_too_deep(value):
        raise Refused("bad-definition", f"{key}: the value has more than {DEPTH_MAX} objects and arrays in each other")
    try:
        json.dumps(value, ensure_ascii=False).encode()  # No text with half of a surrogate pair.
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Refused("bad-definition", f"{key}: the value must be a JSON object: {error}") from error
    if len(text) > VALUE_BYTES_MAX:
        raise Refused("bad-definition", f"{key}: the value must have at most {VALUE_BYTES_MAX} bytes, not {len(text)}")
    return text


def _is_too_deep(value: object) -> bool:
    """Without recursion, so that no depth is too much for it."""
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [inner for one in level for inner in _inside(one)]
    return any(isinstance(one, dict | list) for one in level)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
