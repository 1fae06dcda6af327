"""A node that left for good: each queue message that it accepted is adopted once at most.

I24 adopted messages are accepted again, each once

The adopter goes through queues and priorities one after the other. So adopted messages of one publisher are not in the
order in which it sent them. The ledger names them, because their first records may have left every journal, and then
no disk has them.
"""

from collections import Counter
from collections.abc import Mapping

from qmq.model.dots import Dot
from tests.simulation.evidence import Published
from tests.simulation.ledger import Ledger


def adopted(logged: Mapping[Dot, Published], ledger: Ledger, left: str) -> dict[Dot, Published]:
    """Queue messages that were sent to the node `left` and stand in the log of another one."""
    return {
        dot: one
        for dot, one in logged.items()
        if one.destination.startswith("/queue/")
        and dot.origin.node != left
        and one.id in ledger.sent
        and ledger.sent[one.id].node == left
    }


def adopted_twice(adopted: Mapping[Dot, Published]) -> list[str]:
    """Messages that were accepted anew more than once."""
    # A message that was copied has a record for each queue.
    counts = Counter((one.id, one.destination) for one in adopted.values())
    return [f"I24 adopted {count} times: {message_id}" for (message_id, _), count in counts.items() if count > 1]
