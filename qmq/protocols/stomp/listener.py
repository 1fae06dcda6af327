"""`[[stomp]]` in the node file."""

from typing import Final

from qmq.address import Address
from qmq.protocols.declaration import Declaration

DECLARATION: Final = Declaration("stomp", "STOMP", default=Address("127.0.0.1", 61613))
