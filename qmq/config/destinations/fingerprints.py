"""A short hash of each destination policy, by which nodes compare their policies.

Only keys that a file sets to a value other than the default count. So the order of policies and keys has no effect, nor
has a key of a later version that is not set. Settings outside the policies (limits, the mesh's level of receipts) are
not included.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Final

from .policy import DestinationPolicy
from .settings import DestinationSettings

FINGERPRINT_CHARACTERS: Final = 8
FINGERPRINTS_MAX: Final = 1000
"""Beyond this number of policies, one fingerprint stands for all: the data on a link is bounded."""

ALL: Final = "all policies"
CREATE_ON_USE: Final = "create_on_use"


def fingerprints_of(
    destinations: DestinationSettings, policies: Iterable[DestinationPolicy] | None = None
) -> dict[str, str]:
    """Pattern → fingerprint of its policy, and `create_on_use` if it is off. `policies`: only these."""
    found: dict[str, str] = {}
    for policy in destinations.policies if policies is None else policies:
        found[policy.pattern] = _fingerprint({key: getattr(policy, key) for key in _changed_keys(policy)})
    if not destinations.create_on_use:
        found[CREATE_ON_USE] = _fingerprint(False)
    return found if len(found) <= FINGERPRINTS_MAX else {ALL: _fingerprint(found)}


def _changed_keys(policy: DestinationPolicy) -> list[str]:
    keys = policy.keys()
    # Setting the default dead letter queue has a meaning of its own: see `keeps_dropped`.
    return [
        key
        for key in policy.effective_keys()
        if key != "locked"
        and (getattr(policy, key) != keys[key].default or (key == "dead_letter" and policy.keeps_dropped))
    ]


def _fingerprint(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_CHARACTERS]
