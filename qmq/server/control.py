"""Control destinations: questions to a node, asked with a SEND and answered in the headers of its RECEIPT.

The counting ones are ocamlmq's, with its header names. Counts are this node's own: messages that it accepted and that
nobody has settled yet, in flight or lent to peers included, and subscriptions of its own clients.
"""

from typing import TYPE_CHECKING

from qmq.broker.destination import Kind, kind_of
from qmq.errors import Refused
from qmq.server.status import status_answer

if TYPE_CHECKING:
    from qmq.server.node import Node

STATUS = "/control/status"
COUNT_MESSAGES = "/control/count-msgs"
COUNT_SUBSCRIBERS = "/control/count-subscribers"


def control_answer(node: "Node", destination: str) -> dict[str, str]:
    """The headers that answer `destination`. Raises Refused for a question that nobody understands."""
    if destination == STATUS:
        return {"status": status_answer(node)}
    for question, kinds in (
        (COUNT_MESSAGES, (Kind.QUEUE,)),
        (COUNT_SUBSCRIBERS, (Kind.QUEUE, Kind.TOPIC, Kind.FANOUT)),
    ):
        if destination.startswith(f"{question}/"):
            asked = destination.removeprefix(question)
            if kind_of(asked) not in kinds:
                break
            if question == COUNT_MESSAGES:
                return {"num-messages": str(_messages(node, asked))}
            return {"num-subscribers": str(_subscribers(node, asked))}
    raise Refused(
        "bad-destination",
        f"Control destinations are {STATUS}, {COUNT_MESSAGES}/queue/NAME and "
        f"{COUNT_SUBSCRIBERS}/queue/NAME (or /topic/NAME, /fanout/NAME).",
    )


def _messages(node: "Node", queue_name: str) -> int:
    queue = node.broker.queues.by_name.get(queue_name)
    return 0 if queue is None else queue.depth


def _subscribers(node: "Node", destination: str) -> int:
    broker = node.broker
    kind = kind_of(destination)
    if kind is Kind.TOPIC:
        return len(broker.topics.match(destination))
    if kind is Kind.FANOUT:
        return len(broker.fanouts.get(destination, ()))
    queue = broker.queues.by_name.get(destination)
    return 0 if queue is None else len(queue.subscriptions)
