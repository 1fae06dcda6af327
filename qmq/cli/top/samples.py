"""What one node says of the mesh at one moment: the answers of verbs that exist."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..client import CommandClient, ask_over, headers_of

ROWS_MAX: Final = 200
"""The most that a page of queues has."""

Row = Mapping[str, Any]


class Sample(NamedTuple):
    at_seconds: float
    """Of a clock that only advances."""
    nodes: Mapping[str, Row]
    """What each node says of itself (`/control/overview`)."""
    missing: Sequence[str]
    conditions: Sequence[Row]
    queues: Sequence[Row]
    """The first ROWS_MAX in the order that was asked for."""
    queues_total: int
    consumers: Sequence[Row]
    """Those of the queue that is open."""


def take_sample(client: CommandClient, sort: str, opened: str | None) -> Sample:
    """Ask a node for the mesh. Raises Failed or ServerError."""
    overview = ask_over(client, "overview", headers_of(scope="mesh"))
    conditions = ask_over(client, "conditions", headers_of(scope="mesh"))
    page = ask_over(client, "list/queue/", headers_of(scope="mesh", sort=sort, limit=ROWS_MAX))
    consumers: list[Row] = []
    if opened is not None:
        consumers = ask_over(client, f"list-subscribers{opened}", headers_of(scope="mesh")).get("subscribers", [])
    return Sample(
        at_seconds=time.monotonic(),
        nodes=overview.get("nodes", {}),
        missing=overview.get("nodes_missing", ()),
        conditions=conditions.get("conditions", ()),
        queues=page.get("destinations", ()),
        queues_total=page.get("queues", 0),
        consumers=consumers,
    )


def per_second(now: object, before: object, seconds: float) -> float | None:
    """The rate of a counter; None where it is not known twice, or has begun again."""
    if not isinstance(now, int) or not isinstance(before, int) or now < before or seconds <= 0:
        return None
    return (now - before) / seconds
