"""Topics: a client that has listened all the time, without a fault anywhere, has everything."""

from tests.simulation.ledger import Ledger
from tests.simulation.routing import SENDS

TOPICS_SECONDS = 2.0
"""From here on every listener's interest has reached every node of a healthy mesh."""


def unseen(ledger: Ledger) -> list[str]:
    """Without faults, and only then, a topic message reaches every client that was there when it was sent."""
    return [
        f"topic lost without a fault: {name} never got {message.id}"
        for name, seen in ledger.listeners.items()
        for message in ledger.receipted
        if message.destination.startswith("/topic/")
        and message.destination not in SENDS
        and message.at >= TOPICS_SECONDS
        and message.id not in seen
    ]
