"""Each time that a message became a dead letter, from which queue and why, as one header of the dead letter.

The first time needs no such header: `dead-letter-reason`, `dead-letter-from` and the headers of the sender have
everything. From the second time on, `dead-letter-history` has one row for each queue and reason, the latest first, with
the number of times. So a program that returns messages through a queue with a `ttl_seconds` sees how often it has done
so.
"""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from qmq.model.routing_names import PREFIX

HISTORY: Final = "dead-letter-history"
THROUGH: Final = "dead-letter-through"
"""The exchange and the routing key by which a dead letter came, as a destination."""

ROWS_MAX: Final = 16
HISTORY_BYTES_MAX: Final = 2048
"""Of the header. Beyond either bound the oldest rows are left out, except the first death."""


class Death(NamedTuple):
    """`exchange` and `key`: by which the message had come into `queue`; "" is the default exchange."""

    reason: str
    queue: str
    times: int
    exchange: str
    key: str


class Deaths(NamedTuple):
    """`first` is the first of all, with one time; `rows` the latest first."""

    first: Death
    rows: list[Death]


def deaths_of(headers: Mapping[str, str]) -> Deaths | None:
    """What the headers of a message say; None: it is no dead letter."""
    if "dead-letter-reason" not in headers:
        return None
    if HISTORY in headers:
        first, *rows = [Death(*row) for row in json.loads(headers[HISTORY])]
        return Deaths(first, rows)
    queue = headers.get("dead-letter-from", "")
    exchange, key = headers.get("exchange", ""), headers.get("routing-key", queue.removeprefix("/queue/"))
    only = Death(headers["dead-letter-reason"], queue, 1, exchange, key)
    return Deaths(only, [only])


def history_after(headers: Mapping[str, str], reason: str, queue: str) -> str | None:
    """The header of a dead letter of a message with these headers, which leaves `queue` now; None: it needs none."""
    before = deaths_of(headers)
    if before is None:
        return None
    rows = [one for one in before.rows if (one.reason, one.queue) != (reason, queue)]
    again = [one for one in before.rows if (one.reason, one.queue) == (reason, queue)]
    # As RabbitMQ: by which exchange it came the first time stays.
    new = again[0] if again else Death(reason, queue, 0, *came_through(headers, queue))
    rows.insert(0, new._replace(times=new.times + 1))
    del rows[ROWS_MAX:]
    text = _written(before.first, rows)
    while len(text.encode()) > HISTORY_BYTES_MAX and len(rows) > 1:
        rows.pop()
        text = _written(before.first, rows)
    return text


def came_through(headers: Mapping[str, str], queue: str) -> tuple[str, str]:
    """The exchange and the routing key by which a message has come into `queue`."""
    if "dead-letter-reason" not in headers:
        return headers.get("exchange", ""), headers.get("routing-key", queue.removeprefix("/queue/"))
    through = headers.get(THROUGH, "")
    if not through.startswith(PREFIX):
        return "", queue.removeprefix("/queue/")
    exchange, _, key = through.removeprefix(PREFIX).partition("/")
    return exchange, key


def _written(first: Death, rows: list[Death]) -> str:
    return json.dumps([first, *rows], ensure_ascii=False, separators=(",", ":"))
