"""The notice to a fanout subscriber that it misses messages: a MESSAGE without a body, with the header `qmq-gap`.

`qmq-gap:ORIGIN=FIRST-LAST,…` names, per origin, the sequences of which this fanout keeps nothing here any more. LAST
was a message of the fanout, unless the node had to give up records of that origin as a whole; how many there were
before it is unknown. A client that keeps a vector puts LAST into it.
"""

from collections.abc import Sequence

from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope
from qmq.model.dots import Origin

GAP_HEADER = "qmq-gap"

GAP_BYTES_MAX = 4096
"""Of one notice's header; more origins go into several. Clients bound header lines, our own at 8 KiB."""

Claim = tuple[Origin, int, int]
"""(origin, after, through): missing is what lies above `after`, up to `through`."""


def gap_notices(destination: str, missing: Sequence[Claim]) -> list[tuple[Envelope, tuple[Claim, ...]]]:
    """Notices, and what each of them says."""
    notices: list[tuple[Envelope, tuple[Claim, ...]]] = []
    texts: list[str] = []
    claims: list[Claim] = []
    size = 0
    for claim in missing:
        origin, after, through = claim
        text = f"{origin}={after + 1}-{through}"
        if claims and size + len(text) > GAP_BYTES_MAX:
            notices.append((_notice(destination, texts), tuple(claims)))
            texts, claims, size = [], [], 0
        texts.append(text)
        claims.append(claim)
        size += len(text) + 1
    if claims:
        notices.append((_notice(destination, texts), tuple(claims)))
    return notices


def _notice(destination: str, texts: list[str]) -> Envelope:
    return Envelope(destination, DestinationKind.FANOUT, f"{GAP_HEADER}:{','.join(texts)}\n".encode(), durable=False)
