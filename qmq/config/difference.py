"""The differences between two configurations, key by key, and which of them a running node can apply.

Definitions and listeners are identified by name and address, so moving one within the file is no difference. Secrets
are never shown, only that they changed.

Surprising: a key that is not in CHANGES_LIVE needs a restart. Add a setting there once the running node follows it. A
forgotten key costs a restart; the opposite error would be a setting that silently has no effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from qmq.section import SECRET_KEYS, Section

from .limits import LimitSettings
from .node import NodeSettings
from .peers import PeersFile
from .show import text_of

ABSENT = "(absent)"

Entries = Mapping[str, Mapping[str, object]]
"""Kind → name → value."""

LIMITS_AT_START = (
    "body_bytes_max",
    "outbox_bytes_max",
    "subscriber_buffer_bytes_default",
    "memory_bytes_max",
    "commit_pending_bytes_max",
    "queue_messages_in_memory_max",
    "queue_bytes_in_memory_max",
)
"""Those that parts keep from their construction; a running node applies all others."""

CHANGES_LIVE = (
    "destinations.",
    "definitions",
    *(f"limits.{key}" for key in LimitSettings.keys() if key not in LIMITS_AT_START),
)
"""Keys that a running node applies: whole keys, or prefixes that end with a dot."""

# The key that identifies an element of a list of sections.
NAMES = ("name", "address")


@dataclass(frozen=True, slots=True)
class Change:
    """One key with different values. `old` and `new` are TOML, or say that the key is absent; secrets are hidden and
    look equal."""

    key: str
    old: str
    new: str
    needs_restart: bool

    def __str__(self) -> str:
        return f"{self.key}: changed" if self.old == self.new else f"{self.key}: {self.old} → {self.new}"


def difference(old: NodeSettings, new: NodeSettings) -> list[Change]:
    """Every change between two node files, in the order of the keys; empty if they mean the same."""
    changes: list[Change] = []
    _compare(old, new, "", changes)
    return changes


def peers_difference(old: PeersFile | None, new: PeersFile | None, node: str = "") -> list[Change]:
    """The same for two peers files, as `node` sees them; None is a node without a peers file.

    A running node applies changes of other nodes and their addresses. `check_change` checks whether it may.
    """
    fixed = ("mesh", "secret", f"nodes[{node}].mesh")
    changes: list[Change] = []
    if old is not None and new is not None:
        _compare(old, new, "", changes)
    elif old is not new:
        changes.append(Change("mesh", _mesh(old), _mesh(new), True))
    return [Change(f"peers file, {change.key}", change.old, change.new, change.key in fixed) for change in changes]


def _mesh(peers: PeersFile | None) -> str:
    return ABSENT if peers is None else text_of("mesh", peers.mesh)


def _compare(old: Section, new: Section, path: str, changes: list[Change]) -> None:
    # The keys of both: two policies may have different keys.
    for key in dict.fromkeys((*old.effective_keys(), *new.effective_keys())):
        before, after = getattr(old, key), getattr(new, key)
        name = f"{path}.{key}" if path else key
        if isinstance(before, Section) and isinstance(after, Section):
            _compare(before, after, name, changes)
        elif _is_list(before) or _is_list(after):
            _compare_lists(_by_name(before), _by_name(after), name, changes)
        elif key == "definitions":
            _compare_definitions(before, after, changes)
        elif before != after or old.is_explicit(key) != new.is_explicit(key):
            _note(name, _text(old, key), _text(new, key), changes)


def _compare_definitions(old: Entries, new: Entries, changes: list[Change]) -> None:
    before, after = (
        {f"definitions[{kind} {name}]": one for kind, of_kind in kinds.items() for name, one in of_kind.items()}
        for kinds in (old, new)
    )
    for place in dict.fromkeys((*before, *after)):
        if before.get(place) != after.get(place):
            old_text, new_text = (text_of(place, one[place]) if place in one else ABSENT for one in (before, after))
            _note(place, old_text, new_text, changes)


def _compare_lists(old: dict[str, Section], new: dict[str, Section], path: str, changes: list[Change]) -> None:
    for name in dict.fromkeys((*old, *new)):
        place = f"{path}[{name}]"
        if name not in new:
            _note(place, _summary(old[name]), ABSENT, changes)
        elif name not in old:
            _note(place, ABSENT, _summary(new[name]), changes)
        else:
            _compare(old[name], new[name], place, changes)


def _note(name: str, old: str, new: str, changes: list[Change]) -> None:
    live = any(
        name.startswith(key) if key.endswith(".") else name == key or name.startswith(f"{key}[") for key in CHANGES_LIVE
    )
    changes.append(Change(name, old, new, not live))


def _is_list(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Section)


def _by_name(value: object) -> dict[str, Section]:
    sections = [section for section in value if isinstance(section, Section)] if isinstance(value, tuple) else []
    return {_name(section, number): section for number, section in enumerate(sections)}


def _name(section: Section, number: int) -> str:
    key = next((key for key in NAMES if key in section.__struct_fields__), None)
    return str(getattr(section, key)) if key is not None else str(number)


def _summary(section: Section) -> str:
    """The keys that were set in it, except its name."""
    keys = [key for key in section.effective_keys() if key in section.set_keys and key not in NAMES]
    shown = [f"{key} = {_text(section, key)}" for key in keys]
    return f"{{ {', '.join(shown)} }}" if shown else "{}"


def _text(section: Section, key: str) -> str:
    """The value as TOML; for a section, the keys that were set in it."""
    value = getattr(section, key)
    if key in SECRET_KEYS and value is not None:
        return "(hidden)"
    if isinstance(value, Section):
        return _summary(value)
    if value is None:
        return "(not set)"
    return text_of(key, value) + ("" if section.is_explicit(key) else " (by default)")
