"""How much clients may ask this node to hold, as the rules know it (docs/limits.md has the reasons)."""

from dataclasses import dataclass
from typing import Final

COPIES_BYTES_MAX: Final = 18 << 20
"""A message and its copies are one batch, which the storage format bounds."""

COPIES_MAX: Final = 1000
"""Queues that get a copy of one message, some 5 ms; and the copies that it becomes in all (`copy_budget`)."""


@dataclass(frozen=True)
class BrokerLimits:
    """All of one node, and of one connection where it says so."""

    subscriptions_max: int = 100
    """Of one connection."""

    transactions_max: int = 10
    """Open at the same time, of one connection."""

    transaction_frames_max: int = 1000
    """Held by one transaction."""

    transaction_bytes_max: int = 16 << 20
    """Held by all transactions of one connection."""

    destinations_max: int = 100_000
    pattern_words_max: int = 200_000
    """Words of all topic patterns with wildcards."""

    selector_parts_max: int = 200_000
    """What all different selectors cost together (`Selector.cost`)."""

    queue_memory_bytes_max: int = 256 << 20
    """Bodies of memory-only queue messages."""

    retained_topics_max: int = 100_000
    retained_bytes_max: int = 64 << 20
    durable_subscriptions_max: int = 1000


DEFAULT_LIMITS = BrokerLimits()
