"""What differs between two configurations, key by key, and which of it a running node can take up.

Users, listeners and policies are told apart by name, address and pattern, so that moving one within the file is no
difference. Secrets are never shown: it is only said that they changed.

Surprising: a key that nobody put into CHANGES_LIVE needs a restart. Whoever adds a setting and makes the node follow it
while running adds it there; forgetting that costs a restart, the other mistake would be a setting that silently does
nothing.
"""

from dataclasses import dataclass

from .mistakes import SECRET_KEYS
from .model import Section
from .node import NodeSettings
from .peers import PeersFile
from .show import text_of

NOT_THERE = "(not there)"

CHANGES_LIVE = (
    "destinations.",
    "users",
    "limits.login_seconds",
    "limits.login_bytes_max",
    "limits.logins_pending_max",
    "limits.logins_pending_per_address_max",
    "limits.connections_max",
    "limits.connections_per_address_max",
    "limits.connections_per_user_max",
    "limits.command_bytes_max",
    "limits.header_line_bytes_max",
    "limits.header_count_max",
    "limits.header_bytes_max",
    "limits.destination_bytes_max",
    "limits.subscriptions_max",
    "limits.transactions_max",
    "limits.transaction_frames_max",
    "limits.transaction_bytes_max",
    "limits.prefetch_default",
    "limits.prefetch_max",
    "limits.heartbeat_floor_ms",
    "limits.heartbeat_grace",
    "limits.destinations_max",
    "limits.pattern_words_max",
    "limits.selector_parts_max",
    "limits.durable_subscriptions_max",
    "limits.queue_messages_max",
    "limits.queue_bytes_max",
    "limits.queue_memory_bytes_max",
    "limits.retained_topics_max",
    "limits.retained_bytes_max",
    "limits.drain_seconds",
    "limits.farewell_seconds",
)
"""Keys that a running node takes up, whole or (with a dot at the end) by their beginning."""

# The key that tells the elements of a list of sections apart.
NAMES = ("pattern", "name", "address")


@dataclass(frozen=True, slots=True)
class Change:
    """One key whose value differs. `old` and `new` are as TOML, or say that there is no such thing; secrets are
    hidden and look the same."""

    key: str
    old: str
    new: str
    needs_restart: bool

    def __str__(self) -> str:
        return f"{self.key}: changed" if self.old == self.new else f"{self.key}: {self.old} → {self.new}"


def difference(old: NodeSettings, new: NodeSettings) -> list[Change]:
    """Every change between two node files, in the order of the keys; empty when they mean the same."""
    changes: list[Change] = []
    _compare(old, new, "", changes)
    return changes


def peers_difference(old: PeersFile | None, new: PeersFile | None, node: str = "") -> list[Change]:
    """The same of two peers files, as `node` sees them; None is a node without one.

    It takes up other nodes and their addresses. Whether it may is another question: `peers_change`.
    """
    fixed = ("mesh", "secret", f"nodes[{node}].mesh")
    changes: list[Change] = []
    if old is not None and new is not None:
        _compare(old, new, "", changes)
    elif old is not new:
        changes.append(Change("mesh", _mesh(old), _mesh(new), True))
    return [Change(f"peers file, {change.key}", change.old, change.new, change.key in fixed) for change in changes]


def _mesh(peers: PeersFile | None) -> str:
    return NOT_THERE if peers is None else text_of("mesh", peers.mesh)


def _compare(old: Section, new: Section, path: str, changes: list[Change]) -> None:
    # The keys of either: they are not always the same for two policies.
    for key in dict.fromkeys((*old.keys_that_count(), *new.keys_that_count())):
        before, after = getattr(old, key), getattr(new, key)
        name = f"{path}.{key}" if path else key
        if isinstance(before, Section) and isinstance(after, Section):
            _compare(before, after, name, changes)
        elif _is_list(before) or _is_list(after):
            _compare_lists(_by_name(before), _by_name(after), name, changes)
        elif before != after or old.is_said(key) != new.is_said(key):
            _note(name, _text(old, key), _text(new, key), changes)


def _compare_lists(old: dict[str, Section], new: dict[str, Section], path: str, changes: list[Change]) -> None:
    for name in dict.fromkeys((*old, *new)):
        place = f"{path}[{name}]"
        if name not in new:
            _note(place, _summary(old[name]), NOT_THERE, changes)
        elif name not in old:
            _note(place, NOT_THERE, _summary(new[name]), changes)
        else:
            _compare(old[name], new[name], place, changes)


def _note(name: str, old: str, new: str, changes: list[Change]) -> None:
    live = any(name.startswith(key) if key.endswith((".", "users")) else name == key for key in CHANGES_LIVE)
    changes.append(Change(name, old, new, not live))


def _is_list(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Section)


def _by_name(value: object) -> dict[str, Section]:
    sections = [section for section in value if isinstance(section, Section)] if isinstance(value, tuple) else []
    return {_name(section, number): section for number, section in enumerate(sections)}


def _name(section: Section, number: int) -> str:
    key = next((key for key in NAMES if key in type(section).model_fields), None)
    return str(getattr(section, key)) if key is not None else str(number)


def _summary(section: Section) -> str:
    """What was said of it beyond its name."""
    keys = [key for key in section.keys_that_count() if key in section.model_fields_set and key not in NAMES]
    said = [f"{key} = {_text(section, key)}" for key in keys]
    return f"{{ {', '.join(said)} }}" if said else "{}"


def _text(section: Section, key: str) -> str:
    """The value as TOML; of a section, what was said in it."""
    value = getattr(section, key)
    if key in SECRET_KEYS and value is not None:
        return "(hidden)"
    if isinstance(value, Section):
        return _summary(value)
    if value is None:
        return "(not set)"
    return text_of(key, value) + ("" if section.is_said(key) else " (by default)")
