"""Ranges of records that an archive went on without: which ones, why, and since when. Pure.

What a table has is all up to its vector, without these. They stand in its commits, beside the vector.
"""

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from qmq.model.dots import Origin, Vector, parse_origin
from qmq.spark.reading.ranges import Lacking, RangeMap

DROPPED: Final = "journals do not go back so far"
DAMAGED: Final = "journals have what is before and behind it"


class TableLoss(NamedTuple):
    """The records `first` to `last` of one origin, as no node had all of them `at` a time (ISO 8601)."""

    origin: str
    first: int
    last: int
    why: str
    at: str
    partly: bool = False
    """Fanout logs or range snapshots had some messages of it, which the table has."""


Losses = tuple[TableLoss, ...]


def losses_of(lacking: Lacking, base: Vector, silent: list[str], at: str) -> Losses:
    """What a run lacks. `base`: what no journal holds any more; `silent`: nodes that did not answer."""
    unknown = f"no answer from {', '.join(silent)}" if silent else ""

    def why(origin: Origin, through: int) -> str:
        return unknown or (DROPPED if through <= base.get(origin, 0) else DAMAGED)

    return tuple(
        TableLoss(str(origin), after + 1, through, why(origin, through), at, partly)
        for found, partly in ((lacking.missing.minus(lacking.partly), False), (lacking.partly, True))
        for origin, ranges in found.items()
        for after, through in ranges
    )


def all_ranges(losses: Iterable[TableLoss]) -> RangeMap:
    found = RangeMap()
    for one in losses:
        found.add(parse_origin(one.origin), one.first - 1, one.last)
    return found


def losses_text(losses: Losses) -> str:
    """The first of them, each with its reason and its time."""
    texts = [f"{one.origin} from {one.first} to {one.last} ({one.why}, {one.at})" for one in losses]
    return f"{', '.join(texts[:8])}{' …' if len(texts) > 8 else ''}"


def losses_to_json(losses: Losses) -> str:
    return json.dumps([one._asdict() for one in losses])


def losses_from_json(text: str) -> Losses:
    """The inverse. Keys that this version does not know are left out."""
    return tuple(
        TableLoss(**{name: one[name] for name in TableLoss._fields if name in one}) for one in json.loads(text)
    )
