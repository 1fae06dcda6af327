"""A short hash of each destination policy, so that nodes can tell each other whether theirs agree.

Only what a file says counts, and only where it is not the default: so the order of policies and keys does not matter,
nor does a key that a later version knows and nobody has set. Whatever a node adds by itself (its own limits, its level
of receipts) stays out.
"""

import hashlib
import json
from typing import Final

from .destinations import DestinationPolicy, DestinationSettings

PRINT_CHARACTERS: Final = 8
PRINTS_MAX: Final = 1000
"""Policies that are told one by one, beyond which they are told as one: what a link tells is bounded."""

ALL: Final = "all policies"
CREATE_ON_USE: Final = "create_on_use"


def prints_of(destinations: DestinationSettings) -> dict[str, str]:
    """Pattern → print of its policy, and `create_on_use` where it is off."""
    prints: dict[str, str] = {}
    for policy in destinations.policies:
        prints[policy.pattern] = _print({key: getattr(policy, key) for key in _keys_said(policy)})
    if not destinations.create_on_use:
        prints[CREATE_ON_USE] = _print(False)
    return prints if len(prints) <= PRINTS_MAX else {ALL: _print(prints)}


def _keys_said(policy: DestinationPolicy) -> list[str]:
    fields = type(policy).model_fields
    # Whoever says the default dead letter queue means more than whoever says nothing.
    return [
        key
        for key in policy.keys_that_count()
        if getattr(policy, key) != fields[key].default or (key == "dead_letter" and policy.keeps_dropped)
    ]


def _print(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:PRINT_CHARACTERS]
