"""`NodeSettings`: a node file with all defaults filled in.

Rules over several keys are here, too (anonymous listeners, required users). Rules between the node file and the peers
file are in `load`, because either file can be read alone.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from msgspec import Meta

from qmq.address import Address
from qmq.protocols import declarations
from qmq.protocols.declaration import ListenerSettings, LoginlessListenerSettings, TlsSettings
from qmq.section import (
    FilePath,
    NodeName,
    ReceiptLevel,
    Seconds,
    Section,
    Size,
    SizeOrUnbounded,
    WrongValue,
    check_at_least,
    extended,
    read_path,
    refuse,
)

from .authentication import AuthenticationSettings, asks_others, asks_users
from .destinations.policy import too_long
from .destinations.settings import DestinationSettings
from .limits import LimitSettings

SPAN_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.http"
"""The module that `[tracing]` needs; with it comes the SDK."""

DEFAULT_STOMP = Address("127.0.0.1", 61613)
LISTENERS = {one.name: one for one in declarations()}
"""Sections of listeners in a node file."""
SYNC_INTERVAL_MS_MAX = 60_000

CHECKPOINT_PARTS = 16
"""A reserve has room for so many times `checkpoint_bytes`. The logs of the databases need about eight times the bytes
that a checkpoint reads, and a file holds half of the reserve for the journal alone."""

RESERVE_UNNOTICED_PARTS = 16
"""One part in so many of the reserve may be used before that is noticed."""

UNBOUNDED_BYTES = 1 << 62
"""Where there is no reserve."""

CHECKPOINT_ROOM_MAX = 32 << 20
"""No checkpoint needs a larger reserve, because it works in parts."""


def _read_sync(value: object) -> object:
    found = re.fullmatch(r"([0-9]{1,5})ms", value) if isinstance(value, str) else None
    if value in ("always", "never") or (found and 1 <= int(found[1]) <= SYNC_INTERVAL_MS_MAX):
        return value
    raise ValueError(f'must be "always", "never", or an interval from "1ms" to "{SYNC_INTERVAL_MS_MAX}ms"')


MEMORY: Final = "memory"
"""In place of a data directory: the node writes no file."""

MEMORY_BYTES_MIN: Final = 64 << 20
"""The databases keep some free pages, and a checkpoint needs room."""


def _read_data(value: object) -> Path | str:
    return MEMORY if value == MEMORY else read_path(value)


def _read_queue_store(value: object) -> object:
    if value == "sqlite":
        return value
    if not isinstance(value, str) or not value.startswith(("postgresql://", "postgres://")):
        raise ValueError('must be "sqlite", or the URL of a PostgreSQL database: postgresql://…')
    if urlsplit(value).password is not None or "password=" in value:
        raise ValueError("must not contain a password: it is read from ~/.pgpass, PGPASSWORD or a service file")
    return value


def read_definitions(value: object) -> object:
    """Kind → name → value. What a kind allows is checked when the entries are applied."""
    if not isinstance(value, dict):
        raise ValueError("must be a section of kinds of definitions")
    found = []
    for kind, of_kind in value.items():
        if not isinstance(of_kind, dict):
            found.append(WrongValue((kind,), of_kind, "must be a section of names"))
            continue
        for name, one in of_kind.items():
            if not isinstance(one, dict):
                found.append(WrongValue((kind, name), one, "must be a section of keys"))
    refuse(found)
    return value


class StorageSettings(Section):
    """`[storage]`: when the journal is durable, and how much of it is kept."""

    sync: Annotated[str, _read_sync] = "always"
    """`always`: receipts wait for fsync (group commit). Otherwise they do not, and a crash may lose new records."""
    segment_bytes_max: Annotated[Size, Meta(ge=64 << 10)] = 64 << 20
    journal_keep_bytes: Size = 1 << 30
    """Journal that is kept even if every member has it, so that a short absence needs no full copy."""
    journal_bytes_max: Size = 10 << 30
    """Above this the oldest segments are dropped, even if a member needs them; it then gets what the stores have."""
    journal_age_seconds_max: Seconds = 7 * 86400.0
    checkpoint_bytes: Size = 64 << 20
    """Journal written between two checkpoints; bounds what recovery replays."""
    disk_reserve_bytes: SizeOrUnbounded = 64 << 20
    """Free space below which SEND is refused while settles still fit."""
    fanout_bytes_max: Size = 10 << 30
    """Size of each fanout log."""
    fanout_age_seconds_max: Seconds = 7 * 86400.0
    queue_store: Annotated[str, _read_queue_store] = "sqlite"
    """Where a backlog is stored: a file in the data directory, or a PostgreSQL database for this node alone."""
    queue_store_seconds_max: Annotated[Seconds, Meta(ge=1.0)] = 30.0
    """If PostgreSQL hangs or is away for longer, the node stops, so that peers take over."""
    memory_bytes_max: Annotated[Size, Meta(ge=MEMORY_BYTES_MIN)] = 256 << 20
    """What a node without a data directory keeps in memory, in place of a disk."""

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        if key == "journal_bytes_max":
            check_at_least(value, "journal_keep_bytes", seen)
        elif key == "disk_reserve_bytes" and value:
            least = min(CHECKPOINT_PARTS * int(seen.get("checkpoint_bytes", 0)), CHECKPOINT_ROOM_MAX)
            if value < least:
                raise ValueError(f"must be 0, or at least {least}, which a checkpoint needs (see checkpoint_bytes)")

    def within_memory(self) -> Self:
        """These settings with bounds that fit into `memory_bytes_max`. The reserve stays 0 where the file says so."""
        size = self.memory_bytes_max
        parts = {
            "checkpoint_bytes": 32,
            "segment_bytes_max": 32,
            "journal_keep_bytes": 16,
            "disk_reserve_bytes": 4,
            "fanout_bytes_max": 4,
            "journal_bytes_max": 2,
        }
        return self.replace({key: min(getattr(self, key), size // part) for key, part in parts.items()})

    @property
    def unnoticed_bytes_max(self) -> int:
        """What may be decided, and what may be written between two looks at the free space: together they leave of the
        reserve what a checkpoint needs.
        """
        return self.disk_reserve_bytes // RESERVE_UNNOTICED_PARTS or UNBOUNDED_BYTES

    @property
    def sync_interval_ms(self) -> int | None:
        """The interval, or None for `always` and `never`."""
        return int(self.sync[:-2]) if self.sync.endswith("ms") else None


def in_memory(storage: StorageSettings) -> str:
    """What a node without a data directory does not promise, for its operator."""
    size = f"{storage.memory_bytes_max >> 20} MiB"
    return (
        f"this node writes no file: everything is in memory, at most {size}. When it stops, its messages, durable "
        "subscriptions and definitions are lost, and its receipts say accepted"
    )


class MeshSettings(Section):
    """`[mesh]`: links, takeover and receipts of this node. The peers file lists the peers."""

    redial_seconds_min: Seconds = 0.1
    redial_seconds_max: Seconds = 2.0
    """The ceiling of the exponential back-off; each wait is drawn between zero and the current step (full jitter)."""
    beat_seconds: Seconds = 2.5
    """Heart-beat of an otherwise quiet link."""
    suspicion_seconds: Seconds = 7.5
    """Silence after which a peer counts as away and its link is dialled again."""
    redeliver_after_seconds: Seconds = 30.0
    """After a link is lost, how long a message lent over it waits before other consumers may get it."""
    takeover: bool = True
    """Whether another node serves the queue messages of a silent node, in a mesh of three nodes or more. The same on
    all nodes."""
    takeover_after_seconds: Seconds = 10.0
    """Silence after which a majority may let another node take over. The same on all nodes."""
    receipt: ReceiptLevel | None = None
    """How many disks a receipt waits for, if no policy says. None: `replicas=1` (two disks) in a mesh of three nodes or
    more, else `fsync`."""
    receipt_degrade_seconds: Seconds = 1.0
    """How long a receipt waits for copies; after this it reports how many there are."""
    receipt_short: Literal["degrade", "refuse"] = "degrade"
    """How too few copies are reported: in the RECEIPT, or as an ERROR."""
    ack_level: Literal["edge", "quorum"] = "edge"
    """When an ACK of a queue's message is confirmed, if no policy says: when it is durable on this node, or when no
    node will deliver the message again."""
    interest_confirm_seconds: Seconds = 1.0
    """How long the receipt of a SUBSCRIBE to a topic waits until all peers send the messages it names. Also how long a
    starting node waits to learn which topics they want, before it serves clients."""
    tls: TlsSettings | None = None
    """Required unless every mesh address is on loopback and the peers file has a secret."""

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        if key == "redial_seconds_max":
            check_at_least(value, "redial_seconds_min", seen)
        elif key == "suspicion_seconds":
            # A heartbeat may be late.
            beat = seen.get("beat_seconds", 0)
            if value < 2 * beat:
                raise ValueError(f"must be at least twice beat_seconds, {beat}")
        elif key == "takeover_after_seconds":
            check_at_least(value, "suspicion_seconds", seen)
        elif key == "tls" and value is not None and value.ca is None:
            raise ValueError("must have ca: a mesh link checks the certificate of the other side")


class TracingSettings(Section):
    """`[tracing]`: whether this node adds spans of OpenTelemetry to the traces of its clients."""

    enabled: bool = False
    """Make spans of messages with a header `traceparent`, and export them as the variables `OTEL_*` say."""

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        if value and not _is_installed(SPAN_EXPORTER):
            raise ValueError(f"needs {SPAN_EXPORTER}: pip install 'qmq[opentelemetry]'")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of a package above it
        return False


class ServingSettings(Section):
    """Where a node serves clients: besides STOMP, a list of sections for each protocol of the table."""

    name: NodeName = "qmq"
    peers: FilePath | None = None
    """The peers file, unless the command line names one."""
    data: Annotated[Path | str, _read_data] = Path("qmq-data")
    """The data directory, or `memory`; `directory` is easier to use."""
    stomp: tuple[ListenerSettings, ...] = (ListenerSettings(address=DEFAULT_STOMP),)


if not TYPE_CHECKING:
    others = {name: (tuple[one.settings, ...], ()) for name, one in LISTENERS.items() if name != "stomp"}
    ServingSettings = extended(ServingSettings, others)


class NodeSettings(ServingSettings):
    """All settings of one node. The defaults: a node `qmq` on 127.0.0.1:61613 with its data in ./qmq-data."""

    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()
    authentication: tuple[AuthenticationSettings, ...] = ()
    """In this order. Empty: the users alone."""
    definitions: Annotated[Mapping[str, Any], read_definitions] = {}
    """What the mesh shares, applied like an import of an operator (`qmq.settings.definitions.file_entries`)."""
    destinations: DestinationSettings = DestinationSettings()
    mesh: MeshSettings = MeshSettings()
    tracing: TracingSettings = TracingSettings()

    @property
    def directory(self) -> Path | None:
        """The data directory; None for a node that writes no file."""
        return None if self.data == MEMORY else Path(self.data)

    @property
    def source(self) -> str:
        """Which file this was read from, for errors."""
        return str(self.__dict__.get("path", f"the settings of {self.name}"))

    @property
    def old_entries(self) -> Collection[tuple[str, str]]:
        """The definitions, as kind and name, that the file has in sections of earlier versions."""
        return self.__dict__.get("old_entries", ())  # type: ignore[no-any-return]  # set by `read_from`

    @property
    def notes(self) -> Sequence[str]:
        """What the operator should change in the file."""
        return self.__dict__.get("notes", ())  # type: ignore[no-any-return]  # set by `read_from`

    def read_from(self, path: Path, old_entries: Collection[tuple[str, str]] = (), notes: Sequence[str] = ()) -> None:
        """Remember the file; only what reads it calls this."""
        self.__dict__.update(path=path, old_entries=old_entries, notes=notes)

    def listeners_of(self, protocol: str) -> tuple[ListenerSettings, ...]:
        """Those of one protocol of the table."""
        return getattr(self, protocol)  # type: ignore[no-any-return]  # a field that the table makes

    @property
    def listeners(self) -> tuple[ListenerSettings, ...]:
        """Those of all protocols."""
        return tuple(one for name in LISTENERS for one in self.listeners_of(name))

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        if key in LISTENERS:
            if key == "stomp" and not value:
                raise ValueError("must have at least one listener")
            _check_addresses((*_listeners(seen), *value))
        elif key in RULES:
            RULES[key](value, seen)


def _check_destinations(destinations: DestinationSettings, seen: Mapping[str, Any]) -> None:
    """Dead letter queues and children have names that clients can use."""
    limits = seen.get("limits")
    if limits is not None:
        refuse(
            [
                WrongValue(("policies", number, *place), name, why)
                for number, policy in enumerate(destinations.policies)
                for place, name in policy.named_queues()
                if (why := too_long(name, limits.destination_bytes_max))
            ]
        )


def _check_definitions(definitions: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    authentication = seen.get("authentication", ())
    if "user" in definitions and not asks_users(authentication):
        why = 'must be without users, or [[authentication]] must have an entry of the kind "users"'
        raise ValueError(why)
    if asks_others(authentication):
        return
    if users := definitions.get("user", {}):
        if not any(one.certificate_user for one in _listeners(seen)):
            if not any("password_hash" in user for user in users.values()):
                name = min(users)
                why = f"must have a password_hash for {name!r}, or a listener certificate_user: no client could log in"
                raise ValueError(why)
        return
    with_login = [one for one in _listeners(seen) if not isinstance(one, LoginlessListenerSettings)]
    closed = [one.address for one in with_login if not one.serves_anonymous(has_users=False)]
    if closed:
        raise ValueError(f"must name at least one user: no client could log in at {closed[0]}")


def _check_addresses(listeners: tuple[ListenerSettings, ...]) -> None:
    """Raises ValueError for two listeners at one address; port 0 is a free port for each."""
    addresses = [listener.address for listener in listeners if listener.address.port]
    for number, address in enumerate(addresses):
        if address in addresses[:number]:
            raise ValueError(f"must not have two listeners at {address}")


def _listeners(seen: Mapping[str, Any]) -> tuple[ListenerSettings, ...]:
    """Those of the keys before the one that is checked."""
    return tuple(one for key in LISTENERS for one in seen.get(key, ()))


def _check_storage(storage: StorageSettings, seen: Mapping[str, Any]) -> None:
    if seen.get("data") == MEMORY and storage.queue_store != "sqlite":
        raise ValueError(f'must be without queue_store, because data is "{MEMORY}"')


RULES: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], None]]] = {
    "definitions": _check_definitions,
    "destinations": _check_destinations,
    "storage": _check_storage,
}
"""Key → what refuses its value, beside those of the keys before it."""
