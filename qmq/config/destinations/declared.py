"""What the declaration of a queue may say, beside the keys of its policy."""

import re
from typing import Annotated, Final

from qmq.auth.credentials import is_name
from qmq.section import SecondsOrNone, Section

from .policy import KEYS

OWNER: Final = r"(\S+-[0-9a-f]{16}/[0-9]{1,19})?"


def _read_owner(value: object) -> object:
    if value != "" and not is_name(value):
        raise ValueError("must be the name of a user")
    return value


def _read_connection(value: object) -> object:
    if not isinstance(value, str) or re.fullmatch(OWNER, value) is None:
        raise ValueError("must be a connection, INCARNATION/NUMBER")
    return value


class QueueLifetime(Section):
    """Until when a declared queue exists. By default until it is deleted."""

    auto_delete: bool = False
    """When the last of its consumers in the mesh has left."""
    expires_seconds: SecondsOrNone = 0.0
    """When it was not used for so long; 0: never."""
    exclusive_to_connection: Annotated[str, _read_connection] = ""
    """When that connection ends: its node's incarnation, and its number there. Only it may consume from the queue."""


class QueueOwner(Section):
    """Whose limits a declared queue counts for."""

    declared_by: Annotated[str, _read_owner] = ""
    """The user that declared it first; "": none that has a name."""


DECLARED_BY: Final = "declared_by"

QUEUE_KEYS: Final = (*KEYS["/queue/"], *QueueLifetime.keys())
"""What the declaration of a queue may say."""
