"""`[[amqp]]` in the node file."""

from typing import Final

from qmq.protocols.declaration import Declaration

DECLARATION: Final = Declaration("amqp", "AMQP")
