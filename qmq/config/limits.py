"""Every bound of a node: unit in the name, default, and why it is that much. docs/limits.md says what happens at each.

The names of the frame limits are those of `qmq.wire.stomp.Limits`, so that the server hands them on by name.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from .model import Count, CountOrUnbounded, Seconds, Section, Size, SizeOrUnbounded, read_size

BODY_BYTES_CEILING = 16 << 20
"""No setting lifts a body above this: a frame is held in memory as a whole."""

HEADER_BYTES_CEILING = 1 << 20
"""Nor what comes before a body: it is in one record with it, and a record in one batch."""

TRANSACTION_BYTES_CEILING = 24 << 20
"""Nor a transaction above this: it is one batch, and a batch is bounded by the storage format."""

HEARTBEAT_FLOOR_MS_MIN = 10
"""Beats more frequent than this cost more than they tell."""


LineSize = Annotated[int, BeforeValidator(read_size), Field(ge=16, le=HEADER_BYTES_CEILING)]
"""As Size, with room for at least one header or command."""


class LimitSettings(Section):
    """`[limits]`: what one client, one destination and the whole node may take."""

    # Before login: whoever can reach the port can cost this much, and no more.
    login_seconds: Seconds = 5.0
    """From accept to CONNECTED, TLS and the wait for a password check included. A client on a slow line needs one round
    trip or three."""
    login_bytes_max: LineSize = 8 << 10
    """Everything sent until CONNECT is complete; the largest CONNECT of the stock clients is under 1 KiB."""
    logins_pending_max: Count = 400
    """Connections that have not logged in yet, on the whole node."""
    logins_pending_per_address_max: Count = 200
    """Of these, from one address; beyond either the oldest silent one goes (`qmq.server.clients.admission`)."""

    # Connections.
    connections_max: Count = 10_000
    """On the whole node; each takes a descriptor and some 50 KiB."""
    connections_per_address_max: Count = 1_000
    """From one IP address; a host of workers, or many behind one gateway, stay below."""
    connections_per_user_max: Count = 1_000
    """With one login name. Anonymous clients count by address only."""

    # Frames, in the codec's names.
    command_bytes_max: LineSize = 32
    """The longest command of STOMP has 11."""
    header_line_bytes_max: LineSize = 8 << 10
    header_count_max: Count = 100
    header_bytes_max: LineSize = 64 << 10
    """The whole header block of one frame."""
    body_bytes_max: Annotated[int, BeforeValidator(read_size), Field(ge=1, le=BODY_BYTES_CEILING)] = 1 << 20
    """Larger things belong in a file store, with their address in the message; 16 MiB is the ceiling."""
    destination_bytes_max: Annotated[int, Field(ge=16, le=1024)] = 255
    """Also a file name's limit on most file systems."""

    # Of one connection.
    subscriptions_max: Count = 100
    transactions_max: Count = 10
    """Open at once."""
    transaction_frames_max: Count = 1_000
    """Held in memory until COMMIT."""
    transaction_bytes_max: Annotated[int, BeforeValidator(read_size), Field(ge=1, le=TRANSACTION_BYTES_CEILING)] = (
        16 << 20
    )
    """As above, in bytes of bodies and headers, over all open transactions of the connection."""
    prefetch_default: Count = 100
    """Credit of a queue subscription that names none: enough for a slow line, little to redeliver."""
    prefetch_max: Count = 1_000
    """More is cut down to this, not refused."""
    outbox_bytes_max: Size = 16 << 20
    """Bytes encoded for one client and not yet taken by its socket; also a topic subscription's buffer."""
    subscriber_buffer_bytes_default: Size = 4 << 20
    """How far a fanout subscription may fall behind in memory before it reads the log instead."""

    # Heart-beats.
    heartbeat_floor_ms: Annotated[int, Field(ge=HEARTBEAT_FLOOR_MS_MIN, le=86_400_000)] = 250
    """A client that asks for beats more frequent than this gets this."""
    heartbeat_grace: Annotated[float, Field(ge=1, le=100)] = 2.0
    """Factor: a client is gone after this many of its own intervals in silence (STOMP 1.2, "Heart-beating")."""

    # Of the node.
    memory_bytes_max: SizeOrUnbounded = 0
    """What all connections together may make the node hold; 0 = a quarter of what the machine, or the control group of
    the node, has."""
    destinations_max: Count = 100_000
    """Destinations that live at once; each unused one is forgotten."""
    pattern_words_max: Count = 200_000
    """Words of all topic patterns with wildcards that have a subscriber; each costs some 400 bytes."""
    selector_parts_max: Count = 200_000
    """Headers, values, operators and LIKE steps of all different selectors: what one message can make the node ask."""
    durable_subscriptions_max: Count = 1_000
    """Names of durable fanout subscriptions that the mesh knows, used or not; their cursors are kept in memory."""
    commit_pending_bytes_max: Size = 16 << 20
    """Decided and not yet on disk; the one place where a fast sender waits."""
    queue_messages_max: CountOrUnbounded = 0
    """In one queue, unless its policy says otherwise; 0 = no bound."""
    queue_bytes_max: SizeOrUnbounded = 0
    """As above, in bytes of bodies."""
    queue_messages_in_memory_max: Annotated[int, Field(ge=1_000)] = 10_000
    """Of all queues together, beyond what is with consumers; a checkpoint leaves the rest to the queue store."""
    queue_bytes_in_memory_max: Annotated[Size, Field(ge=1 << 20)] = 64 << 20
    """The same in bytes of their bodies: whichever is reached first counts."""
    queue_memory_bytes_max: Size = 256 << 20
    """Queue messages that live in memory only, of all queues together: bodies, and some 400 bytes for each."""
    retained_topics_max: Count = 100_000
    """Topics whose last value is kept; each costs some 700 bytes beside its value."""
    retained_bytes_max: Size = 64 << 20
    """Names, headers and bodies of all last values together; they are in the memory of every node."""
    drain_seconds: Seconds = 10.0
    """From SIGTERM until open connections are closed anyway."""
    farewell_seconds: Seconds = 2.0
    """For the last frame to a client that is being closed, so that it can read why."""

    @field_validator("outbox_bytes_max")
    @classmethod
    def _has_room_for_some_messages(cls, outbox: int, info: ValidationInfo) -> int:
        least = 4 * int(info.data.get("body_bytes_max", 0))
        if outbox < least:
            raise ValueError(f"must be at least four times body_bytes_max, {least}")
        return outbox

    @field_validator("prefetch_max")
    @classmethod
    def _default_fits(cls, most: int, info: ValidationInfo) -> int:
        default = info.data.get("prefetch_default", 0)
        if most < default:
            raise ValueError(f"must be at least prefetch_default, {default}")
        return most
