"""The copies that bindings and further routing keys make of one SEND: which queues get one, and with which headers.

A copy has the headers of its sender, and besides them where it comes from: `exchange` and `routing-key`, or
`original-destination` of a topic or fanout. A sender cannot choose these: its own headers of these names stay behind.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from qmq.broker.messages.dedup import RETRIED
from qmq.broker.messages.destination import DestinationKind, is_pattern
from qmq.broker.messages.message import Envelope
from qmq.broker.messages.receipt_levels import strongest
from qmq.broker.messages.send_options import MILLISECONDS_MAX
from qmq.broker.routing.binding import split_exchange
from qmq.broker.routing.table import ROUTE_COST_MAX, RoutingTable
from qmq.errors import Refused
from qmq.gateways.headers import OWN_HEADERS, check_name, is_persistent, is_said, unsaid
from qmq.gateways.rules import Rules
from qmq.model.routing_names import PREFIX
from qmq.wire.stomp import Version, encode_headers

MANDATORY: Final = "mandatory"
"""Header of a SEND to an exchange: `true` asks for an ERROR when no binding matches. It does not travel."""

ROUTING_KEYS: Final = "routing-keys"
"""Header of a SEND: a JSON array of further keys. To an exchange it is routed by these, too; to a queue each names one
more queue. It does not travel."""

DELAY: Final = "x-delay"
"""Header of a SEND to an exchange with `delayed`: milliseconds until its copies may be delivered, in the word of
RabbitMQ's plugin. It travels."""

FURTHER_KEYS_MAX: Final = 100

EXCHANGE: Final = "exchange"
ROUTING_KEY: Final = "routing-key"
ORIGINAL: Final = "original-destination"

OF_COPIES: Final = (EXCHANGE, ROUTING_KEY, ORIGINAL, MANDATORY)
"""Headers of a sender that stay behind in a copy."""

QUEUE_PREFIX: Final = "/queue/"

_NOT_IN_KEYS: Final = re.compile(r"[\0\ud800-\udfff]")
"""NUL, and surrogates: JSON can escape one by itself, which no name on the wire or on disk could have."""

Lines = list[tuple[str, str]]


def further_keys(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The routing keys that a SEND has besides that of its destination. Raises Refused."""
    text = headers.get(ROUTING_KEYS)
    if text is None:
        return ()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(map(_is_key, found)):
        raise Refused("bad-header", f"The header {ROUTING_KEYS} is a JSON array of routing keys.")
    if len(found) > FURTHER_KEYS_MAX:
        raise Refused("bad-header", f"A message has at most {FURTHER_KEYS_MAX} further routing keys.")
    return tuple(found)


def _is_key(value: object) -> bool:
    return isinstance(value, str) and _NOT_IN_KEYS.search(value) is None


def destination_with(destination: str, key: str) -> str:
    """Where a SEND to `destination` goes by one of its further keys. Raises Refused if no SEND can go there."""
    if destination.startswith(PREFIX):
        exchange = f"{PREFIX}{split_exchange(destination)[0]}"
        found = f"{exchange}/{key}" if key else exchange
    else:
        found = f"{QUEUE_PREFIX}{key}"
    if is_pattern(found) or found == QUEUE_PREFIX:
        raise Refused("bad-destination", f"A further routing key has no * and #, and a queue has a name: {key!r}.")
    check_name(found)
    return found


def matching_queues(
    routing: RoutingTable, destination: str, headers: Mapping[str, str], further: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The queues whose bindings match a SEND to an exchange, which may not exist. Bindings compare the headers that
    travel. Raises Refused if that costs too much (`ROUTE_COST_MAX`).
    """
    name, key = split_exchange(destination)
    sent = {header: value for header, value in headers.items() if header not in OWN_HEADERS}
    return routing.queues_of_exchange(name, key, sent, further, ROUTE_COST_MAX)


def queues_of_exchange(
    routing: RoutingTable, destination: str, headers: Mapping[str, str], further: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The queues that a SEND to an exchange is copied to. Raises Refused if the exchange does not exist or is internal,
    and for a message that must be routed and is not."""
    name, _ = split_exchange(destination)
    if name not in routing.exchanges:
        raise Refused("unknown-destination", f"There is no exchange {name}: declare it first.")
    if routing.exchanges[name].internal:
        raise Refused("not-allowed", f"The exchange {name} is internal: only bindings of other exchanges send to it.")
    queues = matching_queues(routing, destination, headers, further)
    if not queues and is_said(headers, MANDATORY):
        raise Refused("unroutable", f"No binding of the exchange {name} matches this message.")
    return queues


def bound_copies(
    rules: Rules,
    kind: DestinationKind,
    destination: str,
    queues: Iterable[str],
    lines: Lines,
    headers: Mapping[str, str],
    *,
    is_retry: bool,
) -> tuple[Envelope, ...]:
    """The envelopes of the copies in `queues` of a SEND with these headers, of which `lines` go with its records.

    They are durable where their queue is, unless the sender of a message that is kept nowhere else asks for memory.
    """
    is_kept = kind is DestinationKind.FANOUT or is_persistent(headers)
    added = _source_lines(kind, destination)
    if kind is DestinationKind.EXCHANGE:
        added = added + _delay_lines(rules.routing, destination, headers)
    if added:
        lines = [line for line in lines if line[0] not in OF_COPIES] + added
    return tuple(
        [
            Envelope(
                queue,
                DestinationKind.QUEUE,
                queue_block(rules, queue, lines, headers, is_retry=is_retry),
                is_kept and rules.policy(queue)[1],
            )
            for queue in queues
        ]
    )


def queue_block(rules: Rules, queue: str, lines: Lines, headers: Mapping[str, str], *, is_retry: bool) -> bytes:
    """The header block of a message in `queue`: `lines`, and what its policy adds to the `headers` of the SEND."""
    added = unsaid(headers, rules.defaults(queue))
    return encode_headers([*lines, *added, *(RETRIED if is_retry else ())], Version.V12)


def level_of_copies(rules: Rules, copies: Iterable[Envelope], asked: int | None) -> int:
    """The level of receipts about a message that has only these copies: what was `asked` for, or the strongest of
    their queues. FSYNC where none is durable."""
    levels = [rules.level(copy.destination) for copy in copies if copy.durable]
    return asked if levels and asked is not None else strongest(levels)


def _delay_lines(routing: RoutingTable, destination: str, headers: Mapping[str, str]) -> Lines:
    """The delay of the copies of a message to an exchange with `delayed`. Raises Refused."""
    exchange = routing.exchanges.get(split_exchange(destination)[0])
    text = headers.get(DELAY)
    if text is None or exchange is None or not exchange.delayed:
        return []
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20 or int(text) > MILLISECONDS_MAX:
        raise Refused("bad-header", f"The header {DELAY} is a whole number of milliseconds.")
    # As of the plugin: consumers that forward a message have its delay below 0.
    return [("delay", text)] if int(text) > 0 else []


def _source_lines(kind: DestinationKind, destination: str) -> Lines:
    """The headers that say where a copy comes from."""
    if kind is not DestinationKind.EXCHANGE:
        return [(ORIGINAL, destination)]
    if not destination.startswith(PREFIX):
        # It names a queue, and there are others: each has it as if it was sent there.
        return []
    name, key = split_exchange(destination)
    return [(EXCHANGE, name), (ROUTING_KEY, key)]
