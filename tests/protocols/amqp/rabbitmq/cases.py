"""What QMQ and RabbitMQ are compared in: each case is a script, and `rabbitmq.json` has what RabbitMQ did.

`DIFFERENCES` names the cases in which QMQ does something else on purpose, and why.
"""

from importlib import import_module
from typing import Final

from tests.protocols.amqp.rabbitmq.script import CASES as CASES

for part in ("declares", "acks", "publishes", "queues", "routes", "copies", "priorities"):
    import_module(f"tests.protocols.amqp.rabbitmq.cases_{part}")

DIFFERENCES: Final[dict[str, str]] = {
    "declared-again-overflow-default": "what is said and what counts without being said is the same",
    "declared-again-priority-other": "priorities 0 to 9 count in every queue",
    "priorities_above_the_most": "priorities 0 to 9 count in every queue",
    "priorities_without_the_argument": "priorities 0 to 9 count in every queue",
    "exclusive_consumer_second": "the second consumer stands by",
    "cc_to_a_full_queue_is_all_or_none": "a message is accepted by all queues that get it, or by none",
    "cc_of_a_dead_letter": "CC and BCC do not count again for a dead letter",
    "dead_by_a_rejected_publish": "a message that is among the dead letters is confirmed",
}
"""Case → in what QMQ differs on purpose (docs/amqp.md)."""
