"""The options of `connect` and `subscribe`, the same in every style of program, and what they are made into."""

import random
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from qmq.client.core.core import Core, Passcode
from qmq.client.core.encode import Headers, encode_connect, encode_subscribe
from qmq.client.core.feed import AckMode, Feed, kind_of
from qmq.client.core.rotation import Rotation
from qmq.client.core.vectors import Progress, parse_progress
from qmq.client.tracing import NoTracing, Tracing

PREFETCH = 100
BUFFER_BYTES = 4 << 20
WINDOW_MESSAGES = 256
WINDOW_BYTES = 4 << 20


class ConnectOptions(TypedDict, total=False):
    """Of `connect`, all by name; docs/client.md has the defaults."""

    login: str | None
    passcode: Passcode
    """Or a function that returns it at each login, and does not block."""
    client_id: str
    """The first half of the names of durable subscriptions."""
    tls: ssl.SSLContext | None
    beat_seconds: float
    """The heart-beat requested in both directions, 0 for none: a node silent for twice that is left."""
    connect_timeout_seconds: float
    """For the first login, at whatever node; `math.inf` waits without limit."""
    attempt_seconds: float
    """For one dial and its login."""
    redial_seconds_min: float
    redial_seconds_max: float
    """When all nodes have failed, a random part of a wait follows, which doubles from one to the other."""
    farewell_seconds: float
    """At the end of the block, for earlier sends to arrive. After an exception or a cancel the connection is cut."""
    window_messages: int
    window_bytes: int
    """Sent and not confirmed."""
    tracing: Tracing | None
    """Observes what is sent and processed, such as `qmq.client.opentelemetry.OpenTelemetry()`."""


class SubscribeOptions(TypedDict, total=False):
    """Of `Client.subscribe`, all by name; docs/client.md has the defaults."""

    ack: Literal["auto", "client", "client-individual"]
    prefetch: int
    buffer_bytes: int
    start: str
    durable: str
    overflow: Literal["error", "drop-oldest"]
    ack_level: Literal["edge", "quorum"] | None
    headers: Headers | None


QUEUES = ("queue", "durable subscription")

APPLIES_TO = {
    "ack": QUEUES,
    "prefetch": QUEUES,
    "ack_level": QUEUES,
    "confirm": QUEUES,
    "buffer_bytes": ("topic", "fanout"),
    "start": ("fanout", "durable subscription"),
    "overflow": ("topic",),
}
"""Options of `subscribe` by what they have an effect on. `ack="auto"` is true of topics and fanouts, too."""


@dataclass(frozen=True, slots=True)
class ConnectPlan:
    """What `connect` was asked for, checked."""

    core: Core
    rotation: Rotation
    tls: ssl.SSLContext | None
    attempt_seconds: float
    connect_timeout_seconds: float
    farewell_seconds: float
    tracing: Tracing


def plan(
    addresses: str | Iterable[str],
    *,
    rng: random.Random | None = None,
    login: str | None = None,
    passcode: Passcode = None,
    client_id: str = "",
    tls: ssl.SSLContext | None = None,
    beat_seconds: float = 5.0,
    connect_timeout_seconds: float = 30.0,
    attempt_seconds: float = 5.0,
    redial_seconds_min: float = 0.1,
    redial_seconds_max: float = 10.0,
    farewell_seconds: float = 5.0,
    window_messages: int = WINDOW_MESSAGES,
    window_bytes: int = WINDOW_BYTES,
    tracing: Tracing | None = None,
    **unknown: object,
) -> ConnectPlan:
    """Raises ValueError, TypeError and LocalProtocolError, as `connect`. `rng` is for tests."""
    _check_names("connect", unknown, ConnectOptions)
    if not (tls is None or isinstance(tls, ssl.SSLContext)):
        raise TypeError(f"tls must be an ssl.SSLContext, not {type(tls).__name__}")
    if window_messages < 1 or window_bytes < 1 or not attempt_seconds > 0:
        raise ValueError("windows and attempt_seconds are positive")
    if not beat_seconds >= 0 or not farewell_seconds >= 0:
        raise ValueError("beat_seconds and farewell_seconds are not negative")
    if not connect_timeout_seconds > 0:
        raise ValueError("connect_timeout_seconds is positive, math.inf for no limit")
    # In the task of the connection, where it is written, it would be too late for an error.
    encode_connect("", login, None if callable(passcode) else passcode, 0, client_id)
    rng = rng or random.SystemRandom()
    listed = [addresses] if isinstance(addresses, str) else addresses
    rotation = Rotation(listed, rng.uniform, seconds_min=redial_seconds_min, seconds_max=redial_seconds_max)
    core = Core(
        id=f"{rng.getrandbits(64):016x}",
        login=login,
        passcode=passcode,
        client_id=client_id,
        beat_ms=round(beat_seconds * 1000),
        window_messages=window_messages,
        window_bytes=window_bytes,
    )
    return ConnectPlan(
        core, rotation, tls, attempt_seconds, connect_timeout_seconds, farewell_seconds, tracing or NoTracing()
    )


def new_feed(client_id: str, destination: str, *, confirm: bool = False, **options: Unpack[SubscribeOptions]) -> Feed:
    """Raises ValueError and LocalProtocolError, as `Client.subscribe`."""
    _check_names("subscribe", options, SubscribeOptions)
    durable, overflow = options.get("durable", ""), options.get("overflow", "error")
    ack, ack_level = options.get("ack", "client-individual"), options.get("ack_level")
    prefetch, buffer_bytes = options.get("prefetch", PREFETCH), options.get("buffer_bytes", BUFFER_BYTES)
    if prefetch < 1 or buffer_bytes < 1:
        raise ValueError("prefetch and buffer_bytes are at least 1")
    if overflow not in ("error", "drop-oldest"):
        raise ValueError("overflow is error or drop-oldest")
    if ack not in {mode.value for mode in AckMode}:
        raise ValueError("ack is auto, client or client-individual")
    if ack_level not in (None, "edge", "quorum"):
        raise ValueError("ack_level is edge or quorum")
    if durable and not (client_id and destination.startswith("/fanout/")):
        raise ValueError("durable subscriptions are of fanouts, by a client that was given a client_id")
    kind = "durable subscription" if durable else kind_of(destination).value
    for name, kinds in APPLIES_TO.items():
        is_given = confirm if name == "confirm" else options.get(name) is not None
        if is_given and kind not in kinds and not (name == "ack" and ack == "auto"):
            raise ValueError(f"{destination}: {name} has no effect on a {kind}, only on a {' or '.join(kinds)}")
    if ack == "auto" and (ack_level or confirm):
        raise ValueError("ack_level and confirm are for ACKs that wait, which ack=auto has not")
    start = options.get("start", "first")
    named = start in ("first", "next")
    feed = Feed(
        destination,
        ack=AckMode(ack),
        prefetch=prefetch,
        buffer_bytes_max=buffer_bytes,
        drops_oldest=overflow == "drop-oldest",
        start=start if named else "resume",
        seen=Progress() if named else parse_progress(start),
        headers=options.get("headers") or {},
        durable=durable,
        ack_level=ack_level or "",
    )
    encode_subscribe(feed)  # Later it would fail in the task that all calls share.
    return feed


def _check_names(call: str, options: Mapping[str, object], known: type) -> None:
    for name in options.keys() - known.__annotations__.keys():
        raise TypeError(f"{call}() has no option {name!r}")
