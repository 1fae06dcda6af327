"""One record on its way from the journal into a fanout log."""

from typing import NamedTuple

from qmq.dots import Origin


class FanoutEntry(NamedTuple):
    """One record on its way into a fanout log, already packed."""

    origin: Origin
    sequence: int
    timestamp_us: int
    packed: bytes
