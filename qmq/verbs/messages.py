"""Verbs about single messages. Nothing is consumed."""

from typing import Annotated

from qmq.access.rules import Action
from qmq.verbs.queues import COUNT_MAX
from qmq.verbs.verb import Showing, Verb, option


class Peek(Verb):
    """Show messages of a destination, with headers and bodies.

    For a queue, shows the first messages of all nodes in the order of delivery, including those in flight. For a
    fanout, shows the oldest that are kept. For a topic, shows the retained message.
    """

    form = "peek/queue|topic|fanout/NAME"
    right = Action.SUBSCRIBE

    count: Annotated[int, option("At most so many.", metavar="N", of=" of messages", ge=1, le=COUNT_MAX)] = 10
    offset: Annotated[
        int, option("Leave out the first N messages.", metavar="N", of=" of messages", ge=0, le=COUNT_MAX)
    ] = 0


class Get(Verb):
    """Show one message, by its message-id.

    A settled message is found as long as the journal of any node has it. Exit code 1 if no node that answers has the
    message any more (`unknown-message`).
    """

    form = "get/MESSAGE-ID"
    right = Action.SUBSCRIBE
    subject = "message_id"


class Trace(Showing):
    """Show what has become of a message.

    Shows where it was accepted, copied, delivered and settled, and by which client. Searches the journal of the node;
    if that does not reach back far enough, also those of the other nodes. All nodes are asked what they have of the
    message now. Names what is not known any more. Exit code 1 if nothing is known.
    """

    form = "trace/MESSAGE-ID"
    subject = "message_id"
