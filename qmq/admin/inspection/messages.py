"""Messages that an operator looks at: a page of a destination, one message by its id, and what has become of one.

Nothing is consumed. All of it is what this node has: the durable messages of all nodes, and its own memory-only ones
(`qmq.admin.mesh_messages` asks the other nodes).
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Final

import trio
from msgspec import Struct

from qmq.admin.inspection.message_search import JournalTrace, parse_message_id, record_in_fanouts, search_journal
from qmq.broker.messages.destination import DestinationKind, kind_of
from qmq.broker.messages.message import Message
from qmq.broker.selectors import properties_of
from qmq.engine.checkpoint.queue_pager import FAR_US
from qmq.engine.parts import EngineParts
from qmq.errors import Refused
from qmq.mesh.peers.calls import AdminQuery, Count, Facts, Row, Text
from qmq.model.dots import Dot
from qmq.model.members import Membership
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.delivery.browsing import queue_levels
from qmq.storage.format.failure_records import unpack_dead
from qmq.storage.format.record import Record, RecordKind

UNKNOWN_MESSAGE: Final = "unknown-message"

PEER_ROWS_BYTES: Final = 256 << 10
"""Of memory-only messages in one response to a peer, as JSON, approximately."""
PEER_BODY_BYTES: Final = 64 << 10
"""A longer body is left out of it; `body_bytes` says how long it is."""
RECORDS_MAX: Final = 1000
"""Records that one trace asks about."""

LOOKED_AT_ONCE: Final = 10_000
"""Messages in memory that are looked at before other tasks get a turn, some 2 ms."""

PEEK_BYTES_MAX: Final = 1 << 20
"""Of bodies and headers in one page, approximately; a page has at least one message."""

NOT_HEADERS: Final = ("destination", "persistent")
"""What a selector sees beside the headers of the sender."""


class MemoryMessages(Struct, frozen=True):
    """`held`: how many memory-only messages of the queue a node has; `more`: some are behind the rows."""

    rows: list[Row]
    more: bool
    held: Count


class MemoryMessagesCall(AdminQuery[MemoryMessages], frozen=True):
    """The first `count` memory-only messages of a queue, each node behind its own offset."""

    name: ClassVar = "memory-messages"
    queue: Text
    count: Count
    offsets: dict[str, Count] = {}


class Whereabouts(Struct, frozen=True):
    """Whether a node has the record of a message on disk, and which consumers there have it in flight.

    `settled_by`: for those of the records in question that the node wrote, the connections behind each.
    """

    has_record: bool
    in_flight: list[Row]
    settled_by: dict[str, list[Row]] = {}


class WhereaboutsCall(AdminQuery[Whereabouts], frozen=True):
    """What a node says of the present of a message, and of records about it."""

    name: ClassVar = "whereabouts"
    id: Text
    records: list[Text] = []


class _Page:
    """The first messages of a destination, up to the bounds; `is_full`: there are more."""

    def __init__(self, count: int) -> None:
        self.messages: list[Message] = []
        self.is_full = False
        self._count = count
        self._bytes = 0

    def add(self, message: Message) -> None:
        if len(self.messages) >= self._count or self._bytes >= PEEK_BYTES_MAX:
            self.is_full = True
        if not self.is_full:
            self.messages.append(message)
            self._bytes += len(message.body) + len(message.envelope.headers)


class Messages:
    """Those of one node."""

    def __init__(self, engine: EngineParts, membership: Membership, sessions: Mapping[int, ClientSession]) -> None:
        self._engine = engine
        self._membership = membership
        self._sessions = sessions

    async def peek(self, destination: str, count: int, offset: int = 0) -> Facts:
        """The first `count` messages of a queue or fanout behind `offset`, or the retained message of a topic.

        Raises Refused.
        """
        kind = kind_of(destination)
        page = _Page(count)
        if kind is DestinationKind.QUEUE:
            await self._queue_messages(destination, page, offset)
        elif kind is DestinationKind.FANOUT:
            await self._fanout_messages(destination, page, offset)
        elif kind is DestinationKind.TOPIC:
            retained = self._engine.broker.retained
            value = retained.older(destination, retained.change)
            page.messages = [] if value is None or offset else [value]
        else:
            raise Refused("not-supported", f"Only queues, topics and fanouts keep messages, not {destination}.")
        rows = self._rows(page)
        return {"messages": len(rows), "more": page.is_full, "rows": rows}

    async def memory_rows(self, queue: str, count: int, offset: int = 0) -> MemoryMessages:
        """The first `count` memory-only messages of a queue behind the first `offset` that this node has, in the order
        of delivery.
        """
        page = _Page(count)
        held = 0
        for number, one in enumerate(self._engine.broker.bulk_settlement.in_memory(queue), 1):
            if number % LOOKED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if one.sequence < 0 and not one.settled:
                held += 1
                if held > offset:
                    page.add(one)
        return MemoryMessages(self._rows(page), page.is_full, held)

    async def memory_messages(self, call: MemoryMessagesCall) -> MemoryMessages:
        """The same, as much of it as a response may have."""
        found = await self.memory_rows(call.queue, call.count, call.offsets.get(self._engine.broker.origin.node, 0))
        kept: list[Row] = []
        size = 0
        for row in found.rows:
            if row["body_bytes"] > PEER_BODY_BYTES:
                take_body(row)
            kept.append(row)
            size += len(json.dumps(row))
            if size >= PEER_ROWS_BYTES:
                break
        return MemoryMessages(kept, found.more or len(kept) < len(found.rows), found.held)

    async def _queue_messages(self, queue: str, found: _Page, offset: int) -> None:
        """Durable ones, in the order of delivery, node after node within a priority."""
        await self._engine.bring_up_stores()
        broker, store = self._engine.broker, self._engine.store
        nodes = [self._engine.broker.origin.node, *sorted(self._membership.peers)]
        levels = await self._engine.environment.run_blocking(queue_levels, store, nodes, queue, FAR_US)
        for priority, node, limit in levels:
            after: Dot | None = None
            exact = 0
            if offset:
                skip = partial(store.queues.skip, node, queue, priority, offset)
                after, exact, skipped = await self._engine.environment.run_blocking(skip)
                offset -= skipped
            while not found.is_full:
                page = partial(store.queues.page, node, queue, priority, after, FAR_US, limit, exact)
                rows = await self._engine.environment.run_blocking(page)
                self._engine.damage.check()
                for row in rows:
                    message = self._engine.replay.message_of_row(row)
                    if message is not None and not broker.queues.paging.is_settled(queue, row.dot):
                        found.add(message)
                if len(rows) < limit:
                    break
                after, exact = rows[-1].dot, rows[-1].exact

    async def _fanout_messages(self, destination: str, found: _Page, offset: int) -> None:
        await self._engine.path.flushed()
        store, run_blocking = self._engine.store, self._engine.environment.run_blocking
        position, skip = store.fanout_start(destination), 0
        if offset:
            begin = await run_blocking(store.fanout_begin, destination, "behind", offset)
            position, skip = begin.position, begin.skip
        while not found.is_full:
            page = await run_blocking(store.fanout_page, destination, position, PEEK_BYTES_MAX // 4)
            for origin, record in page.rows[skip:]:
                message = self._engine.replay.message_of(origin, record)
                if message is not None:
                    found.add(message)
            skip = 0
            if page.at_end:
                break
            position = page.position

    async def get(self, message_id: str) -> Facts:
        """One durable message by its id, with its body. Raises Refused if this node does not have it any more."""
        dot = _dot_of(message_id)
        message, is_unsettled, _ = await self._find(dot)
        if message is None:
            raise Refused(UNKNOWN_MESSAGE, f"This node has no message {message_id} any more, or never had it.")
        if message.envelope.kind is DestinationKind.FANOUT:
            state = "kept"
        elif is_unsettled:
            state = self._state(message, self._in_flight([message]), self._engine.environment.now_us())
        else:
            state = "settled"
        return {"destination": message.envelope.destination, "messages": 1, "rows": [self._row(message, state)]}

    async def trace(self, message_id: str) -> Facts:
        """What this node's journal says of one message. Raises Refused for what is no message-id.

        `is_whole`: the search has read to the end of the journal. Each event names its `record`.
        """
        dot = _dot_of(message_id)
        message, is_unsettled, found = await self._find(dot)
        return {
            "messages": int(message is not None),
            "destination": "" if message is None else message.envelope.destination,
            "unsettled": is_unsettled,
            "events": found.events,
            "is_whole": found.is_whole,
        }

    def whereabouts(self, call: WhereaboutsCall) -> Whereabouts:
        """The reply of this node. Raises Refused for what is no message-id."""
        dot = _dot_of(call.id)
        consumers: list[Row] = []
        for delivery in self._engine.broker.queues.deliveries.values():
            if delivery.message.dot == dot:
                session = self._sessions.get(delivery.subscription.session)
                address = "" if session is None else session.peer_address
                user = "" if session is None else session.user or ""
                name = f"{self._engine.broker.origin.node}/{delivery.subscription.session}"
                consumers.append({"connection": name, "user": user, "address": address})
        settled_by: dict[str, list[Row]] = {}
        for record in call.records[:RECORDS_MAX]:
            its = _dot_of(record)
            found = self._engine.recent_settles.by(its.sequence) if its.origin == self._engine.broker.origin else []
            if found:
                settled_by[record] = found
        return Whereabouts(self._engine.path.durable_vector().get(dot.origin, 0) >= dot.sequence, consumers, settled_by)

    async def _find(self, dot: Dot) -> tuple[Message | None, bool, JournalTrace]:
        """The message, whether it is an unsettled message of a queue, and what the journal says of it."""
        await self._engine.bring_up_stores()
        run_blocking = self._engine.environment.run_blocking
        broker = self._engine.broker
        message = broker.queues.owned.by_origin.get(dot.origin, {}).get(dot.sequence)
        if message is None:
            unsettled = self._engine.store.queues.unsettled
            rows = await run_blocking(unsettled, dot.origin, dot.sequence - 1, dot.sequence, 1)
            for row in rows:
                if not broker.queues.paging.is_settled(row.queue, dot):
                    message = self._engine.replay.message_of_row(row)
        is_unsettled = message is not None
        found = await run_blocking(search_journal, self._engine.store, dot)
        if message is None:
            record = found.record or await run_blocking(record_in_fanouts, self._engine.store, dot)
            message = None if record is None else self._message_of(dot, record)
        return message, is_unsettled, found

    def _message_of(self, dot: Dot, record: Record) -> Message | None:
        if record.kind == RecordKind.PUBLISH:
            return self._engine.replay.message_of(dot.origin, record)
        if record.kind != RecordKind.DEAD:
            return None
        message = self._engine.replay.message_of(dot.origin, record)
        if message is not None:
            message.body = unpack_dead(record.body)[2]
        return message

    def _in_flight(self, messages: list[Message]) -> set[Dot]:
        """Which of these are with consumers of this node, or lent to a peer by it."""
        queues = self._engine.broker.queues
        dots = {message.dot for message in messages}
        names = {message.envelope.destination for message in messages}
        consumed = {one.message.dot for name in names for one in queues.in_flight_of(name)}
        lent = queues.owned.lent.values()
        return {dot for dot in dots if dot in consumed or any(dot in one for one in lent)}

    def _state(self, message: Message, consumed: set[Dot], now_us: int) -> str:
        if message.envelope.kind is not DestinationKind.QUEUE:
            return "kept"
        if message.dot in consumed:
            return "in-flight"
        options = message.envelope.options
        if options is not None and options.is_timed:
            clocks = self._engine.broker.queues.shared.clocks
            if 0 < clocks.expiry(message) <= now_us:
                return "expired"
            if clocks.due(message) > now_us:
                return "delayed"
        return "waiting"

    def _rows(self, page: _Page) -> list[Facts]:
        consumed = self._in_flight(page.messages)
        now_us = self._engine.environment.now_us()
        return [self._row(message, self._state(message, consumed, now_us)) for message in page.messages]

    def _row(self, message: Message, state: str) -> Facts:
        envelope = message.envelope
        headers = {name: value for name, value in properties_of(envelope).items() if name not in NOT_HEADERS}
        return {
            "message_id": message.message_id,
            "destination": envelope.destination,
            "node": message.origin.node,
            "at_us": message.timestamp_us,
            "state": state,
            "failed_deliveries": max(message.attempts, 0),
            "headers": headers,
            "body_bytes": len(message.body),
            **fields_of_body(message.body),
        }


def _dot_of(message_id: str) -> Dot:
    try:
        return parse_message_id(message_id)
    except ValueError as error:
        raise Refused("bad-message-id", f"{message_id!r} is not the message-id of a durable message.") from error


def take_body(row: Facts) -> bytes:
    """Take the body out of a row."""
    text = row.pop("body", None)
    return b64decode(row.pop("body_base64", "")) if text is None else str(text).encode()


def fields_of_body(body: bytes) -> Facts:
    """The inverse: the field of a row that has the body."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}
