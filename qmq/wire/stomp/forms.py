"""Header blocks that are alike but for the destination.

A client that sends to very many destinations repeats all of a block but one value. The other lines are kept as a Form,
and a block of a known form is split with two searches instead of being parsed. A form that fits must give exactly
the result of a full parse of the same bytes: the value that differs is short printable ASCII without escapes,
which every version reads alike, and everything else has been parsed before.

Surprising: `memo` belongs to the next layer, as does that of a Head. What it keeps there is true for every
destination that the form is sent to, so it must be checked against the one at hand.
"""

from typing import Final

from qmq.wire.stomp.head import CachedBlock, Form
from qmq.wire.stomp.runs import plain_text

FORMS_MAX: Final = 1024
"""Of one version and one set of limits; at the bound all are forgotten and learned again."""

_MARK: Final = b"\ndestination:"


class Forms:
    """Block without its destination → form."""

    __slots__ = ("_forms",)

    def __init__(self) -> None:
        self._forms: dict[bytes, Form] = {}

    def read(self, block: bytes) -> CachedBlock | None:
        """What `block`, its receipt line cut out, says; None when no known form fits."""
        at = block.find(_MARK) + len(_MARK)
        end = block.find(b"\n", at)
        if end < 0:
            end = len(block)
        form = self._forms.get(block[:at] + block[end:])
        if form is None:
            return None
        destination = plain_text(block[at:end])
        if destination is None or "\\" in destination:
            return None
        return CachedBlock(form.head(destination), form.length)

    def learn(self, block: bytes, known: CachedBlock) -> None:
        """`block`, its receipt line cut out, was a SEND and said this; blocks of its form may follow."""
        at = block.find(_MARK) + len(_MARK)
        if at < len(_MARK) or known.head.form is not None:
            return
        end = block.find(b"\n", at)
        stem = block[:at] + (block[end:] if end >= 0 else b"")
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        form = self._forms[stem] = Form(known.head.headers, known.head.version, known.length)
        known.head.form = form
