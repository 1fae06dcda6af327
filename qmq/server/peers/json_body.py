"""The body of a control request that is a JSON object."""

import json
from typing import Any

from qmq.errors import Refused


def json_object(body: bytes, label: str) -> dict[str, Any]:
    """The object in `body`. Raises Refused, with `label` in front, for anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("bad-definition", f"{label}: the body must be a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise Refused("bad-definition", f"{label}: the body must be a JSON object")
    return value
