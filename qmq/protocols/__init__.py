"""The protocols that clients may speak: a folder for each, and its line in the table here.

Deleting both removes a protocol. What a folder says of itself is in two modules that are found by their names, so that
no room below the dialogues imports one: `listener` declares what the files and other nodes may say about the protocol,
and `dialogue` serves its clients. A node loads the latter only for what it serves or is asked about.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Final

from qmq.protocols.declaration import Declaration

PROTOCOLS: Final = (
    "stomp",
    "http",
    "amqp",
    "beanstalk",
)


@cache
def declarations() -> Sequence[Declaration]:
    """What each protocol declares, in the order of the table."""
    return tuple(import_module(f"{__name__}.{name}.listener").DECLARATION for name in PROTOCOLS)
