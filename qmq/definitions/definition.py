"""One definition: a key, a version, and a value or a tombstone.

A **version** orders all changes of one key in the same way on every node. Its time and counter are a hybrid logical
clock: a change that was made with knowledge of another has the later version, also where wall clocks differ. Origin and
sequence name the change; they decide between concurrent changes with equal times.

Surprising: a value is kept as canonical JSON text. Most values are only stored and passed on, so nothing parses them.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from qmq.dots import Dot, Origin
from qmq.errors import Refused

VALUE_BYTES_MAX: Final = 64 << 10
NAME_BYTES_MAX: Final = 1024


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
        """The value, parsed; None: a tombstone."""
        if self.text is None:
            return None
        value: dict[str, Any] = json.loads(self.text)
        return value

    def is_concurrent_with(self, earlier: "Definition") -> bool:
        """Whether the writer of this change did not know `earlier`, an earlier version of the same key.

        Only the change that was replaced is known, not the whole history. So an earlier version that is older than
        that counts as known.
        """
        replaced = self.replaced
        return replaced != earlier.version and (replaced is None or replaced < earlier.version)


def text_of(key: Key, value: Mapping[str, Any]) -> str:
    """The canonical text of `value`. Raises Refused if it is too long, or no JSON."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Refused("bad-definition", f"{key}: the value must be a JSON object: {error}") from error
    if len(text) > VALUE_BYTES_MAX:
        raise Refused("bad-definition", f"{key}: the value must have at most {VALUE_BYTES_MAX} bytes, not {len(text)}")
    return text
