"""Which rules apply to a destination, and where each is from: one answer to the question why a queue behaves so.

A rule is from the declaration of the queue, else from the policy that matches best, else from a setting of the node, or
it is a default. Each definition is from the node file that applied it, or from a change at run time.
"""

from collections.abc import Mapping
from typing import Any, Final

from qmq.broker.messages.destination import is_pattern
from qmq.config import NodeSettings
from qmq.definitions.definition import Key
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts
from qmq.settings.definitions.declared_queues import KIND as QUEUE
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.file_entries import source_of
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.paused_queues import KINDS as PAUSES
from qmq.settings.definitions.policies import KIND as POLICY

OF_NODE: Final[Mapping[str, tuple[str, str]]] = {
    "max_messages": ("limits", "queue_messages_max"),
    "max_bytes": ("limits", "queue_bytes_max"),
    "receipt": ("mesh", "receipt"),
    "ack_level": ("mesh", "ack_level"),
    "retention_seconds": ("storage", "fanout_age_seconds_max"),
    "retention_bytes": ("storage", "fanout_bytes_max"),
}
"""Rule → the setting of the node that counts where no definition has it."""

DEFAULT: Final = "default"


def policies_of(settings: NodeSettings, definitions: LiveDefinitions, declared: DeclaredQueues, about: str) -> Facts:
    """The rules of `about`, with their sources. Raises Refused for a pattern."""
    if is_pattern(about):
        raise Refused("bad-pattern", "The rules of one destination are shown, not of a pattern.")
    destinations = settings.destinations
    written, applied = destinations.table.written_for(about), declared.under(about, destinations.policy_of(about))
    said = declared.value_of(about) or {}

    def rule(key: str) -> dict[str, Any]:
        value, source = getattr(applied, key), DEFAULT
        if key in said:
            source = f"{QUEUE} {about}"
        elif written is not None and key in written.set_keys and value == getattr(written, key):
            source = f"{POLICY} {written.pattern}"
        elif value is None and key in OF_NODE:
            section, name = OF_NODE[key]
            value, source = getattr(getattr(settings, section), name), f"{section}.{name}"
        return {"key": key, "value": value, "from": source}

    keys = [Key(QUEUE, about), *(Key(kind, about) for kind in PAUSES)]
    keys += [] if written is None else [Key(POLICY, written.pattern)]
    found = [one for one in map(definitions.get, keys) if one is not None]
    return {
        "exists": about in declared.texts or destinations.exists(about),
        "definitions": [
            {**one.key._asdict(), "value": one.value, "from": source_of(definitions.table, one)} for one in found
        ],
        "rules": [rule(key) for key in applied.effective_keys() if key != "pattern"],
    }
