"""Every limit of a node: unit in the name, default and reason. docs/limits.md says what happens at each limit.

The frame limits have the names of `qmq.wire.stomp.Limits`, so the server passes them on by name.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from qmq.section import (
    ByteRate,
    Count,
    CountOrUnbounded,
    Seconds,
    Section,
    Size,
    SizeOrUnbounded,
    check_at_least,
    read_size,
)

BODY_BYTES_CEILING = 16 << 20
"""The highest limit of a body: a frame is held in memory as a whole."""

HEADER_BYTES_CEILING = 1 << 20
"""The highest limit of headers: they are in one record with the body, and a record is in one batch."""

TRANSACTION_BYTES_CEILING = 24 << 20
"""The highest limit of a transaction: it is one batch, and the storage format bounds a batch."""

DESCRIPTORS_KEPT = 256
"""Open files beside the connections, for files and peers: a journal that cannot open its next segment ends the node."""

HEARTBEAT_FLOOR_MS_MIN = 10
"""Heart-beats at a shorter interval cost more than they help."""


LineSize = Annotated[int, read_size, Meta(ge=16, le=HEADER_BYTES_CEILING)]
"""As Size, with room for at least one header or command."""


class LimitSettings(Section):
    """`[limits]`: what one client, one destination and the whole node may use."""

    # Before login: the most that any program can cost that reaches the port.
    login_seconds: Seconds = 5.0
    """From accept to CONNECTED, including TLS and the password check. A client on a slow line needs one to three round
    trips."""
    login_bytes_max: LineSize = 8 << 10
    """All bytes until CONNECT is complete; the largest CONNECT of stock clients is under 1 KiB."""
    logins_pending_max: Count = 400
    """Connections that have not logged in yet, on the whole node."""
    logins_pending_per_address_max: Count = 200
    """Of these, from one address; beyond either limit the oldest silent one is closed
    (`qmq.sessions.clients.admission`)."""

    # Connections.
    connections_max: Count = 10_000
    """On the whole node; each needs a descriptor and some 50 KiB."""
    connections_per_address_max: Count = 1_000
    """From one IP address; a host of workers, or many clients behind one gateway, stay below."""
    connections_per_user_max: Count = 1_000
    """With one login name. Anonymous clients count by address only."""

    # Of all clients of one address together; 0 = no limit. Those of users are definitions.
    subscriptions_per_address_max: CountOrUnbounded = 0
    messages_per_second_per_address_max: CountOrUnbounded = 0
    """SENDs. A faster client is not read for a while."""
    bytes_per_second_per_address_max: ByteRate = 0
    """Everything that is read."""

    # Frames, with the names of the codec.
    command_bytes_max: LineSize = 32
    """The longest command of STOMP has 11."""
    header_line_bytes_max: LineSize = 8 << 10
    header_count_max: Count = 100
    header_bytes_max: LineSize = 64 << 10
    """The whole header block of one frame."""
    body_bytes_max: Annotated[int, read_size, Meta(ge=1, le=BODY_BYTES_CEILING)] = 1 << 20
    """Put larger data into a file store, and its address into the message; 16 MiB is the ceiling."""
    destination_bytes_max: Annotated[int, Meta(ge=16, le=1024)] = 255
    """Also the limit of a file name on most file systems."""

    # Of one connection.
    subscriptions_max: Count = 100
    transactions_max: Count = 10
    """Open at once."""
    transaction_frames_max: Count = 1_000
    """Held in memory until COMMIT."""
    transaction_bytes_max: Annotated[int, read_size, Meta(ge=1, le=TRANSACTION_BYTES_CEILING)] = 16 << 20
    """The same in bytes of bodies and headers, over all open transactions of the connection."""
    prefetch_default: Count = 100
    """Credit of a queue subscription without its own: enough for a slow line, and little to redeliver."""
    prefetch_max: Count = 1_000
    """A higher value is reduced to this, not refused."""
    outbox_bytes_max: Size = 16 << 20
    """Bytes encoded for one client and not yet accepted by its socket; also the buffer of a topic subscription."""
    subscriber_buffer_bytes_default: Size = 4 << 20
    """How far a fanout subscription may fall behind in memory before it reads the log instead."""

    # Heart-beats.
    heartbeat_floor_ms: Annotated[int, Meta(ge=HEARTBEAT_FLOOR_MS_MIN, le=86_400_000)] = 250
    """A client that asks for a shorter interval gets this one."""
    heartbeat_grace: Annotated[float, Meta(ge=1, le=100)] = 2.0
    """Factor: a client counts as dead after so many of its own intervals in silence (STOMP 1.2, "Heart-beating")."""

    # Of the node.
    memory_bytes_max: SizeOrUnbounded = 0
    """Memory that all connections together may make the node hold; 0 means a quarter of the memory of the machine, or
    of the control group of the node."""
    destinations_max: Count = 100_000
    """Destinations in use at once; unused ones do not count."""
    pattern_words_max: Count = 200_000
    """Words of all topic patterns with wildcards that have a subscriber; each costs some 400 bytes."""
    selector_parts_max: Count = 200_000
    """Headers, values, operators and LIKE steps of all different selectors: the cost that one message can cause."""
    durable_subscriptions_max: Count = 1_000
    """Names of durable fanout subscriptions that the mesh knows, used or not; their cursors are kept in memory."""
    commit_pending_bytes_max: Size = 16 << 20
    """Decided and not yet on disk; beyond it a fast sender waits."""
    queue_messages_max: CountOrUnbounded = 0
    """In one queue, unless its policy says otherwise; 0 = no bound."""
    queue_bytes_max: SizeOrUnbounded = 0
    """The same in bytes of bodies."""
    queue_messages_in_memory_max: Annotated[int, Meta(ge=1_000)] = 10_000
    """Of all queues together, without messages in flight; a checkpoint evicts the rest to the queue store."""
    queue_bytes_in_memory_max: Annotated[Size, Meta(ge=1 << 20)] = 64 << 20
    """The same in bytes of bodies; the limit that is reached first counts."""
    queue_memory_bytes_max: Size = 256 << 20
    """Memory-only messages of all queues together: bodies, and some 400 bytes for each."""
    retained_topics_max: Count = 100_000
    """Topics whose last value is kept; each costs some 700 bytes in addition to its value."""
    retained_bytes_max: Size = 64 << 20
    """Names, headers and bodies of all last values together; every node has them in memory."""
    drain_seconds: Seconds = 10.0
    """From SIGTERM until open connections are closed in any case."""
    farewell_seconds: Seconds = 2.0
    """For the last frame to a client before its connection closes, so that it can read the reason."""

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        if key == "outbox_bytes_max":
            least = 4 * int(seen.get("body_bytes_max", 0))
            if value < least:
                raise ValueError(f"must be at least four times body_bytes_max, {least}")
        elif key == "prefetch_max":
            check_at_least(value, "prefetch_default", seen)
