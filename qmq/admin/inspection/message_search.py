"""Search the stores of this node for one message, by its dot: the message itself, and the records that name it.

Blocking: run it in a worker thread. Nothing here is indexed by dot alone, so a search reads the journal from near the
message on. It is bounded by `SEARCH_BYTES_MAX`, and says up to where it has looked.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final

from qmq.model.dots import Dot, Origin
from qmq.storage.format.batch import batch_records
from qmq.storage.format.failure_records import unpack_attempts, unpack_dead
from qmq.storage.format.record import Record, RecordKind, unpack_dots
from qmq.storage.store import Store

SEARCH_BYTES_MAX: Final = 1 << 30
"""Of the journal, for one search."""
READ_BYTES: Final = 1 << 20
FANOUT_PAGES_MAX: Final = 200
"""Pages of one fanout that are read for one message."""

_REASON: Final = re.compile(rb"^dead-letter-reason:([^\n]*)$", re.MULTILINE)

Event = dict[str, Any]


@dataclass(slots=True)
class JournalTrace:
    """What the journal says of one message. `is_whole`: the search read to the end of the journal."""

    record: Record | None = None
    events: list[Event] = field(default_factory=list)
    is_whole: bool = True


def parse_message_id(text: str) -> Dot:
    """The dot of a durable message. Raises ValueError for anything else, memory-only messages included."""
    origin, _, sequence = text.rpartition("-")
    node, _, incarnation = origin.rpartition("-")
    if not node or len(incarnation) != 16 or not sequence.isascii() or not sequence.isdigit():
        raise ValueError(f"not the message-id of a durable message: {text!r}")
    return Dot(Origin(node, int(incarnation, 16)), int(sequence))


def is_message_id(text: str) -> bool:
    """Whether a message can have this id, also a memory-only one."""
    origin, _, sequence = text.rpartition("-")
    try:
        return parse_message_id(f"{origin}-{sequence.removeprefix('m')}").sequence > 0
    except ValueError:
        return False


def search_journal(store: Store, dot: Dot) -> JournalTrace:
    """The record of the message `dot`, and the events that later records say of it, in the order of the journal."""
    found = JournalTrace()
    vector = {**store.journal.vector(), dot.origin: dot.sequence - 1}
    position = begin = store.journal.seek(vector)
    while batches := store.journal.read(position, READ_BYTES):
        for start, head, data in batches:
            position = start + head.size
            for record in batch_records(data):
                _note(found, dot, head.origin, record)
        if position - begin > SEARCH_BYTES_MAX:
            found.is_whole = False
            break
    return found


def _note(found: JournalTrace, dot: Dot, origin: Origin, record: Record) -> None:
    kind = record.kind
    event: Event = {"node": origin.node, "at_us": record.timestamp_us, "record": str(Dot(origin, record.sequence))}
    if record.sequence == dot.sequence and origin == dot.origin:
        found.record = record
        event |= {"event": "accepted", "destination": record.destination}
        if kind == RecordKind.DEAD:
            event["from"] = str(unpack_dead(record.body)[1])
        found.events.append(event)
    elif kind == RecordKind.SETTLE:
        if dot in unpack_dots(record.body):
            found.events.append({**event, "event": "settled"})
    elif kind == RecordKind.DEAD or kind == RecordKind.PUBLISH:
        # A dead letter that was moved still has the headers of the first time.
        headers = record.headers
        is_dead_letter = b"dead-letter-id:" in headers and b"dead-letter-id:%b\n" % str(dot).encode() in headers
        # Of several dead letters, all but the last are records that settle nothing.
        if unpack_dead(record.body)[1] == dot if kind == RecordKind.DEAD else is_dead_letter:
            what = "dead-lettered" if is_dead_letter else "moved"
            copy = {"destination": record.destination, "as": str(Dot(origin, record.sequence))}
            reason = _REASON.search(record.headers) if is_dead_letter else None
            copy |= {"reason": reason[1].decode("utf-8", "replace")} if reason is not None else {}
            found.events.append({**event, "event": what, **copy})
    elif kind == RecordKind.ATTEMPTS:
        count = dict(unpack_attempts(record.body)).get(dot)
        if count is not None:
            found.events.append({**event, "event": "failed", "deliveries": count})


def record_in_fanouts(store: Store, dot: Dot) -> Record | None:
    """The record of the message `dot` if a fanout log has it."""
    vector = {**store.journal.vector(), dot.origin: dot.sequence - 1}
    for destination in store.fanouts():
        position = store.fanout_after(destination, vector)
        for _ in range(FANOUT_PAGES_MAX):
            page = store.fanout_page(destination, position, READ_BYTES)
            for origin, record in page.rows:
                if record.sequence == dot.sequence and origin == dot.origin:
                    return record
            if page.at_end:
                break
            position = page.position
    return None
